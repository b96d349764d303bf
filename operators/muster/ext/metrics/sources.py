"""Opens what metrics are read from, as the settings say: the store, the capacity, the deployments."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from muster.backends import base
from muster.backends.choose import open_place
from muster.backends.place import Place
from muster.core.address import Address
from muster.core.errors import BackendError, MusterError
from muster.core.extensions import load
from muster.core.job import JobSpec
from muster.core.settings import Settings
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause
from muster.ext.metrics.collector import MusterCollector
from muster.ext.metrics.table import GAUGES, MOST_LABELS, Durations, MetricsPart, Sample, bounded
from muster.volumes.base import UpkeepKind, UpkeepNote
from muster.volumes.protocols import Ledger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from muster.backends.capacity import Capacity, Cards, Gpus, Queues
    from muster.backends.releases.deployments import Deployments
    from muster.backends.releases.figures import DeploymentSample
    from muster.core.deployment import DeploymentStatus, Release
    from muster.volumes.protocols import Store


MOST_VOLUMES = 500


def of_store(store: Store, clock: Callable[[], float] = time.monotonic) -> Iterator[Sample]:
    """Ask for the room, the volumes and the notes of upkeep: two short requests for each of 500 volumes at most."""
    began = clock()
    room = store.room()
    yield Sample(metric="muster_store_answer_seconds", value=clock() - began)
    yield Sample(metric="muster_store_bytes", value=room.total_bytes)
    yield Sample(metric="muster_store_free_bytes", value=room.free_bytes)
    if room.files_left is not None:
        yield Sample(metric="muster_store_free_files", value=room.files_left)
    volumes = store.volumes()
    yield Sample(metric="muster_volumes", value=len(volumes))
    for volume in volumes[:MOST_VOLUMES]:
        labels = {"volume": volume}
        yield Sample(metric="muster_volume_versions", value=store.count(volume), labels=labels)
        for version in store.newest(volume, limit=1):
            made = version.created
            yield Sample(metric="muster_volume_newest_timestamp_seconds", value=made, labels=labels)
    yield from _of_upkeep({note.work: note for note in store.upkept()})


def _of_upkeep(notes: Mapping[UpkeepKind, UpkeepNote]) -> Iterator[Sample]:
    def at(work: UpkeepKind) -> float:
        return notes[work].at if work in notes else 0.0

    for depth, work in (("quick", UpkeepKind.FSCK), ("deep", UpkeepKind.FSCK_DEEP)):
        labels = {"depth": depth}
        yield Sample(metric="muster_store_last_fsck_timestamp_seconds", value=at(work), labels=labels)
        if work in notes and (found := notes[work].checked):
            yield Sample(metric="muster_store_damaged_versions", value=found.damaged, labels=labels)
    yield Sample(metric="muster_last_gc_timestamp_seconds", value=at(UpkeepKind.GC))
    yield Sample(metric="muster_last_sweep_timestamp_seconds", value=at(UpkeepKind.SWEEP))


def line_of(named: str | None, lines: Sequence[str]) -> str:
    """Return the queue that a job stands in: the one it names, or the only one that there is.

    On one machine all jobs stand in one line, whatever queue they name.
    """
    if named in lines and named is not None:
        return named
    return lines[0] if len(lines) == 1 else named or "-"


def of_queues(found: Queues) -> Iterator[Sample]:
    """Tell each queue, and since when its oldest job waits."""
    lines = [line.name for line in found.lines]
    for line in found.lines[:MOST_LABELS]:
        for state, count in (("waiting", line.waiting), ("running", line.running)):
            labels = {"queue": line.name, "state": state}
            yield Sample(metric="muster_queue_jobs", value=count, labels=labels)
        stopped = float(bool(line.stopped))
        yield Sample(metric="muster_queue_stopped", value=stopped, labels={"queue": line.name})
    oldest: dict[str, float] = {}
    for each in found.waiting:
        queue = line_of(each.queue or None, lines)
        if queue in lines[:MOST_LABELS] or not lines:
            oldest[queue] = min(each.since, oldest.get(queue, each.since))
    for queue, since in oldest.items():
        yield Sample(metric="muster_queue_oldest_timestamp_seconds", value=since, labels={"queue": queue})


def of_gpus(found: Gpus) -> Iterator[Sample]:
    """Tell the cards of each class, and those of each team's queue."""
    for cards in found.by_class[:MOST_LABELS]:
        free = min(cards.free, _free(found.by_node, cards.name))
        for state, count in (
            ("used", cards.used),
            ("free", free),
            ("unavailable", max(0, cards.total - cards.used - free)),
        ):
            yield Sample(metric="muster_gpus", value=count, labels={"class": cards.name, "state": state})
    teams: dict[tuple[str, str], list[int]] = {}
    for share in found.shares:
        sums = teams.setdefault((share.team, share.gpu_class), [0, 0, 0])
        for index, count in enumerate((share.quota, share.used, share.borrowed)):
            sums[index] += count
    for (team, gpu_class), sums in list(teams.items())[:MOST_LABELS]:
        for state, count in zip(("quota", "used", "borrowed"), sums, strict=True):
            labels = {"team": team, "class": gpu_class, "state": state}
            yield Sample(metric="muster_team_gpus", value=count, labels=labels)


