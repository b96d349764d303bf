"""The runs of Dags as the page shows them: their jobs, by stage, with what each took and made, and tasks without a job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from muster.core.origin import MUSTER_RUN
from muster.core.status import JobState
from muster.core.wire import plain
from muster.ext.page.board import Job
from muster.ext.page.described import row
from muster.volumes.base import TaskEnd
from muster.volumes.runs import Run as RecordedRun
from muster.volumes.runs import RunStage, tells_more


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a Dag.

    :param jobs: oldest first; those of trials are in `trials`, by the task that searches.
    :param ends: of tasks that no job records, newest first.
    :param noted: its state, where more is noted of it than its jobs and ends tell.
    """

    dag_id: str
    run_id: str
    jobs: tuple[Job, ...] = ()
    ends: tuple[TaskEnd, ...] = ()
    noted: JobState | None = None
    trials: Mapping[str, tuple[Job, ...]] = field(default_factory=dict)

    @property
    def began(self) -> float:
        """When its first job was submitted, or its first task without one began."""
        oldest = [*self.jobs[:1], *(jobs[0] for jobs in self.trials.values())]
        submitted = [job.status.submitted for job in oldest if job.status]
        return min([*submitted, *(end.began for end in self.ends)], default=0.0)


def of_jobs(
    jobs: Iterable[Job],
    ends: Iterable[TaskEnd] = (),
    noted: Mapping[tuple[str, str], JobState] | None = None,
) -> list[Run]:
    """Return the runs of these jobs and tasks, which are newest first: the run that began last is the first."""
    members: dict[tuple[str, str], list[Job]] = defaultdict(list)
    ended: dict[tuple[str, str], list[TaskEnd]] = defaultdict(list)
    for job in jobs:
        if job.dag_id and job.run_id:
            members[job.dag_id, job.run_id].append(job)
    for end in ends:
        ended[end.origin.dag_id, end.origin.run_id].append(end)
    keys = dict.fromkeys([*members, *ended])
    told = noted or {}
    found = [_run(key, members.get(key, ()), ended.get(key, ()), told.get(key)) for key in keys]
    return sorted(found, key=lambda run: run.began, reverse=True)


def _run(key: tuple[str, str], jobs: Sequence[Job], ends: Sequence[TaskEnd], noted: JobState | None) -> Run:
    trials: dict[str, list[Job]] = defaultdict(list)
    for job in reversed(jobs):
        if job.is_trial:
            trials[job.stage].append(job)
    return Run(
        dag_id=key[0],
        run_id=key[1],
        jobs=tuple(job for job in reversed(jobs) if not job.is_trial),
        ends=tuple(ends),
        noted=noted,
        trials={stage: tuple(each) for stage, each in trials.items()},
    )


def brief(run: Run) -> dict[str, Any]:
    """Return a run in short: its state and times, and the newest job of each stage, or how its task ended without."""
    newest, ends, searching = _newest(run.jobs), _telling(run), _searching(run)
    statuses = [job.status for job in run.jobs if job.status]
    going = [each["ended"] for each in searching.values()]
    ended = [*(status.ended for status in statuses), *(end.at for end in ends.values()), *going]
    stages = {job.stage: {"job_id": job.job_id, "stage": job.stage, "state": job.state} for job in newest}
    stages |= {
        stage: {"job_id": end.kept_of, "stage": stage, "state": _word(end)} for stage, end in ends.items()
    }
    for stage, jobs in run.trials.items():
        known = searching.get(stage) or stages.get(stage, {"state": "cancelled"})
        stages[stage] = {"job_id": "", "search_id": _owner(jobs), "stage": stage, "state": known["state"]}
    began = [*(status.submitted for status in statuses), *(end.began for end in ends.values())]
    began += [each["submitted"] for each in searching.values()]
    order = {stage: end.began for stage, end in ends.items()}
    order |= {stage: each["submitted"] for stage, each in searching.items()}
    order |= {job.stage: job.status.submitted for job in reversed(run.jobs) if job.status}
    states = [job.state for job in newest if job.stage not in ends]
    states += [each["state"] for each in searching.values()]
    return {
        "dag_id": run.dag_id,
        "run_id": run.run_id,
        **_address(run.run_id, run.dag_id),
        "state": run.noted.value if run.noted else _state({*states, *(e.state.value for e in ends.values())}),
        "began": min(began, default=None),
        "ended": None
        if None in ended or run.noted is JobState.RUNNING
        else max((each for each in ended if each), default=None),
        "stages": sorted(stages.values(), key=lambda stage: order.get(stage["stage"], 0.0)),
    }


def whole(run: Run, *, now: Iterable[Job]) -> dict[str, Any]:
    """Return a run with every job of each stage, what it was given and what it made.

    :param now: its jobs as they are now.
    """
    jobs = tuple(now)
    return {
        **brief(replace(run, jobs=jobs)),
        "jobs": [_line(job) for job in jobs],
        "ends": [
            {**_end(stage, end), "search_id": _owner(run.trials.get(stage, ()))}
            for stage, end in _telling(run).items()
        ],
        "searching": list(_searching(run).values()),
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
        "ends": [],
        "searching": [],
    }


def _searching(run: Run) -> dict[str, dict[str, Any]]:
    """Return the searches whose task has not ended since their newest trial began, by stage."""
    told = {stage: end.at for stage, end in _telling(run).items()}
    found = {}
    for stage, jobs in run.trials.items():
        statuses = [job.status for job in jobs if job.status]
        if not statuses or told.get(stage, 0.0) >= statuses[-1].submitted:
            continue
        over = all(status.state.ended for status in statuses)
        found[stage] = {
            "stage": stage,
            "state": "cancelled" if over else "running",
            "search_id": _owner(jobs),
            "submitted": statuses[0].submitted,
            "started": statuses[0].started,
            "ended": max((status.ended or 0.0 for status in statuses), default=0.0) if over else None,
        }
    return found


def _owner(trials: Sequence[Job]) -> str:
    """Return the search of some trials, by the newest; empty where it is not known."""
    return next((job.status.owner or "" for job in reversed(trials) if job.status), "")


def _end(stage: str, end: TaskEnd) -> dict[str, Any]:
    return {
        "stage": stage,
        "state": _word(end),
        "line": end.line,
        "kept_of": end.kept_of,
        "outputs": {name: list(made) for name, made in end.outputs.items()},
        "submitted": end.began,
        "started": end.began,
        "ended": end.at,
    }


def _word(end: TaskEnd) -> str:
    return "kept" if end.kept_of else end.state.value


def _telling(run: Run) -> dict[str, TaskEnd]:
    """Return how tasks ended, by stage, where their newest job does not tell it; in the order in which they ended."""
    newest = {job.stage: job.status for job in _newest(run.jobs)}
    found: dict[str, TaskEnd] = {}
    for end in reversed(run.ends):
        status = newest.get(end.origin.stage)
        if status is None or tells_more(end, state=status.state, submitted=status.submitted):
            found[end.origin.stage] = end
    return found


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


def _newest(jobs: Sequence[Job]) -> list[Job]:
    """Return the newest job of each stage, in the order in which the stages began."""
    return list({job.stage: job for job in jobs}.values())


def _state(states: Set[str]) -> str:
    """Return the state of a run with stages in these states: the one which needs a look first."""
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
