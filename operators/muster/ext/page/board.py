"""The jobs of one store, as the page knows them: of each the line that lists need, and the documents of few.

A job that has ended is read once; what has not ended, each time. Lists are made from the lines, and from what is kept
of them by run, task and version; documents are read for what is shown.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from sys import intern
from typing import Annotated

from fastapi import Depends

from muster.airflow.page.route import UNREADABLE, Here
from muster.backends.base import Backend
from muster.core.errors import MusterError, NotFound
from muster.core.job import JobSpec
from muster.core.origin import Origin
from muster.core.status import JobState, JobStatus
from muster.volumes.base import TaskEnd
from muster.volumes.protocols import Ledger
from muster.volumes.runs import RunKey, RunParts, TriedJob, noted, run_key

_ROOM_SECONDS = 30.0
MOST_JOBS, STEP = 50_000, 5_000
"""Jobs that are listed, the newest; what is older leaves in steps."""

DOCUMENTS = 1_000
"""Jobs that have ended whose documents are kept, those that were read last."""

AT_ONCE = 500
_PAUSES, SLOW_SECONDS, _LONGEST_PAUSE_SECONDS = 50, 0.004, 5.0
"""A list of the ledger that took longer than the second is used _PAUSES times as long, at most the third, before the next one."""

VALIDATION = "muster_validate:validate"  # what a ValidateOperator's job runs
DRIFT = "muster_drift:compare"  # a DriftOperator's

STATES = (*(state.value for state in JobState), UNREADABLE)


@dataclass(frozen=True, kw_only=True)
class Job:
    """One job of the ledger; only its id and `error` are set where its files cannot be read."""

    job_id: str
    status: JobStatus | None = None
    spec: JobSpec | None = None
    error: str = ""

    @property
    def dag_id(self) -> str:
        """The Dag that submitted it; empty if none did, or if it cannot be read."""
        return self.spec.origin.dag_id if self.spec else ""

    @property
    def stage(self) -> str:
        """Its task, with the map index where it is mapped; empty of a job that cannot be read."""
        return self.spec.origin.stage if self.spec else ""

    @property
    def is_trial(self) -> bool:
        """Whether it trains a trial of a search; its owner is the search."""
        return self.spec is not None and self.spec.origin.trial >= 0

    @property
    def state(self) -> str:
        """Its state, for people."""
        return self.status.state.value if self.status else UNREADABLE

    @property
    def ended(self) -> bool:
        """Whether its documents will not change any more."""
        return self.status is not None and self.status.state.ended

    @property
    def failed_expectations(self) -> str:
        """The failures of a validation, whose job succeeds nevertheless; empty for other jobs."""
        result = self.status.result if self.status else None
        if result is None or self.spec is None or self.spec.roles[0].entrypoint != VALIDATION:
            return ""
        failed, of = (int(result.metrics.get(name, 0)) for name in ("failed", "expectations"))
        return f"the data failed: {failed} of {of} expectations" if failed else ""


@dataclass(frozen=True, slots=True)
class JobLine:
    """What lists need of one job; without `tried` where its files never could be read.

    :param dag_id: the Dag that submitted it; empty if none did, or if it cannot be read.
    :param state: its state, for people.
    :param ended: whether its documents will not change any more.
    :param is_trial: whether it trains a trial of a search; its owner is the search.
    :param bad: whether it failed, or the data that it validated did.
    :param reads: name and address of each version that it reads.
    :param reports: the deployment that it made a drift report of; None for other jobs.
    """

    job_id: str
    tried: TriedJob | None = None
    dag_id: str = ""
    run_id: str = ""
    state: str = UNREADABLE
    ended: bool = False
    is_trial: bool = False
    bad: bool = True
    validates: bool = False
    reads: tuple[tuple[str, str], ...] = ()
    reports: str | None = None

    @classmethod
    def of(cls, job: Job) -> JobLine:
        """Return the line of a job."""
        spec, status = job.spec, job.status
        if spec is None or status is None:
            return cls(job.job_id)
        texts = {name: intern(each) for name, each in vars(spec.origin).items() if isinstance(each, str)}
        origin = replace(spec.origin, **texts)  # type: ignore[arg-type]  # texts in place of texts
        entrypoint, made = spec.roles[0].entrypoint, status.result.outputs if status.result else {}
        return cls(
            job.job_id,
            TriedJob.of(spec, status)._replace(job_id=job.job_id, origin=origin, name=intern(spec.name)),
            origin.dag_id,
            origin.run_id,
            status.state.value,
            ended=status.state.ended,
            is_trial=origin.is_trial,
            bad=status.state is JobState.FAILED or bool(job.failed_expectations),
            validates=entrypoint == VALIDATION,
            reads=tuple(
                (intern(name), intern(each.address))
                for name, given in spec.inputs.items()
                for each in given.versions
            ),
            reports=str(spec.params.get("title", "")) if entrypoint == DRIFT and made.get("report") else None,
        )

    @property
    def at(self) -> float:
        """When it ended, or was submitted where that is not known; 0 where it cannot be read."""
        return (self.tried.ended or self.tried.submitted) if self.tried else 0.0

    @property
    def words(self) -> str:
        """The text that a search looks through, in lower case."""
        if self.tried is None:
            return self.job_id.lower()
        origin = self.tried.origin
        return f"{self.job_id} {self.tried.name} {origin.dag_id} {origin.task_id} {origin.run_id}".lower()


TaskOfRun = tuple[str, str, str]
"""A Dag's id, the stage and the run's id; a job of no Dag has its own id in place of the last."""


class Board:
    """The jobs of one store, as :meth:`look` saw them last. Any number of threads may ask.

    :ivar documents: the jobs whose documents are kept, those that were read last at the end.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._lock = threading.RLock()
        self._names: list[str] = []
        self._list_again = 0.0
        self._open: dict[str, Job] = {}  # those that have not ended, or cannot be read; oldest first
        self.documents: dict[str, Job] = {}
        self._warned, self._warned_at = "", -_ROOM_SECONDS
        self._forget()

    def _forget(self) -> None:
        """Begin without any job. All that is kept by Dag, run and version is made of the lines."""
        self._lines: dict[str, JobLine] = {}  # oldest first
        self._dags = set[str]()
        self._ended = Counter[tuple[str, str]]()  # by Dag and state
        self._runs: dict[RunKey, list[str]] = {}  # the one that began first is the first
        self._run_counts = Counter[str]()  # by Dag
        self._run_states: dict[tuple[RunKey, int], str] = {}  # of a run with this number of jobs, all ended
        self._newest: dict[TaskOfRun, JobLine] = {}  # that have ended
        self._bad: dict[TaskOfRun, JobLine] = {}  # those of them that are
        self._succeeded: dict[tuple[str, str], float] = {}  # when, by Dag and stage
        self._readers: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self._reports: dict[tuple[str, str], JobLine] = {}  # by Dag and deployment

    def warning(self) -> str:
        """Return the warning of a nearly full disk; measured now and then."""
        now = time.monotonic()
        if now >= self._warned_at + _ROOM_SECONDS:
            self._warned_at = now
            try:
                self._warned = self._backend.store.room().warning
            # such as a service of an older release: the jobs are shown nevertheless
            except MusterError as error:
                self._warned = f"how much room the store has is not known: {error}"
        return self._warned

    def ends(self, *, dag_id: str = "", run_id: str = "", runs: int = 20) -> list[TaskEnd]:
        """Return the ends of tasks that no job records, newest first; `runs` is the number of runs, the newest."""
        return self._backend.store.ledger.task_ends(dag_id=dag_id, run_id=run_id, runs=runs)

    def noted(self) -> Mapping[tuple[str, str], JobState]:
        """See :func:`muster.volumes.runs.noted`."""
        return noted(self._backend.store.ledger)

    def one(self, job_id: str) -> Job:
        """Return one job as it is now. :raises NotFound: there is none. :raises Corrupt: it cannot be read."""
        known = self.documents.get(job_id)
        if known is not None:
            return known
        ledger = self._backend.store.ledger
        return Job(job_id=job_id, status=self._backend.status(job_id), spec=ledger.spec(job_id))

    def look(self) -> None:
        """Read the jobs that are new, and those that had not ended."""
        ledger = self._backend.store.ledger
        with self._lock:
            names = self._listed(ledger)
            known = len(self._names)
            grown = names[:known] == self._names  # else gc deleted some
            if grown:
                asked = [*self._open, *names[known:]]
            else:
                asked = [name for name in names if name in self._open or name not in self._lines]
            lines, going_on = dict[str, JobLine](), dict[str, Job]()
            for job in self._recorded(ledger, asked):
                if job.ended:
                    self._keep(job)
                else:
                    going_on[job.job_id] = job
                line, before = JobLine.of(job), self._lines.get(job.job_id)
                if before and line.tried is None:  # it stays one of its run, and of those that read a version
                    line = replace(before, state=UNREADABLE, bad=True)
                lines[job.job_id] = line
            self._open |= going_on  # not before all are read: the ledger may fail, and is asked again
            if not grown:
                lines, asked = self._lines | lines, names
                self._open = {name: self._open[name] for name in names if name in self._open}
                self._forget()
            for name in asked:
                if name in lines:
                    self._enter(lines[name])
            self._names = names

    def _listed(self, ledger: Ledger) -> list[str]:
        if time.monotonic() < self._list_again:
            return self._names
        began = time.monotonic()  # a slow disk or service takes no CPU time
        names = ledger.jobs()
        took = time.monotonic() - began
        if took > SLOW_SECONDS:
            self._list_again = time.monotonic() + min(_PAUSES * took, _LONGEST_PAUSE_SECONDS)
        return names[max(0, len(names) - MOST_JOBS) // STEP * STEP :]

    def _recorded(self, ledger: Ledger, job_ids: Sequence[str]) -> Iterator[Job]:
        """Yield these jobs as they were recorded last; those that gc deleted are left out."""
        for first in range(0, len(job_ids), AT_ONCE):
            some = job_ids[first : first + AT_ONCE]
            statuses = {status.job_id: status for status in ledger.statuses(some)}
            specs = {name: job.spec for name in some if (job := self._open.get(name)) and job.spec}
            specs |= ledger.specs([name for name in some if name not in specs])
            for name in some:
                if name in statuses and name in specs:
                    yield Job(job_id=name, status=statuses[name], spec=specs[name])
                    continue
                try:  # an error is shown with the job
                    yield Job(job_id=name, status=ledger.status(name), spec=ledger.spec(name))
                except NotFound:
                    continue
                except MusterError as error:
                    yield Job(job_id=name, error=str(error))

    def _keep(self, job: Job) -> None:
        """Keep the documents of a job that has ended."""
        self.documents[job.job_id] = job
        if len(self.documents) > DOCUMENTS:
            del self.documents[next(iter(self.documents))]

    def _enter(self, line: JobLine) -> None:
        """Take up a job that is new, or that had not ended."""
        before = self._lines.get(line.job_id)
        self._lines[line.job_id] = line
        self._dags.add(line.dag_id)
        if line.tried is None:
            return
        key = run_key(line.tried.origin)
        if before is None or before.tried is None:
            if key.dag_id and key.run_id:
                self._run_counts[key.dag_id] += key not in self._runs
                self._runs.setdefault(key, []).append(line.job_id)
            for name, address in reversed(line.reads):
                self._readers[address].append((line.job_id, name))
        if line.ended:
            self._open.pop(line.job_id, None)
            self._end(line, line.tried)

    def _end(self, line: JobLine, tried: TriedJob) -> None:
        self._ended[line.dag_id, line.state] += 1
        if line.reports is not None:
            reported = self._reports.setdefault((line.dag_id, line.reports), line)
            self._reports[line.dag_id, line.reports] = max(line, reported, key=lambda each: each.at)
        if line.is_trial:
            return  # its search goes on, and fails by itself
        task = task_of(tried.origin, line.job_id)
        if task not in self._newest or line.at >= self._newest[task].at:
            self._newest[task] = line
            self._bad.pop(task, None)
            if line.bad:
                self._bad[task] = line
        if tried.state is JobState.SUCCEEDED and not line.bad:
            self._succeeded[task[:2]] = max(line.at, self._succeeded.get(task[:2], 0.0))

    def dags(self, permitted: Callable[[str], bool] = bool) -> frozenset[str]:
        """Return the Dags of which a job is known and that are permitted; jobs of no Dag have ``""``."""
        with self._lock:
            return frozenset(dag_id for dag_id in self._dags if permitted(dag_id))

    def lines(self, dags: Collection[str]) -> list[JobLine]:
        """Return the line of every job of these Dags, newest first."""
        with self._lock:
            return [line for line in reversed(self._lines.values()) if line.dag_id in dags]

    def open(self) -> list[JobLine]:
        """Return the jobs that have not ended or cannot be read, newest first."""
        with self._lock:
            return [self._lines[name] for name in reversed(self._open)]

    def ended(self, dags: Collection[str]) -> Counter[str]:
        """Return the number of jobs of these Dags in each state in which a job ends."""
        with self._lock:
            states = Counter[str]()
            for (dag_id, state), many in self._ended.items():
                if dag_id in dags:
                    states[state] += many
            return states

    def newest_end(self, task: TaskOfRun) -> JobLine | None:
        """Return the job of a task that ended last."""
        return self._newest.get(task)

    def bad(self, dags: Collection[str]) -> dict[TaskOfRun, JobLine]:
        """Return the newest job of each task of a run, where that failed; trials are no tasks."""
        with self._lock:
            return {task: line for task, line in self._bad.items() if task[0] in dags}

    def succeeded(self, dag_id: str, stage: str) -> float:
        """Return when a job of this task ended well last, in whatever run; 0 where none has."""
        return self._succeeded.get((dag_id, stage), 0.0)

    def runs(
        self, ends: Iterable[TaskEnd], dags: Collection[str], most: int | None = None
    ) -> tuple[list[RunParts], int]:
        """Return the runs of these Dags that began last, the newest first, and the number of all.

        :param ends: how tasks without a job ended, which may be of runs that have none.
        """
        of_ends: dict[RunKey, list[TaskEnd]] = defaultdict(list)
        for end in ends:
            of_ends[run_key(end.origin)].append(end)
        with self._lock:
            newest = islice((key for key in reversed(self._runs) if key.dag_id in dags), most)
            alone = [key for key in reversed(of_ends) if key not in self._runs]
            found = []
            for key in dict.fromkeys([*alone, *newest, *of_ends]):
                jobs = [job for name in self._runs.get(key, ()) if (job := self._lines[name].tried)]
                found.append(RunParts(key, jobs, of_ends.get(key, [])))
            total = len(alone) + sum(self._run_counts[dag_id] for dag_id in dags)
        found.sort(key=lambda parts: parts.began, reverse=True)
        return found[:most], total

    def settled(self, parts: RunParts) -> str:
        """Return the state of a run that only jobs tell, all of which have ended; empty of another one."""
        if parts.ends or any(not job.state.ended for job in parts.jobs):
            return ""
        known = parts.key, len(parts.jobs)
        if known not in self._run_states:
            self._run_states[known] = parts.run({}).state.value
        return self._run_states[known]

    def run(self, dag_id: str, run_id: str) -> list[JobLine]:
        """Return the jobs of one run, newest first; of two Airflows that use one store, those of the newest such run."""
        with self._lock:
            keys = [key for key in reversed(self._runs) if (key.dag_id, key.run_id) == (dag_id, run_id)]
            return [self._lines[name] for key in keys[:1] for name in reversed(self._runs[key])]

    def readers(self, address: str) -> list[tuple[JobLine, str]]:
        """Return the jobs that read a version, the newest first, and the name of the input."""
        with self._lock:
            found = reversed(self._readers.get(address, ()))
            return [(self._lines[job_id], name) for job_id, name in found]

    def reports(self, dags: Collection[str]) -> dict[str, JobLine]:
        """Return the job that made the newest drift report of each deployment, by its name."""
        with self._lock:
            lines = [(name, line) for (dag_id, name), line in self._reports.items() if dag_id in dags]
        return dict(sorted(lines, key=lambda each: each[1].at))

    def jobs(self, lines: Iterable[JobLine]) -> list[Job]:
        """Return these jobs with their documents, as they were recorded last; see :meth:`now`."""
        wanted = [line.job_id for line in lines]
        with self._lock:
            known = {
                name: job for name in wanted if (job := self.documents.get(name) or self._open.get(name))
            }
        missing = [name for name in dict.fromkeys(wanted) if name not in known]
        for job in self._recorded(self._backend.store.ledger, missing):
            known[job.job_id] = job
            if job.ended:  # what has not, look() asks for
                with self._lock:
                    self._keep(job)
        return [known[name] for name in wanted if name in known]

    def now(self, lines: Iterable[JobLine]) -> list[Job]:
        """Return these jobs; of one that has not ended only the backend knows why it waits and whether it is alive."""
        jobs = self.jobs(lines)
        live = self._backend.statuses(job.job_id for job in jobs if job.status and not job.ended)
        return [replace(job, status=live.get(job.job_id, job.status)) for job in jobs]


def task_of(origin: Origin, job_id: str = "") -> TaskOfRun:
    """Return the task of a run, which may have several tries."""
    return origin.dag_id, origin.stage, origin.run_id if origin.dag_id else job_id


def _board(here: Here) -> Board:
    return here.part(Board, here.backend)


Jobs = Annotated[Board, Depends(_board)]
"""What a route takes that asks for jobs."""
