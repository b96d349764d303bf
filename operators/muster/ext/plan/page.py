"""Plans runs for the page: which Dags there are, and what a run of one would do, asked of a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airflow.configuration import conf
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from sqlalchemy import select

from muster.core.errors import Conflict, MusterError, NotFound, SpecError
from muster.core.interpreters import python_command
from muster.core.text import escaped, shortened
from muster.ext.plan.process import PlanRequest

MOST_SECONDS = 120.0
"""Of one plan: the Dag's file is read in it."""

_TURN_SECONDS = 30.0
_LAST = 400  # characters of what the process said before it failed
_turn = threading.Lock()


def dags() -> list[str]:
    """Return the id of every Dag that Airflow has, sorted."""
    with create_session() as session:
        return sorted(session.scalars(select(DagModel.dag_id).where(DagModel.is_stale.is_(False))))


def why_not() -> str:
    """Return why this api-server plans no runs; empty where it does."""
    if conf.getboolean("muster", "plan_on_page", fallback=False):
        return ""
    return (
        "This api-server runs no code of Dag authors, which a plan needs: type `muster plan DAG` where the Dag's files "
        "are. The setting plan_on_page under [muster] lets it."
    )


def plan(dag_id: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run of a Dag would do now, as JSON values; see :class:`muster.ext.plan.plan.RunPlan`.

    One is made at a time: it costs seconds of CPU.

    :raises NotFound: Airflow has no such Dag.
    :raises SpecError: plans are off, the Dag's file cannot be read, or a param is wrong.
    :raises Conflict: other plans are being made.
    """
    if refused := why_not():
        raise SpecError(refused)
    wanted = _wanted(dag_id, params)
    if not _turn.acquire(timeout=_TURN_SECONDS):
        raise Conflict("other plans are being made: ask again in a moment")
    try:
        answer = _asked(wanted)
    finally:
        _turn.release()
    if "refused" in answer:
        raise SpecError(answer["refused"])
    found: dict[str, Any] = answer["plan"]
    return found


def _wanted(dag_id: str, params: Mapping[str, Any]) -> PlanRequest:
    from airflow.dag_processing.bundles.local import LocalDagBundle
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    with create_session() as session:
        known = session.get(DagModel, dag_id)
        if known is None or known.is_stale or not known.relative_fileloc:
            raise NotFound(f"Airflow has no Dag {dag_id!r:.80}; it has {', '.join(dags()[:20]) or 'none'}")
        bundle_name, file = known.bundle_name, known.relative_fileloc
    bundle = DagBundlesManager().get_bundle(bundle_name)  # type: ignore[no-untyped-call]
    if not isinstance(bundle, LocalDagBundle):
        raise SpecError(
            f"Dag {dag_id} is of bundle {bundle_name!r:.60}, which is no folder of this machine: type `muster plan "
            f"{dag_id}` in a checkout of it"
        )
    folder = Path(bundle.path)
    return PlanRequest(dag_id=dag_id, file=str(folder / file), folder=str(folder), params=params)


def _asked(wanted: PlanRequest) -> dict[str, Any]:
    command = python_command("-m", "muster.ext.plan.process", str(os.getpid()))
    try:
        done = subprocess.run(
            command, input=json.dumps(asdict(wanted)).encode(), capture_output=True, timeout=MOST_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise SpecError(
            f"the plan of {wanted.dag_id} was not made in {MOST_SECONDS:.0f} s: see what its file does while it is read"
        ) from error
    if done.returncode:
        said = shortened(escaped(done.stderr.decode("utf-8", "replace").strip()[-_LAST:]), _LAST)
        raise MusterError(f"the plan of {wanted.dag_id} failed with code {done.returncode}: {said}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
