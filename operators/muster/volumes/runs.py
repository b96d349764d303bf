"""The runs of Dags, as the store knows them: from the ledger's jobs, from how tasks without a job ended, and from
records where gc deleted the jobs.

Airflow is not asked, so tasks of other operators are not there; the process that runs a run notes that it goes on.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from muster.core.address import pinned
from muster.core.data import Pinned
from muster.core.errors import MusterError, NotFound
from muster.core.job import Interpreter, JobSpec
from muster.core.origin import Origin, stage_title
from muster.core.status import JobState, JobStatus
from muster.volumes.base import Record, TaskEnd
from muster.volumes.protocols import Ledger, Store

MOST_RECORDS = 1_000  # of each volume that are looked at, the newest


@dataclass(frozen=True, kw_only=True)
class StageJob:
    """One job of a stage. Times are seconds since the epoch.

    :param seconds: from its start to its end; None where it has not started, or not ended.
    """

    job_id: str
    state: JobState
    submitted: float
    started: float | None = None
    ended: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunStage:
    """One task of a run, or one of the tasks that it was mapped to.

    :param map_index: -1 for a task that is not mapped.
    :param state: of its newest job; of a task without one, how it ended.
    :param jobs: all its tries, oldest first; empty where gc deleted them and records alone are left.
    :param seconds: what its newest job took; None where that is not known, or not over.
    :param versions: the pinned addresses that its newest job made, by output.
    :param verdict: cause, rank and message of why its newest job failed, or why the task did, one line; empty where it
        did not.
    :param line: what a task without a job says of itself, such as a gate or a release; else empty.
    :param kept_of: the job that made its versions, where the task kept them and ran nothing; params, inputs and code
        are those of that job. Empty where the task made them.
    :param search_id: the search whose trials the task trains; empty of another task.
    """

    task_id: str
    map_index: int = -1
    state: JobState
    jobs: tuple[StageJob, ...] = ()
    seconds: float | None = None
    name: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    inputs: Mapping[str, tuple[Pinned, ...]] = field(default_factory=dict)
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    code: str | None = None
    image: str = ""
    image_digest: str = ""
    entrypoint: str = ""
    verdict: str = ""
    line: str = ""
    kept_of: str = ""
    search_id: str = ""
    interpreter: Interpreter | None = None

    @property
    def title(self) -> str:
        """Its task, as :func:`muster.core.origin.stage_title` writes it."""
        return stage_title(self.task_id, self.map_index)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a Dag. Times are seconds since the epoch.

    :param instance: the Airflow that it ran in.
    :param state: ``running`` while a job of it runs or waits, else ``failed`` or ``cancelled`` if a stage is, else
        ``succeeded``. One that is noted as going on is ``running`` in any case, and ``failed`` where its ``muster run``
        has died; as :func:`as_held` has it where a process of this machine runs it.
    :param began: when its first job was submitted, or its first task without one began; where gc deleted its jobs, when
        its first version was made.
    :param ended: the end of its last job or task; None while it runs.
    :param seconds: the time in which a stage of it waited or ran, without that between two runs of a resumed one; None
        where its jobs are gone.
    :param stages: in the order in which they began.
    """

    dag_id: str
    run_id: str
    instance: str
    state: JobState
    began: float
    ended: float | None
    seconds: float | None = None
    stages: tuple[RunStage, ...]


class RunKey(NamedTuple):
    """What tells a run from all others."""

    instance: str
    dag_id: str
    run_id: str


class TriedJob(NamedTuple):
    """One job of a run, in short, and its documents where more than its state and times is asked for."""

    job_id: str
    name: str
    origin: Origin
    state: JobState
    submitted: float
    started: float | None
    ended: float | None
    owner: str | None
    documents: tuple[JobSpec, JobStatus] | None = None

    @classmethod
    def of(cls, spec: JobSpec, status: JobStatus, *, whole: bool = False) -> TriedJob:
        """Return a job by its documents, which it keeps where `whole` is True."""
        times = status.submitted, status.started, status.ended
        documents = (spec, status) if whole else None
        return cls(status.job_id, spec.name, spec.origin, status.state, *times, status.owner, documents)


