"""The page's lists of jobs: those of a search, and the first screen's."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import nlargest
from typing import Any

from airflow.utils.state import DagRunState
from sqlalchemy import func, select

from muster.airflow.page.route import MOST_ROWS, UNREADABLE, task
from muster.airflow.upstream.internals import DagModel, DagRun, create_session
from muster.core.origin import Origin
from muster.core.status import JobState
from muster.core.wire import plain
from muster.ext.page.board import Board, Job, JobLine, task_of
from muster.ext.page.described import brief, row
from muster.ext.page.graph import Permitted
from muster.volumes.base import TaskEnd
from muster.volumes.runs import RunParts

MOST = 8
"""Rows of each list of the first screen."""

MOST_ENDS = 20
"""Runs whose tasks without a job are looked at for failures, the newest."""


@dataclass(frozen=True, kw_only=True)
class JobFilter:
    """Which jobs are asked for; an empty field asks for all.

    :param text: with it in their id, name, task or run.
    :param trials: those of the trials of searches, which are left out otherwise: the search shows them, and ends many
        on purpose.
    """

    state: str = ""
    text: str = ""
    dag: str = ""
    run: str = ""
    trials: bool = False

    def finds(self, job: JobLine) -> bool:
        """Whether a job is among them, its state aside."""
        return (
            self.dag in ("", job.dag_id)
            and self.run in ("", job.run_id)
            and (not self.text or self.text.lower() in job.words)
        )


def search(
    board: Board, wanted: JobFilter, *, permitted: Permitted, offset: int = 0, limit: int = 50
) -> dict[str, Any]:
    """Return one page of the jobs that are asked for, newest first, their numbers by state, and every Dag."""
    board.look()
    mine = board.dags(permitted)
    found = [line for line in board.lines(mine) if wanted.finds(line)]
    seen = [line for line in found if line.is_trial is wanted.trials]
    chosen = [line for line in seen if wanted.state in ("", line.state)]
    return {
        "jobs": [row(job) for job in board.now(chosen[offset : offset + limit])],
        "total": len(chosen),
        "trials": sum(line.is_trial for line in found),
        "states": Counter(line.state for line in seen),
        "dags": sorted(mine - {""}),
        "warning": board.warning(),
    }


def first_screen(board: Board, *, permitted: Permitted) -> dict[str, Any]:
    """Return what runs, what waits and why, what failed last, and the newest runs."""
    board.look()
    mine = board.dags(permitted)
    going_on = [line for line in board.open() if line.dag_id in mine]
    waits = [line for line in going_on if line.state == "queued"]
    active = [line for line in going_on if line.state not in ("queued", UNREADABLE)]
    ends = [end for end in board.ends(runs=MOST_ENDS) if permitted(end.origin.dag_id)]
    live = board.now([*active[:MOST], *waits[-MOST:]])  # of what waits, the first in line
    (shown, _), noted = board.runs(ends, mine, MOST), board.noted()
    return {
        "running": [row(job) for job in live if job.state != "queued"],
        "waiting": [row(job) for job in reversed(live) if job.state == "queued"],
        **_failed(board, mine, ends, {"running": len(active), "waiting": len(waits)}),
        "runs": [brief(parts.run(noted)) for parts in shown],
        "states": board.ended(mine) + Counter(line.state for line in going_on),
        "warning": board.warning(),
    }


def list_runs(
    board: Board, *, permitted: Permitted, dag: str = "", state: str = "", offset: int = 0, limit: int = 50
) -> dict[str, Any]:
    """Return one page of the runs, newest first; all, or those of a Dag or in one state."""
    board.look()
    mine = board.dags(permitted)
    asked = mine & {dag} if dag else mine
    ends = [
        end
        for end in board.ends(dag_id=dag, runs=offset + (MOST_ROWS if state else limit))
        if permitted(end.origin.dag_id)
    ]
    noted = board.noted()

    def state_of(parts: RunParts) -> str:
        told = (parts.key.dag_id, parts.key.run_id) in noted
        return (not told and board.settled(parts)) or brief(parts.run(noted))["state"]

    found, total = board.runs(ends, asked, None if state else offset + limit)
    if state:
        found = [parts for parts in found if state_of(parts) == state]
        total = len(found)
    shown = [brief(parts.run(noted)) for parts in found[offset : offset + limit]]
    return {"runs": shown, "total": total, "dags": sorted(mine - {""})}


def _failed(
    board: Board, dags: frozenset[str], ends: Iterable[TaskEnd], in_all: dict[str, int]
) -> dict[str, Any]:
    """Return the tasks of runs whose newest try failed, the newest failure first, with a job or without; and their number.

    A failure is ``mended`` where its task has succeeded since, in whatever run.
    """
    unreadable = [line for line in board.open() if line.state == UNREADABLE and line.dag_id in dags]
    found: dict[object, tuple[float, JobLine | TaskEnd]] = {
        line.job_id: (line.at, line) for line in unreadable
    }
    found |= {task: (line.at, line) for task, line in board.bad(dags).items()}
    seen, well = set[object](), defaultdict[object, float](float)
    for end in ends:
        task = task_of(end.origin)
        tried = board.newest_end(task)
        if end.state is JobState.SUCCEEDED:
            well[task[:2]] = max(well[task[:2]], end.at)
        if task not in seen and (tried is None or end.at >= tried.at):
            found.pop(task, None)
            if end.state is JobState.FAILED:  # the job of the try tells more
                found[task] = end.at, tried if tried and tried.bad else end
        seen.add(task)
    failed = []
    for at, what in nlargest(MOST, found.values(), key=lambda each: each[0]):
        origin = what.origin if isinstance(what, TaskEnd) else what.tried.origin if what.tried else Origin()
        stage = origin.dag_id, origin.stage
        mended = bool(origin.dag_id) and max(board.succeeded(*stage), well[stage]) > at
        told = [what] if isinstance(what, TaskEnd) else board.jobs([what])
        failed += [{**_failure(each), "ended": at, "mended": mended} for each in told]
    return {"failed": failed, "in_all": {**in_all, "failed": len(found)}}


def _failure(what: Job | TaskEnd) -> dict[str, Any]:
    if isinstance(what, Job):
        return {**row(what), "state": "failed" if what.status else what.state}
    origin = what.origin
    return {
        "job_id": "",
        "state": "failed",
        "name": f"{origin.dag_id}.{origin.stage}",
        "origin": plain(origin),
        **task(origin),
        "error": what.line,
    }


def runs_waiting(dags: Iterable[str], *, permitted: Callable[[str], bool]) -> list[dict[str, Any]]:
    """Return the number of waiting runs of each Dag that has some, and what holds them there."""
    mine = [dag_id for dag_id in dags if permitted(dag_id)]
    going = (DagRunState.QUEUED, DagRunState.RUNNING)
    with create_session() as session:
        found = session.execute(
            select(DagRun.dag_id, DagRun.state, func.count())
            .where(DagRun.state.in_(going), DagRun.dag_id.in_(mine))
            .group_by(DagRun.dag_id, DagRun.state)
        )
        counts = {(dag_id, state): many for dag_id, state, many in found}
        waiting = sorted(dag_id for dag_id, state in counts if state == DagRunState.QUEUED)
        known = {
            dag.dag_id: dag for dag in session.scalars(select(DagModel).where(DagModel.dag_id.in_(waiting)))
        }
    return [
        {
            "dag_id": dag_id,
            "waiting": counts[dag_id, DagRunState.QUEUED],
            "running": counts.get((dag_id, DagRunState.RUNNING), 0),
            "most": known[dag_id].max_active_runs if dag_id in known else None,
            "paused": bool(known[dag_id].is_paused) if dag_id in known else False,
        }
        for dag_id in waiting
    ]
