"""Jobs and runs as JSON values: a line of a list, or everything that the page shows of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from muster.airflow.page.route import task
from muster.core.job import JobSpec
from muster.core.origin import MUSTER_RUN, stage_title
from muster.core.status import JobState, JobStatus
from muster.core.wire import plain
from muster.ext.page import snapshots
from muster.ext.page.board import Job, JobLine
from muster.volumes import runs
from muster.volumes.base import TaskEnd
from muster.volumes.lineage import StageDifference, stages
from muster.volumes.protocols import LocalStore
from muster.volumes.runs import Run, RunStage

MADE = 3


def row(job: Job) -> dict[str, Any]:
    """Return one line of the list, as JSON values. Times are seconds since the epoch."""
    return {
        "job_id": job.job_id,
        "state": job.state,
        "error": job.error,
        **_asked(job.spec),
        **_became(job.status),
        "failed_expectations": job.failed_expectations,
    }


def drift_report(job: Job) -> dict[str, Any] | None:
    """Return the report that a job made of a deployment's drift; None while its files cannot be read."""
    result = job.status.result if job.status else None
    if job.status is None or result is None:
        return None
    numbers = {metric: result.metrics.get(metric, 0) for metric in ("drifted", "columns", "rows")}
    return {"address": result.outputs["report"][0], "at": job.status.ended, **numbers}


def _asked(spec: JobSpec | None) -> dict[str, Any]:
    if spec is None:
        return {}
    return {
        "name": spec.name,
        "origin": plain(spec.origin),
        **task(spec.origin),
        "queue": spec.queue,
        "priority": spec.priority,
        "ranks": spec.world_size,
        "gpus": sum(role.replicas * role.resources.gpus for role in spec.roles),
    }


def _became(status: JobStatus | None) -> dict[str, Any]:
    if status is None:
        return {}
    return {
        "submitted": status.submitted,
        "started": status.started,
        "ended": status.ended,
        "reason": status.reason,
        "restarts": status.restarts,
        "alive": status.alive,
        "verdict": plain(status.verdict),
        "progress": {
            name: {"text": str(number), **plain(number)} for name, number in status.progress.items()
        },
        "links": dict(status.links),
        "made": list(status.addresses[:MADE]),
        "made_in_all": len(status.addresses),
    }


def detail(job: Job) -> dict[str, Any]:
    """Return everything that the page shows of one job; without env variables and secrets."""
    assert job.spec is not None
    assert job.status is not None
    result = job.status.result
    return {
        **row(job),
        "search": job.status.owner if job.is_trial else None,
        "image": job.spec.image,
        "launcher": job.spec.launcher.value,
        "roles": plain(job.spec.roles),
        "inputs": {name: [v.address for v in given.versions] for name, given in job.spec.inputs.items()},
        "outputs": {name: list(result.outputs.get(name, ())) if result else [] for name in job.spec.outputs},
        "writes": {name: output.volume for name, output in job.spec.outputs.items()},
        "params": plain(job.spec.params),
        "metrics": dict(result.metrics) if result else {},
        "run_timeout_seconds": job.spec.run_timeout_seconds,
    }


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


def whole(
    run: Run, jobs: Sequence[Job], trials: Sequence[JobLine], ends: Sequence[TaskEnd]
) -> dict[str, Any]:
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


def _searching(stage: RunStage, trials: Sequence[JobLine]) -> dict[str, Any]:
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


RunName = tuple[str, str]
"""A Dag's id and a run's."""


def differences(
    store: LocalStore, old: RunName, new: RunName, *, readable: Callable[[str], bool]
) -> dict[str, Any]:
    """Return what differs between two runs, stage by stage; of the code by file and line.

    :param readable: whether the user may read the code of a Dag, by its id.
    :raises NotFound: the store knows no such run.
    """
    before, after = runs.run(store, *old), runs.run(store, *new)
    with_code = all(readable(dag_id) for dag_id, _ in (old, new))
    return {
        "old": brief(before),
        "new": brief(after),
        "stages": [_difference(store, each, with_code=with_code) for each in stages(before, after)],
    }


def _difference(store: LocalStore, each: StageDifference, *, with_code: bool) -> dict[str, Any]:
    code = next(((fact.old, fact.new) for fact in each.facts if fact.name == "code"), (None, None))
    return {
        "stage": stage_title(each.task_id, each.map_index),
        "only": each.only,
        "facts": plain(each.facts),
        "seconds": list(each.seconds),
        "code": snapshots.changes(store, *code) if with_code else None,
    }