class _TimedStage(NamedTuple):
    """A stage with the times of its part of the run; `last` is when its newest job was submitted, or it ended without."""

    stage: RunStage
    began: float
    ended: float | None
    last: float


def runs(store: Store, *, dag: str | None = None, limit: int = 20) -> list[Run]:
    """Return the newest runs, newest first: by when their newest job was submitted, or their newest task without one ended.

    It reads one origin for each job in the ledger, and the specs and statuses of at most twice `limit` runs.

    :param dag: only runs of this Dag.
    """
    jobs = _by_run(store.ledger.origins(dag_id=dag or ""))
    ends = _ends_by_run(store.ledger.task_ends(dag_id=dag or "", runs=limit))
    chosen = list(dict.fromkeys([*list(reversed(jobs))[:limit], *ends]))
    found = [(key, seen) for key, seen in zip(chosen, _seen(store, jobs, ends, chosen), strict=True) if seen]
    found.sort(key=lambda item: max(each.last for each in item[1]), reverse=True)
    told = noted(store.ledger)
    listed = [_of_stages(key, seen, told) for key, seen in found[:limit]]
    if len(listed) < limit:
        older = _of_records(_records(store, limit=min(MOST_RECORDS, 20 * limit), dag_id=dag or ""))
        listed += [run for key, run in older.items() if key not in chosen][: limit - len(listed)]
    return listed


def noted(ledger: Ledger) -> dict[tuple[str, str], JobState]:
    """Return the state of each run, by Dag and id, of which more is noted than its jobs and tasks tell."""
    found = {}
    for note in ledger.run_notes():
        if note.alive or note.run.by_muster_run:  # a triggerer may be away while its runs go on
            found[note.run.dag_id, note.run.run_id] = JobState.RUNNING if note.alive else JobState.FAILED
    return found


def as_held(run: Run, dead: Mapping[str, bool]) -> Run:
    """Return a run as the process that runs it tells: ``running`` between two stages and in one without a job, ``failed``
    where it died.

    :param dead: of each run that has not come to its end, whether its process has died.
    """
    if run.run_id not in dead:
        return run
    if dead[run.run_id]:
        return replace(run, state=JobState.FAILED, ended=run.ended or run.began + (run.seconds or 0.0))
    return replace(run, state=JobState.RUNNING, ended=None)


def run(store: Store, dag_id: str, run_id: str) -> Run:
    """Return one run of a Dag with all its stages. Of two Airflows that use one store, the newest such run.

    Stages whose jobs gc deleted are known by the versions that later stages read.

    :raises NotFound: the store knows no such run, or gc deleted its jobs and it made no version.
    """
    jobs = _by_run(store.ledger.origins(dag_id=dag_id, run_id=run_id))
    ends = _ends_by_run(store.ledger.task_ends(dag_id=dag_id, run_id=run_id, runs=1))
    if key := next(reversed(jobs), None) or next(iter(ends), None):
        (seen,) = _seen(store, jobs, ends, [key])
        if seen:
            return _of_stages(key, [*_read_by(store, key, seen), *seen], noted(store.ledger))
    older = _of_records(_records(store, limit=MOST_RECORDS, dag_id=dag_id, run_id=run_id))
    if not older:
        raise NotFound(
            f"no run {run_id!r:.80} of the Dag {dag_id!r:.80}: `muster runs ls` lists what this store knows of"
        )
    return next(iter(older.values()))


def names(store: Store) -> list[tuple[str, str]]:
    """Return the Dag and id of every run, oldest first: by when its newest job was submitted, or its newest task ended."""
    jobs = _by_run(store.ledger.origins())
    ends = _ends_by_run(store.ledger.task_ends(runs=MOST_RECORDS))
    keys = list(jobs)
    if (
        not ends.keys() <= jobs.keys()
    ):  # a run without a job has its place by time; else the ledger's order will do
        newest = {job_ids[-1]: key for key, job_ids in jobs.items()}
        last = {newest[each.job_id]: each.submitted for each in store.ledger.statuses(list(newest))}
        for key, several in ends.items():
            last[key] = max(last.get(key, 0.0), several[0].at)
        keys = sorted({**dict.fromkeys(jobs), **ends}, key=lambda key: last.get(key, 0.0))
    return [(key.dag_id, key.run_id) for key in keys]