def of_extensions(store: Store) -> Iterator[Sample]:
    """Ask for what extensions measure; of a label with too many values the further ones add up as ``other``."""
    for gauge in GAUGES:
        known = [dict[str, None]() for _ in gauge.labels]
        sums = Counter[tuple[str, ...]]()
        for values, number in load(gauge.look)(store):
            kept = tuple(map(bounded, values, known))
            for value, before in zip(kept, known, strict=True):
                before[value] = None
            sums[kept] += number
        for kept, number in sums.items():
            yield Sample(metric=gauge.name, value=number, labels=dict(zip(gauge.labels, kept, strict=True)))


def _free(nodes: Sequence[Cards], gpu_class: str) -> int:
    return sum(node.free for node in nodes if node.gpu_class == gpu_class)


def of_deployments(found: Sequence[DeploymentSample]) -> Iterator[Sample]:
    """Tell how each deployment stands."""
    for seen in found[:MOST_LABELS]:
        yield from _of_deployment(seen.status)


def _of_deployment(status: DeploymentStatus) -> Iterator[Sample]:
    own = {"deployment": status.name}
    yield Sample(metric="muster_deployment_ready", value=float(status.ready), labels=own)
    yield Sample(metric="muster_deployment_drifted", value=float(bool(status.drift)), labels=own)
    for one in status.revisions:
        if one.state.over:
            continue
        labels, address = own | {"revision": one.name}, Address.parse(one.model.address)
        model = {"model": f"{address.volume}@{address.value}"}
        yield Sample(metric="muster_revision_traffic_percent", value=one.percent, labels=labels | model)
        for state, count in (("wanted", one.wanted), ("ready", one.ready)):
            yield Sample(metric="muster_revision_replicas", value=count, labels=labels | {"state": state})
        yield Sample(metric="muster_revision_restarts", value=one.restarts, labels=labels)
    if status.release is not None:
        labels = own | {"state": _direction(status.release)}
        since = status.release.since
        yield Sample(metric="muster_release_step_started_timestamp_seconds", value=since, labels=labels)


def _direction(release: Release) -> str:
    return "back" if release.failed else "held" if release.held else "forward"


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


def of_airflow(url: str) -> Iterator[Sample]:
    """Tell how an Airflow stands: by its own page of health, and muster's. :param url: where its API server answers."""
    health = _asked(f"{url}/api/v2/monitor/health")
    database = health["metadatabase"]["status"] == "healthy"
    yield Sample(metric="muster_airflow_database", value=database)
    if not database:
        return
    for part in ("scheduler", "triggerer", "dag_processor"):
        beat = health[part][f"latest_{part}_heartbeat"]
        at = datetime.fromisoformat(beat).timestamp() if beat else 0.0
        yield Sample(metric="muster_airflow_heartbeat_timestamp_seconds", value=at, labels={"process": part})
    yield Sample(metric="muster_airflow_broken_dags", value=_asked(f"{url}/muster/health")["broken_dags"])


