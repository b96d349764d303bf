"""The page's routes of jobs and runs: lists, one with its log, and its end on request."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse

from muster.airflow.page.access import UserRights, Who, same_site
from muster.airflow.page.route import Here, Json, Limit, Name, Offset, Text
from muster.airflow.upstream.internals import DagAccessEntity
from muster.core.cancelling import on_page
from muster.core.names import check_job_id
from muster.core.origin import Origin
from muster.core.wire import plain
from muster.ext.page import described, listed, logs
from muster.ext.page.board import STATES, Board, Job, Jobs
from muster.ext.page.described import differences
from muster.ext.page.listed import runs_waiting
from muster.volumes import runs as recorded

api = APIRouter(default_response_class=Json)

State = Annotated[str, Query(pattern=f"^({'|'.join(STATES)})?$")]
Number = Annotated[int | None, Query(ge=0, le=10**15)]


@api.get("/first")
def first(board: Jobs, who: Who) -> Json:
    """Return the first screen: what runs, waits and failed last, of what the user may see."""
    found = listed.first_screen(board, permitted=who.may)
    return Json({**found, "airflow": runs_waiting(board.dags(), permitted=who.may)})


@api.get("/jobs")
def jobs(
    board: Jobs,
    who: Who,
    state: State = "",
    text: Text = "",
    dag: Name = "",
    run: Name = "",
    trials: bool = False,
    offset: Offset = 0,
    limit: Limit = 50,
) -> Json:
    """Return the jobs that the user may see, newest first; those of a search's trials only where they are asked for."""
    wanted = listed.JobFilter(state=state, text=text, dag=dag, run=run, trials=trials)
    return Json(listed.search(board, wanted, permitted=who.may, offset=offset, limit=limit))


@api.get("/jobs/{job_id}")
def job(here: Here, board: Jobs, who: Who, job_id: str) -> Json:
    """Return one job, and the user's rights on it."""
    found = _job(board, who, job_id, DagAccessEntity.TASK_INSTANCE)
    may = {
        "log": who.may(found.dag_id, DagAccessEntity.TASK_LOGS),
        "cancel": not found.ended and who.may(found.dag_id, method="PUT"),
    }
    parts = [] if found.ended else here.capacity.parts(job_id)
    return Json({**described.detail(found), "parts": [vars(part) for part in parts], "may": may})


@api.get("/jobs/{job_id}/log")
def log(here: Here, board: Jobs, who: Who, job_id: str, after: Number = None) -> Json:
    """Return the end of a job's log, or the part after byte `after`."""
    found = _job(board, who, job_id, DagAccessEntity.TASK_LOGS)
    return Json({**logs.part(here.backend.store.ledger, job_id, after=after), "ended": found.ended})


@api.get("/jobs/{job_id}/found")
def find(here: Here, board: Jobs, who: Who, job_id: str, text: Text = "", rank: Number = None) -> Json:
    """Return the lines of a job's log that hold a text, or come from a rank."""
    _job(board, who, job_id, DagAccessEntity.TASK_LOGS)
    return Json(logs.found(here.backend.store.ledger, job_id, text=text, rank=rank))


@api.get("/jobs/{job_id}/whole.log")
def whole(
    here: Here, board: Jobs, who: Who, job_id: str, text: Text = "", rank: Number = None, times: bool = False
) -> StreamingResponse:
    """Send all of a job's log as a file, as it was written, or only lines that hold a text or come from a rank."""
    _job(board, who, job_id, DagAccessEntity.TASK_LOGS)
    headers = {"content-disposition": f'attachment; filename="{job_id}.log"', "content-encoding": "identity"}
    return StreamingResponse(
        logs.chosen(here.backend.store.ledger, job_id, text=text, rank=rank, timed=times),
        media_type="text/plain; charset=utf-8",
        headers=headers,
    )


@api.get("/jobs/{job_id}/series")
def series(here: Here, board: Jobs, who: Who, job_id: str) -> Json:
    """Return what a job's ranks told and its replicas used over time; user code printed it, so it is as the log."""
    _job(board, who, job_id, DagAccessEntity.TASK_LOGS)
    return Json(plain(here.backend.store.ledger.series(job_id)))


@api.post("/jobs/{job_id}/cancel", dependencies=[Depends(same_site)])
def cancel(here: Here, board: Jobs, who: Who, job_id: str) -> Json:
    """Cancel a job: its ranks get time to save, and Airflow's audit log says who asked."""
    found = _job(board, who, job_id, DagAccessEntity.TASK_INSTANCE)
    who.need(found.dag_id, DagAccessEntity.TASK_INSTANCE, method="PUT")
    if not found.ended:
        origin = found.spec.origin if found.spec else Origin()
        who.note("muster_cancel_job", origin, job_id=job_id)
        here.backend.cancel(job_id, wait=False, why=on_page(who.name))
    return Json(described.row(board.one(job_id)))


@api.get("/runs")
def all_runs(
    board: Jobs, who: Who, dag: Name = "", state: State = "", offset: Offset = 0, limit: Limit = 50
) -> Json:
    """Return the runs of Dags that the user may see, newest first; all, or those in one state."""
    return Json(listed.list_runs(board, permitted=who.may, dag=dag, state=state, offset=offset, limit=limit))


@api.get("/run")
def one_run(here: Here, board: Jobs, who: Who, dag: Name, run: Name) -> Json:
    """Return one run of a Dag with all its jobs."""
    who.need(dag, DagAccessEntity.TASK_INSTANCE)
    board.look()
    mine = board.run(dag, run)
    jobs = board.now([line for line in mine if not line.is_trial])
    ends = board.ends(dag_id=dag, run_id=run, runs=1)
    if not mine and not ends:
        return Json(described.of_records(recorded.run(here.backend.store, dag, run)))
    live = {job.job_id: recorded.TriedJob.of(job.spec, job.status) for job in jobs if job.spec and job.status}
    tried = [live.get(line.job_id) or line.tried for line in reversed(mine)]
    parts = recorded.RunParts.of([job for job in tried if job], ends)
    trials = [line for line in mine if line.is_trial]
    return Json(described.whole(parts.run(board.noted()), jobs, trials, ends))


@api.get("/run_diff")
def run_diff(here: Here, who: Who, old_dag: Name, old: Name, new_dag: Name, new: Name) -> Json:
    """Return what differs between two runs, stage by stage."""
    for dag_id in dict.fromkeys((old_dag, new_dag)):
        who.need(dag_id, DagAccessEntity.TASK_INSTANCE)
    readable = partial(who.may, entity=DagAccessEntity.CODE)
    return Json(differences(here.backend.store, (old_dag, old), (new_dag, new), readable=readable))


def _job(board: Board, who: UserRights, job_id: str, entity: DagAccessEntity) -> Job:
    found = board.one(check_job_id(job_id))
    who.need(found.dag_id, entity)
    return found
