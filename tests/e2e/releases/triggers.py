"""Triggers as Airflow's database keeps them: ``python triggers.py FOLDER keep``, or ``make`` and what was kept; see act.py."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

from both import Origin, Pinned

from muster.airflow.attempts.trigger import DeploymentTrigger, JobTrigger
from muster.backends.releases.plan import Plan
from muster.core.deployment import DeploymentSpec
from muster.core.wire import dumps, loads

Kept = list[tuple[str, dict[str, Any]]]
MODEL = Pinned(address="volume://two/line@1", digest=f"b3:{'0' * 64}")


def keep() -> Kept:
    """Return what the database keeps of the triggers of a job and of a release."""
    spec = DeploymentSpec(name="line", model=MODEL, image="serve", image_digest=f"b3:{'1' * 64}")
    release = DeploymentTrigger(
        spec=dumps(spec),
        plan=dumps(Plan(steps=(20, 100), hold_seconds=(60.0,))),
        revision="r2",
        by="test",
        origin=dumps(Origin(dag_id="line", task_id="deploy", run_id="manual")),
        deadline=5.0,
    )
    job = JobTrigger(job_id="a-1", owner="try-1", cursor="7", deadline=5.0)
    return [_kept(each.serialize()) for each in (job, release)]


def make(text: str) -> Kept:
    """Make each trigger as a triggerer does, read what it holds, and return what is kept of it then."""
    made = []
    for path, given in json.loads(text):
        module, _, name = path.rpartition(".")
        trigger = getattr(import_module(module), name)(**given)
        made.append(_kept(trigger.serialize()))
        if "spec" in given:
            spec, plan = loads(DeploymentSpec, given["spec"]), loads(Plan, given["plan"])
            origin = loads(Origin, given["origin"])
            assert (spec.model, plan.steps, origin.task_id) == (MODEL, (20, 100), "deploy")
    return made


def _kept(serialized: tuple[str, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    path, given = serialized
    return path, {name: value for name, value in given.items() if value is not None}


if __name__ == "__main__":
    words = sys.argv[3:]
    print(json.dumps(make(*words) if sys.argv[2] == "make" else keep()))
