"""The page's lists of jobs: those of a search, and the first screen's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from muster.airflow.plugin import runs
from muster.airflow.plugin.board import UNREADABLE, Board, Job
from muster.airflow.plugin.described import failed_expectations, row

MOST = 8
"""Rows of each list of the first screen."""

BAD = ("failed", UNREADABLE)

Permitted = Callable[[str], bool]
"""Whether the user may see the jobs of a Dag, by its id."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """Which jobs are asked for; an empty field asks for all.

    :param text: with it in their id, name, task or run.
    """

    state: str = ""
    text: str = ""
    dag: str = ""
    run: str = ""

    def finds(self, job: Job) -> bool:
        """Whether a job is among them, its state aside."""
        return (
            self.dag in ("", job.dag_id)
            and self.run in ("", job.run_id)
            and (not self.text or self.text.lower() in job.words)
        )


def search(
    board: Board, wanted: Search, *, permitted: Permitted, offset: int = 0, limit: int = 50
) -> dict[str, Any]:
    """Return one page of the jobs that are asked for, newest first, their numbers by state, and every Dag."""
    mine = [job for job in board.jobs() if permitted(job.dag_id)]
    seen = [job for job in mine if wanted.finds(job)]
    chosen = [job for job in seen if wanted.state in ("", job.state)]
    return {
        "jobs": [row(job) for job in board.now(chosen[offset : offset + limit])],
        "total": len(chosen),
        "states": Counter(job.state for job in seen),
        "dags": sorted({job.dag_id for job in mine if job.dag_id}),
        "warning": board.warning(),
    }


def first_screen(board: Board, *, permitted: Permitted) -> dict[str, Any]:
    """Return what runs, what waits and why, what failed last, and the newest runs."""
    mine = [job for job in board.jobs() if permitted(job.dag_id)]
    waits = [job for job in mine if job.state == "queued"]
    active = [job for job in mine if job.status and not job.ended and job.state != "queued"]
    ends = [end for end in board.ends(runs=MOST) if permitted(end.origin.dag_id)]
    live = board.now([*active[:MOST], *waits[-MOST:]])  # of what waits, the first in line
    mended = _mended(mine)
    return {
        "running": [row(job) for job in live if job.state != "queued"],
        "waiting": [row(job) for job in reversed(live) if job.state == "queued"],
        "in_all": {"running": len(active), "waiting": len(waits)},
        "failed": [{**row(job), "mended": job.job_id in mended} for job in islice(_bad(mine), MOST)],
        "runs": [runs.brief(run) for run in runs.of_jobs(mine, ends)[:MOST]],
        "states": Counter(job.state for job in mine),
        "warning": board.warning(),
    }


def _bad(jobs: Iterable[Job]) -> Iterable[Job]:
    return (job for job in jobs if job.state in BAD or failed_expectations(job))


def _mended(jobs: Sequence[Job]) -> set[str]:
    """Return the failed jobs whose task has succeeded since; `jobs` are newest first."""
    good: set[tuple[str, str, int]] = set()
    mended = set()
    for job in jobs:
        if job.spec is None or not job.dag_id:
            continue
        task = (job.dag_id, job.spec.origin.task_id, job.spec.origin.map_index)
        if job.state in BAD or failed_expectations(job):
            mended |= {job.job_id} if task in good else set()
        elif job.state == "succeeded":
            good.add(task)
    return mended
