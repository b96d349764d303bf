"""The runs of Dags as the page shows them: each stage with its state, its jobs, and what they were given and made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from muster.core.origin import MUSTER_RUN
from muster.core.status import JobState
from muster.core.wire import plain
from muster.ext.page.board import Job, Line
from muster.ext.page.described import row
from muster.volumes.base import TaskEnd
from muster.volumes.runs import Run, RunStage


def brief(run: Run) -> dict[str, Any]:
    """Return a run in short: its state and times, and the newest job of each stage, or how its task ended without."""
    going_on = {stage.state for stage in run.stages if not stage.state.ended}
    waits = run.state is JobState.RUNNING and going_on == {JobState.QUEUED}
    return {
        "dag_id": run.dag_id,
        "run_id": run.run_id,
        **_address(run.run_id, run.dag_id),
        "state": "queued" if waits else run.state.value,
        "began": run.began,
        "ended": run.ended,
        "stages": [_stage(stage) for stage in run.stages],
    }


def whole(run: Run, jobs: Sequence[Job], trials: Sequence[Line], ends: Sequence[TaskEnd]) -> dict[str, Any]:
    """Return a run with every job of each stage, what it was given and what it made.

    :param jobs: the run's without those of trials, newest first, as `trials` and `ends`.
    """
    newest = {end.origin.stage: end for end in reversed(ends)}
    told = [
        each for each in run.stages if not each.jobs or each.kept_of or each.state is not each.jobs[-1].state
    ]
    return {
        **brief(run),
        "jobs": [_line(job) for job in reversed(jobs)],
        "ends": [_end(stage, newest[stage.title]) for stage in told if stage.title in newest],
        "searching": [_searching(stage, trials) for stage in told if stage.title not in newest],
    }


def of_records(run: Run) -> dict[str, Any]:
    """Return a run whose jobs gc deleted: its stages as the records of their versions have them."""
    return {**brief(run), "jobs": [_recorded(stage) for stage in run.stages], "ends": [], "searching": []}


def _stage(stage: RunStage) -> dict[str, Any]:
    job_id = stage.kept_of or (stage.jobs[-1].job_id if stage.jobs else "")
    known = {"stage": stage.title, "state": _word(stage)}
    return (
        {"job_id": "", "search_id": stage.search_id, **known}
        if stage.search_id
        else {"job_id": job_id, **known}
    )


def _word(stage: RunStage) -> str:
    return "kept" if stage.kept_of else stage.state.value


def _searching(stage: RunStage, trials: Sequence[Line]) -> dict[str, Any]:
    """Return a search whose task has not ended since its newest trial began. :param trials: the run's, newest first."""
    tried = [line.tried for line in trials if line.tried and line.tried.origin.stage == stage.title]
    over = stage.state.ended
    return {
        "stage": stage.title,
        "state": stage.state.value,
        "search_id": stage.search_id,
        "submitted": tried[-1].submitted,
        "started": tried[-1].started,
        "ended": max(each.ended or 0.0 for each in tried) if over else None,
    }


def _end(stage: RunStage, end: TaskEnd) -> dict[str, Any]:
    return {
        "stage": stage.title,
        "state": _word(stage),
        "line": end.line,
        "kept_of": end.kept_of,
        "outputs": {name: list(made) for name, made in end.outputs.items()},
        "submitted": end.began,
        "started": end.began,
        "ended": end.at,
        "search_id": stage.search_id,
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
        "stage": job.stage,
        "params": plain(spec.params) if spec else {},
        "metrics": dict(result.metrics) if result else {},
        "outputs": {name: list(made) for name, made in result.outputs.items()} if result else {},
        "inputs": {name: [v.address for v in given.versions] for name, given in spec.inputs.items()}
        if spec
        else {},
    }


def _address(run_id: str, dag_id: str) -> dict[str, Any]:
    """Return where Airflow shows the run; None where this Airflow does not know it."""
    if run_id.startswith(MUSTER_RUN):
        return {"by_muster_run": True, "run_url": None}
    dag, name = (quote(part, safe="") for part in (dag_id, run_id))
    return {"by_muster_run": False, "run_url": f"../dags/{dag}/runs/{name}"}