def _by_run(origins: Mapping[str, Origin]) -> dict[RunKey, list[str]]:
    """Return the jobs of each run, oldest first; of the runs that with the newest job is the last."""
    found: dict[RunKey, list[str]] = {}
    for job_id, origin in origins.items():
        key = run_key(origin)
        found[key] = found.pop(key, [])  # now the last
        found[key].append(job_id)
    return found


def run_key(origin: Origin) -> RunKey:
    """Return the run of a task."""
    return RunKey(origin.instance, origin.dag_id, origin.run_id)


def _ends_by_run(ends: Iterable[TaskEnd]) -> dict[RunKey, list[TaskEnd]]:
    """Return how tasks of each run ended, the newest run first."""
    found: dict[RunKey, list[TaskEnd]] = defaultdict(list)
    for end in ends:
        found[run_key(end.origin)].append(end)
    return dict(found)


def _seen(
    store: Store,
    jobs: Mapping[RunKey, Sequence[str]],
    ends: Mapping[RunKey, Sequence[TaskEnd]],
    chosen: Sequence[RunKey],
) -> Iterator[list[_TimedStage]]:
    """Yield the stages of each chosen run; of all of them specs and statuses are asked for at once."""
    asked = [job_id for key in chosen for job_id in jobs.get(key, ())]
    specs = store.ledger.specs(asked)
    statuses = {status.job_id: status for status in store.ledger.statuses(asked)}
    for key in chosen:
        tried = [
            TriedJob.of(specs[job_id], statuses[job_id], whole=True)
            for job_id in jobs.get(key, ())
            if job_id in specs and job_id in statuses  # else it is damaged, or gc deleted it just now
        ]
        yield _of_run(tried, ends.get(key, ()), store)


@dataclass(frozen=True)
class RunParts:
    """The jobs of one run, oldest first, and how its tasks without one ended, newest first."""

    key: RunKey
    jobs: list[TriedJob] = field(default_factory=list)
    ends: list[TaskEnd] = field(default_factory=list)

    @classmethod
    def of(cls, jobs: list[TriedJob], ends: list[TaskEnd]) -> RunParts:
        """Return the run of these jobs and tasks, of which there is one or more."""
        return cls(run_key((jobs or ends)[0].origin), jobs, ends)

    @property
    def began(self) -> float:
        """When its first job was submitted, or its first task without one began."""
        return min([*(job.submitted for job in self.jobs), *(end.began for end in self.ends)])

    def run(self, told: Mapping[tuple[str, str], JobState]) -> Run:
        """Put the run together. It reads nothing: of what a task kept it has the addresses alone. :param told: see :func:`noted`."""
        return _of_stages(self.key, _of_run(self.jobs, self.ends), told)


def _of_run(
    tried: Sequence[TriedJob], ends: Sequence[TaskEnd], store: Store | None = None
) -> list[_TimedStage]:
    """Return the stages of a run by its jobs, oldest first, and its tasks without one, newest first."""
    stages: dict[tuple[str, int], list[TriedJob]] = defaultdict(list)
    searches: dict[tuple[str, int], list[TriedJob]] = defaultdict(list)
    for job in tried:
        of = stages if job.origin.trial < 0 else searches
        of[job.origin.task_id, job.origin.map_index].append(job)
    by_job = {task: _of_ledger(tries) for task, tries in stages.items()}
    searching = {task: _of_search(tries) for task, tries in searches.items()}
    found = {**searching, **by_job}
    for task, seen in _of_ends(store, ends, by_job).items():
        search = searching.get(task)
        if search is None:
            found[task] = seen
        elif seen.last >= search.last:
            found[task] = seen._replace(stage=replace(seen.stage, search_id=search.stage.search_id))
    return list(found.values())


def _of_ends(
    store: Store | None, ends: Sequence[TaskEnd], tried: Mapping[tuple[str, int], _TimedStage]
) -> dict[tuple[str, int], _TimedStage]:
    """Return the stages whose end is told by no job, by task: those without one, and those that tell more than theirs."""
    newest: dict[tuple[str, int], TaskEnd] = {}
    for end in reversed(ends):
        task = end.origin.task_id, end.origin.map_index
        seen = tried.get(task)
        if seen is None or _tells_more(end, state=seen.stage.state, submitted=seen.last):
            newest[task] = end
    kept = [_first(end) for end in newest.values() if end.outputs]
    records = {pinned(each.volume, each.number): each for each in (_known(store, kept) if store else ())}
    return {task: _of_end(end, records.get(_first(end)), tried.get(task)) for task, end in newest.items()}


