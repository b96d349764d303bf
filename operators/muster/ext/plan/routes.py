"""The page's routes of plans: which Dags a user may trigger, and what a run of one would do, asked of a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from sqlalchemy import select

from muster.airflow.page.access import Who, same_site
from muster.airflow.page.route import Json, Name
from muster.airflow.upstream.internals import DagAccessEntity, DagModel, conf, create_session
from muster.core.errors import Conflict, MusterError, NotFound, SpecError
from muster.core.interpreters import python_command
from muster.core.text import escaped, shortened
from muster.ext.plan.process import PlanRequest

api = APIRouter(default_response_class=Json)

Given = Annotated[str, Query(max_length=8000)]

MOST_SECONDS = 120.0
"""Of one plan: the Dag's file is read in it."""

_TURN_SECONDS = 30.0
_LAST = 400  # characters of what the process said before it failed
_turn = threading.Lock()


@api.get("/dags")
def dags(who: Who) -> Json:
    """Return the Dags that the user may trigger, and why no run of them can be planned here, if so."""
    mine = [dag_id for dag_id in _dags() if who.may(dag_id, DagAccessEntity.RUN, method="POST")]
    return Json({"dags": mine, "why_not": _why_not()})


@api.post("/plan", dependencies=[Depends(same_site)])
def plan(who: Who, dag: Name, params: Given = "{}") -> Json:
    """Return what a run of a Dag would do now; it needs the right to trigger it.

    :param params: an object as JSON; its values may be texts, as on the command line.
    """
    who.need(dag, DagAccessEntity.RUN, method="POST")
    return Json(_plan(dag, _read(params)))


def _read(text: str) -> dict[str, Any]:
    try:
        given = json.loads(text)
    except ValueError as error:
        raise SpecError(f"params is {text!r:.80}: need an object as JSON") from error
    if not isinstance(given, dict):
        raise SpecError(f"params is {text!r:.80}: need an object as JSON")
    return given


def _dags() -> list[str]:
    """Return the id of every Dag that Airflow has, sorted."""
    with create_session() as session:
        return sorted(session.scalars(select(DagModel.dag_id).where(DagModel.is_stale.is_(False))))


def _why_not() -> str:
    """Return why this api-server plans no runs; empty where it does."""
    if conf.getboolean("muster", "plan_on_page", fallback=False):
        return ""
    return (
        "This api-server runs no code of Dag authors, which a plan needs: type `muster plan DAG` where the Dag's files "
        "are. The setting plan_on_page under [muster] lets it."
    )


def _plan(dag_id: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run of a Dag would do now, as JSON values; see :class:`muster.ext.plan.plan.RunPlan`.

    One is made at a time: it costs seconds of CPU.

    :raises NotFound: Airflow has no such Dag.
    :raises SpecError: plans are off, the Dag's file cannot be read, or a param is wrong.
    :raises Conflict: other plans are being made.
    """
    if refused := _why_not():
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
    from muster.airflow.upstream.internals import DagBundlesManager, LocalDagBundle

    with create_session() as session:
        known = session.get(DagModel, dag_id)
        if known is None or known.is_stale or not known.relative_fileloc:
            raise NotFound(f"Airflow has no Dag {dag_id!r:.80}; it has {', '.join(_dags()[:20]) or 'none'}")
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
