"""Opens what metrics are read from, as the settings say: the store, the capacity, the deployments."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from muster.backends import base
from muster.backends.choose import open_place
from muster.backends.place import Place
from muster.core.errors import MusterError
from muster.core.job import JobSpec
from muster.core.settings import Settings
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause
from muster.ext.metrics import looks
from muster.ext.metrics.collector import MusterCollector
from muster.ext.metrics.looks import line_of
from muster.ext.metrics.samples import Durations, Sample, bounded
from muster.ext.metrics.table import MetricsPart
from muster.volumes.protocols import Ledger

if TYPE_CHECKING:
    from muster.backends.capacity import Capacity
    from muster.backends.releases.deployments import Deployments


log = logging.getLogger(__name__)

UNREADABLE = "unreadable"
LIVE = tuple(state for state in JobState if not state.ended)
_OUTCOMES = (JobState.SUCCEEDED.value, *(cause.value for cause in Cause))


class Jobs:
    """What is known of the jobs of one ledger. One thread asks at a time.

    What had ended, or had begun to run, before the first look is not counted: counters start at 0 with their process.

    :param lines: the queues that there are, as they were seen last.
    """

    def __init__(self, lines: Callable[[], Sequence[str]], now: Callable[[], float] = time.time) -> None:
        self._lines = lines
        self._now = now
        self._first = True
        self._over: set[str] = set()
        self._started: set[str] = set()
        self._specs: dict[str, JobSpec] = {}  # of jobs that have not ended
        self._ended = Counter[str]()
        self._waits: dict[str, Durations] = {}
        self._runs = {state.value: Durations() for state in JobState if state.ended}

    def look(self, ledger: Ledger) -> Iterator[Sample]:
        """Read the jobs that had not ended at the look before, and those that are new."""
        there = ledger.jobs()
        statuses = self._read(ledger, there)
        for status in statuses:
            self._count(status)
        self._first = False
        live = [status for status in statuses if not status.state.ended]
        unreadable = [job_id for job_id in there if job_id not in self._over]
        yield from self._states(live, unreadable=len(unreadable) - len(live))
        yield from self._overdue(live)
        yield from self._counted()

    def _read(self, ledger: Ledger, there: Sequence[str]) -> list[JobStatus]:
        self._over.intersection_update(there)
        asked = [job_id for job_id in there if job_id not in self._over]
        statuses = ledger.statuses(asked)
        live = {status.job_id for status in statuses if not status.state.ended}
        new = [job_id for job_id in live if job_id not in self._specs]
        if not self._first:  # a job may begin and end between two looks
            new += [each.job_id for each in statuses if each.state.ended and each.job_id not in self._specs]
        self._specs |= ledger.specs(new) if new else {}
        self._specs = {job_id: self._specs[job_id] for job_id in asked if job_id in self._specs}
        self._started.intersection_update(asked)
        return statuses

    def _count(self, status: JobStatus) -> None:
        if status.started is not None and status.job_id not in self._started:
            self._started.add(status.job_id)
            if not self._first:
                self._wait_of(status).observe(status.started - status.submitted)
        if status.state.ended:
            self._over.add(status.job_id)
            if not self._first:
                self._ended[outcome(status)] += 1
                if status.started is not None and status.ended is not None:
                    self._runs[status.state.value].observe(status.ended - status.started)

    def _wait_of(self, status: JobStatus) -> Durations:
        spec = self._specs.get(status.job_id)
        queue = line_of(spec.queue if spec else None, self._lines())
        return self._waits.setdefault(bounded(queue, self._waits), Durations())

    def _states(self, live: Sequence[JobStatus], *, unreadable: int) -> Iterator[Sample]:
        states = Counter(status.state for status in live)
        for state in LIVE:
            yield Sample(metric="muster_jobs", value=states[state], labels={"state": state.value})
        yield Sample(metric="muster_jobs", value=unreadable, labels={"state": UNREADABLE})

    def _overdue(self, live: Sequence[JobStatus]) -> Iterator[Sample]:
        late = Counter(
            overdue(status, spec, now=self._now())
            for status in live
            if (spec := self._specs.get(status.job_id)) is not None
        )
        for limit in ("queue", "run"):
            yield Sample(metric="muster_jobs_overdue", value=late[limit], labels={"limit": limit})

    def _counted(self) -> Iterator[Sample]:
        for name in dict.fromkeys((*_OUTCOMES, *self._ended)):
            yield Sample(metric="muster_jobs_ended_total", value=self._ended[name], labels={"outcome": name})
        for queue, durations in self._waits.items():
            yield Sample(metric="muster_job_wait_seconds", value=durations, labels={"queue": queue})
        for state, durations in self._runs.items():
            yield Sample(metric="muster_job_run_seconds", value=durations, labels={"state": state})


def outcome(status: JobStatus) -> str:
    """How an ended job ended: it succeeded, or the cause of its verdict."""
    return status.verdict.cause.value if status.verdict else status.state.value


def overdue(status: JobStatus, spec: JobSpec, *, now: float) -> str:
    """Return the limit that a job which has not ended has outlived, `queue` or `run`; empty where it has none.

    A gang that started again may have waited in between, which does not count as running: each restart allows it as
    long as it may wait.
    """
    if status.started is None:
        return "queue" if now > status.submitted + spec.queue_timeout_seconds else ""
    waits = status.restarts * spec.queue_timeout_seconds
    end = status.started + spec.run_timeout_seconds + spec.grace_seconds + waits
    return "run" if status.state is JobState.RUNNING and now > end else ""


def collector_of(settings: Settings) -> MusterCollector:
    """Return the metrics of the place that the settings name; nothing is asked yet.

    What could not be read is opened anew for the next look: a token may have been renewed.
    """

    def place() -> Place:
        return open_place(settings, patience_seconds=base.LOOK_SECONDS)

    lines, drifts = _Lines(), Drifts()
    jobs = Jobs(lambda: lines.names)
    parts: dict[MetricsPart, Callable[[Place], Iterable[Sample]]] = {
        MetricsPart.STORE: lambda place: looks.of_store(place.store),
        MetricsPart.JOBS: lambda place: jobs.look(place.store.ledger),
        MetricsPart.QUEUES: lambda place: lines.look(place.capacity),
        MetricsPart.GPUS: lambda place: looks.of_gpus(place.capacity.gpus()),
        MetricsPart.DEPLOYMENTS: lambda place: drifts.look(place.deployments),
    }
    opened = {part: _OpenedSource(place) for part in parts}
    return MusterCollector(
        {part: partial(_look, opened[part], look) for part, look in parts.items()},
        place=place().name,
        failed=lambda part: opened[part].forget(),
    )


class _Lines:
    """The queues, and their names for the jobs that stood in them."""

    def __init__(self) -> None:
        self.names: Sequence[str] = ()

    def look(self, capacity: Capacity) -> Iterable[Sample]:
        found = capacity.queues()
        self.names = tuple(line.name for line in found.lines)
        return looks.of_queues(found)


class Drifts:
    """Which deployments were not as muster left them at the look before: each such change is announced once."""

    def __init__(self) -> None:
        self._told: frozenset[str] = frozenset()

    def look(self, deployments: Deployments) -> Iterable[Sample]:
        """Look at each deployment; its model servers are not asked for their counts."""
        found = deployments.look_at(counts=False)
        drifted = {seen.status.name: seen.status.drift for seen in found if seen.status.drift}
        for name in drifted.keys() - self._told:
            log.warning("deployment %s: %s", name, drifted[name])
            try:
                deployments.platform.announce(name, drifted[name])
            except MusterError as error:  # what is measured does not depend on it
                log.warning("no Event can be made of that: %s", error)
        self._told = frozenset(drifted)
        return looks.of_deployments(found)


class _OpenedSource:
    """One place, opened when it is needed and again after it failed."""

    def __init__(self, open_: Callable[[], Place]) -> None:
        self._open = open_
        self._lock = threading.Lock()
        self._now: Place | None = None

    def now(self) -> Place:
        with self._lock:
            if self._now is None:
                self._now = self._open()
            return self._now

    def forget(self) -> None:
        with self._lock:
            before, self._now = self._now, None
        if before is not None:
            before.close()


def _look(source: _OpenedSource, look: Callable[[Place], Iterable[Sample]]) -> Iterable[Sample]:
    return look(source.now())