def _tells_more(end: TaskEnd, *, state: JobState, submitted: float) -> bool:
    """Whether a task kept something after its newest job was submitted, or failed although that job did not.

    :param state: the job's. :param submitted: when it was, in seconds since the epoch.
    """
    failed = end.state is JobState.FAILED and state is JobState.SUCCEEDED
    return end.at >= submitted and (failed or bool(end.kept_of))


def _of_end(end: TaskEnd, record: Record | None, tried: _TimedStage | None) -> _TimedStage:
    origin, failed = end.origin, end.state is JobState.FAILED
    known: dict[str, Any] = {
        "state": end.state,
        "verdict": end.line if failed else "",
        "line": "" if failed else end.line,
        "kept_of": end.kept_of,
        "versions": end.outputs,
    }
    if record is not None:
        stage = _stage(replace(record, origin=origin), **known)
    elif tried is not None and not end.kept_of:
        stage = replace(tried.stage, state=end.state, verdict=end.line)
    else:  # it made nothing, or gc deleted what it kept
        stage = RunStage(
            task_id=origin.task_id, map_index=origin.map_index, seconds=max(0.0, end.at - end.began), **known
        )
    if tried is None:
        return _TimedStage(stage, end.began, end.at, end.at)
    return _TimedStage(replace(stage, jobs=tried.stage.jobs), tried.began, end.at, end.at)


def _first(end: TaskEnd) -> str:
    """Return the first version that a task kept; empty where it kept none."""
    return next((address for addresses in end.outputs.values() for address in addresses), "")


def _of_ledger(tries: Sequence[TriedJob]) -> _TimedStage:
    """Return the stage that these jobs tried, oldest first."""
    newest, jobs = tries[-1], tuple(_job(each) for each in tries)
    known: dict[str, Any] = {"state": newest.state, "jobs": jobs, "seconds": jobs[-1].seconds}
    if newest.documents is None:
        origin = newest.origin
        stage = RunStage(task_id=origin.task_id, map_index=origin.map_index, name=newest.name, **known)
    else:
        spec, status = newest.documents
        metrics = status.result.metrics if status.result else {}
        stage = _stage(
            Record.of_job(spec, status.job_id, metrics=metrics, modules=None, created=status.submitted),
            versions=status.result.outputs if status.result else {},
            verdict=status.verdict.line if status.verdict else "",
            **known,
        )
    return _TimedStage(stage, tries[0].submitted, newest.ended, newest.submitted)


def _of_search(trials: Sequence[TriedJob]) -> _TimedStage:
    """Return the stage that these trials' jobs belong to, as long as its task has not ended."""
    newest = trials[-1]
    going_on = [job for job in trials if not job.state.ended]
    stage = RunStage(
        task_id=newest.origin.task_id,
        map_index=newest.origin.map_index,
        state=JobState.RUNNING if going_on else JobState.CANCELLED,
        name=newest.name,
        search_id=newest.owner or "",
        line=f"{len({job.origin.trial for job in trials})} trials so far, {len(going_on)} of them running: muster search show",
    )
    return _TimedStage(stage, trials[0].submitted, None if going_on else newest.ended, newest.submitted)


def _stage(made: Record, **known: Any) -> RunStage:
    fields = ("params", "metrics", "inputs", "code", "image", "image_digest", "entrypoint", "interpreter")
    return RunStage(
        task_id=made.origin.task_id,
        map_index=made.origin.map_index,
        name=made.job_name,
        **{name: getattr(made, name) for name in fields},
        **known,
    )


def _job(job: TriedJob) -> StageJob:
    took = None
    if job.started is not None and job.ended is not None:
        took = max(0.0, job.ended - job.started)
    return StageJob(
        job_id=job.job_id,
        state=job.state,
        submitted=job.submitted,
        started=job.started,
        ended=job.ended,
        seconds=took,
    )


