"""The runs of Dags as the page shows them: their jobs, by stage, with what each took and made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from muster.airflow.plugin.board import Job
from muster.airflow.plugin.described import row
from muster.core.job import MUSTER_RUN
from muster.core.wire import plain
from muster.volumes.runs import Run as RecordedRun
from muster.volumes.runs import RunStage


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a Dag. :param jobs: oldest first; at least one."""

    dag_id: str
    run_id: str
    jobs: tuple[Job, ...]


def of_jobs(jobs: Iterable[Job]) -> Iterator[Run]:
    """Yield the runs of these jobs, which are newest first: the run with the newest job first."""
    found: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        if job.dag_id and job.run_id:
            found.setdefault((job.dag_id, job.run_id), []).append(job)
    for (dag_id, run_id), members in found.items():
        yield Run(dag_id=dag_id, run_id=run_id, jobs=tuple(reversed(members)))


def brief(run: Run) -> dict[str, Any]:
    """Return a run in short: its state and times, and the newest job of each stage."""
    newest = _newest(run.jobs)
    times = [job.status for job in run.jobs if job.status]
    ended = [status.ended for status in times]
    return {
        "dag_id": run.dag_id,
        "run_id": run.run_id,
        **_address(run.run_id, run.dag_id),
        "state": _state(newest),
        "began": min((status.submitted for status in times), default=None),
        "ended": None if None in ended else max((each for each in ended if each), default=None),
        "stages": [{"job_id": job.job_id, "stage": _stage(job), "state": job.state} for job in newest],
    }


def whole(run: Run, *, now: Iterable[Job]) -> dict[str, Any]:
    """Return a run with every job of each stage, what it was given and what it made.

    :param now: its jobs as they are now.
    """
    jobs = tuple(now)
    return {
        **brief(Run(dag_id=run.dag_id, run_id=run.run_id, jobs=jobs)),
        "jobs": [_line(job) for job in jobs],
    }


def of_records(run: RecordedRun) -> dict[str, Any]:
    """Return a run whose jobs gc deleted: its stages as the records of their versions have them."""
    return {
        "dag_id": run.dag_id,
        "run_id": run.run_id,
        **_address(run.run_id, run.dag_id),
        "state": run.state.value,
        "began": run.began,
        "ended": run.ended,
        "stages": [{"job_id": "", "stage": stage.title, "state": stage.state.value} for stage in run.stages],
        "jobs": [_recorded(stage) for stage in run.stages],
    }


def _recorded(stage: RunStage) -> dict[str, Any]:
    return {
        "job_id": "",
        "stage": stage.title,
        "state": stage.state.value,
        "params": plain(stage.params),
        "metrics": dict(stage.metrics),
        "outputs": {name: list(made) for name, made in stage.versions.items()},
        "inputs": {name: [v.address for v in given] for name, given in stage.inputs.items()},
    }


def _line(job: Job) -> dict[str, Any]:
    spec, result = job.spec, job.status.result if job.status else None
    return {
        **row(job),
        "stage": _stage(job),
        "params": plain(spec.params) if spec else {},
        "metrics": dict(result.metrics) if result else {},
        "outputs": {name: list(made) for name, made in result.outputs.items()} if result else {},
        "inputs": {name: [v.address for v in given.versions] for name, given in spec.inputs.items()}
        if spec
        else {},
    }


def _stage(job: Job) -> str:
    assert job.spec is not None  # else it is of no run
    origin = job.spec.origin
    return origin.task_id if origin.map_index < 0 else f"{origin.task_id}[{origin.map_index}]"


def _newest(jobs: Sequence[Job]) -> list[Job]:
    """Return the newest job of each stage, in the order in which the stages began."""
    return list({_stage(job): job for job in jobs}.values())


def _state(newest: Iterable[Job]) -> str:
    """Return the state of a run: that of the stage which needs a look first."""
    states = {job.state for job in newest}
    going_on = states - {"succeeded", "failed", "cancelled", "unreadable"}
    if going_on:
        return "queued" if going_on == {"queued"} else "running"
    return next((each for each in ("failed", "unreadable", "cancelled") if each in states), "succeeded")


def _address(run_id: str, dag_id: str) -> dict[str, Any]:
    """Return where Airflow shows the run; None where this Airflow does not know it."""
    if run_id.startswith(MUSTER_RUN):
        return {"by_muster_run": True, "run_url": None}
    dag, name = (quote(part, safe="") for part in (dag_id, run_id))
    return {"by_muster_run": False, "run_url": f"../dags/{dag}/runs/{name}"}