def of_keepers(host: str, port: int) -> Iterator[Sample]:
    """Tell of all keepers of deployments behind one name. Keepers that do not answer are not counted."""
    try:
        found = {each[4][0] for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError:  # none is ready, so the name has no address
        found = set()
    told = []
    for address in found:
        with suppress(BackendError):  # it hangs, or is gone
            told.append(_asked(f"http://{f'[{address}]' if ':' in str(address) else address}:{port}/healthz"))
    yield Sample(metric="muster_keepers", value=len(told))
    looked = max((each["looked"] for each in told), default=0.0)
    yield Sample(metric="muster_keeper_last_look_timestamp_seconds", value=looked)
    yield Sample(metric="muster_keeper_failing", value=max((each["failing"] for each in told), default=0))


def _asked(url: str) -> Any:
    try:
        with urlopen(url, timeout=base.LOOK_SECONDS) as answer:  # noqa: S310 - the site names it
            return json.load(answer)
    except OSError as error:
        raise BackendError(f"{url} does not answer as it should: {error}") from error


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


def collector_of(settings: Settings, *, airflow: str = "", keeper: str = "") -> MusterCollector:
    """Return the metrics of the place that the settings name; nothing is asked yet.

    What could not be read is opened anew for the next look: a token may have been renewed.

    :param airflow: the address of an Airflow. :param keeper: ``HOST:PORT`` of keepers. Empty: there is none to tell of.
    """

    def place() -> Place:
        return open_place(settings, patience_seconds=base.LOOK_SECONDS)

    lines, drifts = _Lines(), Drifts()
    jobs = Jobs(lambda: lines.names)
    parts: dict[MetricsPart, Callable[[Place], Iterable[Sample]]] = {
        MetricsPart.STORE: lambda place: of_store(place.store),
        MetricsPart.JOBS: lambda place: jobs.look(place.store.ledger),
        MetricsPart.QUEUES: lambda place: lines.look(place.capacity),
        MetricsPart.GPUS: lambda place: of_gpus(place.capacity.gpus()),
        MetricsPart.DEPLOYMENTS: lambda place: drifts.look(place.deployments),
        MetricsPart.EXTENSIONS: lambda place: of_extensions(place.store),
    }
    if airflow:
        parts[MetricsPart.AIRFLOW] = lambda _: of_airflow(airflow.rstrip("/"))
    if keeper:
        host, _, port = keeper.rpartition(":")
        parts[MetricsPart.KEEPERS] = lambda _: of_keepers(host, int(port))
    opened: dict[MetricsPart, Place] = {}  # one for each part, which is asked one question at a time

    def look(part: MetricsPart) -> Iterable[Sample]:
        if part not in opened:
            opened[part] = place()
        return parts[part](opened[part])

    def forget(part: MetricsPart) -> None:
        if (before := opened.pop(part, None)) is not None:
            before.close()

    looks = {part: partial(look, part) for part in parts}
    return MusterCollector(looks, place=place().name, failed=forget)


class _Lines:
    """The queues, and their names for the jobs that stood in them."""

    def __init__(self) -> None:
        self.names: Sequence[str] = ()

    def look(self, capacity: Capacity) -> Iterable[Sample]:
        found = capacity.queues()
        self.names = tuple(line.name for line in found.lines)
        return of_queues(found)


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
                message = f"`muster deployments repair {name}` puts it back: {drifted[name]}"
                deployments.platform.announce(name, message)
            except MusterError as error:  # what is measured does not depend on it
                log.warning("no Event can be made of that: %s", error)
        self._told = frozenset(drifted)
        return of_deployments(found)