def _of_stages(
    key: RunKey, seen: Sequence[_TimedStage], told: Mapping[tuple[str, str], JobState] | None = None
) -> Run:
    known = (told or {}).get((key.dag_id, key.run_id))
    states = {each.stage.state for each in seen} if known is None else {known}
    going_on = any(not state.ended for state in states)
    bad = (state for state in (JobState.FAILED, JobState.CANCELLED) if state in states)
    return Run(
        dag_id=key.dag_id,
        run_id=key.run_id,
        instance=key.instance,
        state=JobState.RUNNING if going_on else next(bad, JobState.SUCCEEDED),
        began=min((each.began for each in seen), default=0.0),
        ended=None if going_on else max((each.ended or each.began for each in seen), default=0.0),
        seconds=_busy(seen),
        stages=tuple(each.stage for each in sorted(seen, key=lambda each: each.began)),
    )


def _busy(seen: Sequence[_TimedStage]) -> float | None:
    """Return the seconds in which a stage waited or ran; None where no stage says when."""
    now, spans = time.time(), list[tuple[float, float]]()
    for each in seen:
        jobs = [(job.submitted, job.ended or now) for job in each.stage.jobs]
        spans += jobs or [(each.began, each.ended or now)]
    busy, until = 0.0, 0.0
    for began, ended in sorted(spans):
        busy += max(0.0, ended - max(began, until))
        until = max(until, ended)
    return busy or None


def _read_by(store: Store, key: RunKey, seen: Sequence[_TimedStage]) -> list[_TimedStage]:
    """Return the stages that have no job any more, found by the versions of the same run that others read."""
    known = {(each.stage.task_id, each.stage.map_index) for each in seen}
    found, looked_at = list[Record](), set[str]()
    waiting = [pin.address for each in seen for pins in each.stage.inputs.values() for pin in pins]
    made = {address for each in seen for several in each.stage.versions.values() for address in several}
    while waiting := sorted({*waiting} - looked_at - made):
        looked_at |= {*waiting}
        mine = [record for record in _known(store, waiting) if run_key(record.origin) == key]
        found += mine
        waiting = [pin.address for record in mine for pins in record.inputs.values() for pin in pins]
    return [each for each in _of_made(found) if (each.stage.task_id, each.stage.map_index) not in known]


def _known(store: Store, addresses: Sequence[str]) -> list[Record]:
    """Return the records of these versions; those of another store, or damaged ones, are left out."""
    try:
        return store.records(addresses)
    except MusterError:
        if len(addresses) == 1:
            return []
    half = len(addresses) // 2
    return [*_known(store, addresses[:half]), *_known(store, addresses[half:])]


def _records(store: Store, *, limit: int, dag_id: str, run_id: str = "") -> Iterator[Record]:
    """Yield the records of the newest versions of every volume that a Dag's run made, newest first in each volume."""
    for volume in store.volumes():
        versions = store.newest(volume, limit=limit)
        for record in _known(store, [version.address for version in versions]):
            origin = record.origin
            if origin.run_id and dag_id in ("", origin.dag_id) and run_id in ("", origin.run_id):
                yield record


def _of_records(records: Iterable[Record]) -> dict[RunKey, Run]:
    """Return the runs that made these versions, newest first."""
    found: dict[RunKey, list[Record]] = defaultdict(list)
    for record in records:
        found[run_key(record.origin)].append(record)
    made = {key: _of_stages(key, _of_made(several)) for key, several in found.items()}
    return dict(sorted(made.items(), key=lambda item: item[1].began, reverse=True))


def _of_made(records: Iterable[Record]) -> list[_TimedStage]:
    """Return the stages that made these versions: of each the newest job."""
    stages: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for record in records:
        stages[record.origin.task_id, record.origin.map_index].append(record)
    return [_of_newest(several) for several in stages.values()]


def _of_newest(records: Sequence[Record]) -> _TimedStage:
    newest = max(records, key=lambda record: record.created)
    versions: dict[str, tuple[str, ...]] = {}
    for record in sorted(records, key=lambda record: record.number):
        if record.job_id == newest.job_id:
            address = pinned(record.volume, record.number)
            versions[record.output] = (*versions.get(record.output, ()), address)
    stage = _stage(newest, state=JobState.SUCCEEDED, versions=versions)
    return _TimedStage(stage, min(record.created for record in records), newest.created, newest.created)
