"""What this release writes and an earlier one cannot read: ``python new.py FOLDER ACT …``; see act.py."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from both import Output, machine_backend

from muster.backends.base import Backend
from muster.core.errors import MusterError
from muster.core.job import JobSpec, Role
from muster.core.replica import Replica
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.core.wire import dumps, loads

JOB_ID = "new-1"


def spec(backend: Backend) -> JobSpec:
    """A job with a field that only this release has."""
    return JobSpec(
        name="two.releases",
        image="python",
        image_digest=backend.store.put(shipped("images") / "python", ["requirements.txt"]),
        metric_pattern=r"loss (?P<loss>\S+)",
        roles=(Role(name="main", replicas=2, command=("true",)),),
        outputs={"made": Output(volume="two/made")},
    )


def enter(backend: Backend, _: Path) -> bool:
    """Enter it in the ledger."""
    return backend.store.ledger.create(JOB_ID, spec(backend), owner="try-1")


def read(backend: Backend, _: Path) -> str:
    """Read it."""
    return backend.store.ledger.spec(JOB_ID).metric_pattern


def jobs(backend: Backend, _: Path) -> list[str]:
    """Every job of the ledger, and those whose status can be read."""
    ledger = backend.store.ledger
    return [each.job_id for each in ledger.statuses(ledger.jobs())]


def orders(backend: Backend, folder: Path) -> str:
    """Write a replica's orders with a field that only this release has."""
    made = Replica(
        job_id="a", spec=replace(spec(backend), outputs={}), attempt=1, role="main", index=0, code=None, inputs={}, staging={},
        checkpoints="/", scratch="/", sealed="/", report="/", peers=("127.0.0.1:1",),
    )  # fmt: skip
    (folder / "orders.json").write_text(dumps(made))
    return "written"


def ordered(_: Backend, folder: Path) -> str:
    """Read them."""
    return loads(Replica, (folder / "orders.json").read_text()).job_id


ACTS = {each.__name__: each for each in (enter, read, jobs, orders, ordered)}

if __name__ == "__main__":
    try:
        answer: object = ACTS[sys.argv[2]](machine_backend(Settings.load()), Path(sys.argv[1]))  # type: ignore[operator]
    except MusterError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))
