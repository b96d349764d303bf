"""The page's lists of jobs: those of a search, and the first screen's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from muster.airflow.page.task import UNREADABLE, task
from muster.core.origin import Origin
from muster.core.status import JobState
from muster.core.wire import plain
from muster.ext.page import runs
from muster.ext.page.board import Board, Job
from muster.ext.page.described import failed_expectations, row
from muster.ext.page.graph import Permitted
from muster.volumes.base import TaskEnd

MOST = 8
"""Rows of each list of the first screen."""

MOST_ENDS = 20
"""Runs whose tasks without a job are looked at for failures, the newest."""

BAD = ("failed", UNREADABLE)


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

    def finds(self, job: Job) -> bool:
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
    mine = [job for job in board.jobs() if permitted(job.dag_id)]
    found = [job for job in mine if wanted.finds(job)]
    seen = [job for job in found if job.is_trial is wanted.trials]
    chosen = [job for job in seen if wanted.state in ("", job.state)]
    return {
        "jobs": [row(job) for job in board.now(chosen[offset : offset + limit])],
        "total": len(chosen),
        "trials": sum(job.is_trial for job in found),
        "states": Counter(job.state for job in seen),
        "dags": sorted({job.dag_id for job in mine if job.dag_id}),
        "warning": board.warning(),
    }


def first_screen(board: Board, *, permitted: Permitted) -> dict[str, Any]:
    """Return what runs, what waits and why, what failed last, and the newest runs."""
    mine = [job for job in board.jobs() if permitted(job.dag_id)]
    waits = [job for job in mine if job.state == "queued"]
    active = [job for job in mine if job.status and not job.ended and job.state != "queued"]
    ends = [end for end in board.ends(runs=MOST_ENDS) if permitted(end.origin.dag_id)]
    live = board.now([*active[:MOST], *waits[-MOST:]])  # of what waits, the first in line
    bad, noted = _failed(mine, ends), board.noted()
    return {
        "running": [row(job) for job in live if job.state != "queued"],
        "waiting": [row(job) for job in reversed(live) if job.state == "queued"],
        "in_all": {"running": len(active), "waiting": len(waits), "failed": len(bad)},
        "failed": bad[:MOST],
        "runs": [runs.brief(parts.run(noted)) for parts in runs.of_jobs(mine, ends)[:MOST]],
        "states": Counter(job.state for job in mine),
        "warning": board.warning(),
    }


def _failed(jobs: Iterable[Job], ends: Iterable[TaskEnd]) -> list[dict[str, Any]]:
    """Return the tasks of runs whose newest try failed, the newest failure first; with a job, or without.

    A trial is no task: its search goes on, and fails by itself. A failure is ``mended`` where its task has succeeded
    since, in whatever run.
    """
    outcomes: list[tuple[float, Origin, Job | TaskEnd]] = [(end.at, end.origin, end) for end in ends]
    outcomes += [_outcome(job) for job in jobs if not job.is_trial and (job.ended or job.status is None)]
    outcomes.sort(key=lambda each: each[0], reverse=True)
    newest, good = dict[object, dict[str, Any] | None](), set[object]()
    for at, origin, what in outcomes:
        stage: object = (origin.dag_id, origin.stage) if origin.dag_id else object()
        of_run = (stage, origin.run_id)
        bad = _is_bad(what)
        if of_run not in newest:
            newest[of_run] = {**_failure(what), "ended": at, "mended": stage in good} if bad else None
        elif bad and isinstance(what, Job) and (known := newest[of_run]) and not known["job_id"]:
            known.update({**_failure(what), "ended": known["ended"]})  # the job of the try tells more
        if what.state in ("succeeded", JobState.SUCCEEDED) and not bad:
            good.add(stage)
    return [failure for failure in newest.values() if failure]


def _outcome(job: Job) -> tuple[float, Origin, Job]:
    at = (job.status.ended or job.status.submitted) if job.status else 0.0
    return at, job.spec.origin if job.spec else Origin(), job


def _is_bad(what: Job | TaskEnd) -> bool:
    if isinstance(what, TaskEnd):
        return what.state is JobState.FAILED
    return what.state in BAD or bool(failed_expectations(what))


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
