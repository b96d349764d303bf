"""Has elastic gangs shrink and grow: a gang of another size is another JobSet, and goes on from its checkpoint.

A JobSet and its Workload have a fixed number of pods, so each size is an attempt of its own::

    its ranks stop → the store begins an attempt of the new size → its JobSet is deleted → one of the new size is made

If a process is killed before the second step, the gang soon goes on as it was, in the pods that it has. One that is killed
later leaves a job without the JobSet of its current attempt: the next submission of the job, such as that of a task's next try, makes it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from muster.backends.forecast import Demand
from muster.backends.jobs.sizing import LOOK_SECONDS, Growth, Seen, Sizing, resized
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import Document
from muster.backends.kubernetes.lifecycle.submitting import Submitter
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.kubernetes.state.capacity import ClusterCapacity
from muster.backends.kubernetes.state.observe import ObservedJob
from muster.backends.kubernetes.state.outlook import ClusterDocuments
from muster.core.errors import Conflict, Forbidden
from muster.core.job import JobSpec
from muster.core.status import JobState
from muster.volumes.base import Saved
from muster.volumes.service.client import ServiceStore

log = logging.getLogger(__name__)

_WAITS_SECONDS = 3.0
"""How long a gang waits for room before it makes do with fewer replicas."""

_UNPLACED_SECONDS = 20.0
"""How long a replica of a gang that has its quota waits for a node, as after the loss of one, before the same is done."""

_LET_IN_SECONDS = 15.0
"""How long a job, for which one gang made room, has to start before another gang makes room for it, too."""

_STOP_SECONDS = 20.0
"""How long ranks may take to stop; after that what they write is left aside, and their checkpoints are copied."""

_REFUSED_SECONDS = 600.0
"""How long a size is not tried again that did not get its nodes."""


@dataclass(frozen=True)
class _Wanted:
    replicas: int
    why: str
    until: float


@dataclass
class GangWatch:
    """What is remembered of one gang. Times are seconds of the clock."""

    next: float = 0.0
    waits: float | None = None
    growth: Growth | None = None
    refused: dict[int, float] = field(default_factory=dict)
    wanted: _Wanted | None = None


def as_made(job: JobSpec, root: Document | None) -> JobSpec:
    """Return a job with the replicas that its JobSet has; one that has none, or is not elastic, as it is."""
    if root is None or not job.elastic:
        return job
    specs = [each["template"]["spec"] for each in root["spec"].get("replicatedJobs") or ()] or [root["spec"]]
    return job.sized(int(specs[0].get("parallelism") or 1))


class Checkpoints:
    """What is known of a job's checkpoints all together, as :class:`Growth` wants it.

    The store tells how many files they are, how large, and when the last one was written. What is as large as before
    and newer has been replaced; what becomes larger may still be written.
    """

    def __init__(self, saved: Callable[[], Saved | None]) -> None:
        self._saved = saved
        self._before: Saved | None = None
        self._replaced = 0.0

    def __call__(self) -> Seen:
        """Look at them once more."""
        saved, before = self._saved(), self._before
        if saved is None:
            return {}
        if before is None or (saved.files, saved.size_bytes) == (before.files, before.size_bytes):
            self._replaced = saved.newest
        self._before = saved
        return {saved.job_id: (self._replaced, saved.files, saved.size_bytes, saved.newest)}


class Resizing:
    """The elastic gangs of one namespace. Safe to use from many threads."""

    def __init__(
        self, client: Client, *, site: ClusterSite, store: ServiceStore, submitter: Submitter
    ) -> None:
        self._capacity = ClusterCapacity(client, site)
        self._store = store
        self._submitter = submitter
        self._looking = threading.Lock()
        self._read: tuple[float, ClusterDocuments] | None = None
        self._let_in: dict[str, tuple[str, float]] = {}

    def look(
        self, job: JobSpec, job_id: str, root: Document, observed: ObservedJob, watch: GangWatch
    ) -> None:
        """Have a gang shrink or grow where that is due, a step at each look.

        :param job: as its author asked for it.
        :param observed: how it is, with the replicas that it has.
        """
        now = time.monotonic()
        if now < watch.next or not self._looking.acquire(blocking=False):
            return
        try:
            self._look(job, job_id, root, observed, watch)
        except Forbidden as error:
            log.warning("job %s keeps the replicas that it has: %s", job_id, error)
            watch.next = now + _REFUSED_SECONDS
        except Conflict as error:  # another process was quicker, or the job is ending
            log.info("job %s: %s", job_id, error)
            watch.wanted = None
        finally:
            self._looking.release()

    def _look(
        self, job: JobSpec, job_id: str, root: Document, observed: ObservedJob, watch: GangWatch
    ) -> None:
        if root["metadata"].get("deletionTimestamp"):
            watch.wanted = None
            self._submitter.go_on(job, job_id)
            return
        if watch.wanted is None:
            watch.wanted = self._wanted(job, job_id, observed, watch)
        if watch.wanted is not None:
            self._make(job, job_id, watch, watch.wanted)

    def _wanted(self, job: JobSpec, job_id: str, observed: ObservedJob, watch: GangWatch) -> _Wanted | None:
        now, replicas = time.monotonic(), observed.replicas
        queued = observed.state is JobState.QUEUED
        if queued or (observed.state is JobState.PREPARING and len(observed.nodes) < replicas):
            watch.growth, watch.waits = None, now if watch.waits is None else watch.waits
            if replicas == job.least or now < watch.waits + (_WAITS_SECONDS if queued else _UNPLACED_SECONDS):
                return None
            most = self._sizing(job, job_id).most() or job.least
            if most >= replicas:  # there seems to be room, and yet it is not let in
                watch.refused[replicas] = now + _REFUSED_SECONDS
            return self._to(min(most, replicas - 1), f"there is no room for {replicas} replicas")
        watch.waits = None
        if observed.state is not JobState.RUNNING:
            return None
        watch.next = now + LOOK_SECONDS
        sizing = self._sizing(job, job_id)
        if (let_in := sizing.to_let_in(replicas)) is not None and self._may_let_in(let_in[1], job_id):
            return self._to(let_in[0], f"{let_in[1].name} waits for room")
        most = sizing.most() or 0
        while most > replicas and watch.refused.get(most, 0.0) > now:
            most -= 1
        if watch.growth is None:
            watch.growth = Growth(Checkpoints(lambda: self._store.saved(job_id)))
        return self._to(most, "there is room for more") if watch.growth.due(room=most > replicas) else None

    def _to(self, replicas: int, why: str) -> _Wanted:
        return _Wanted(replicas, why, until=time.monotonic() + _STOP_SECONDS)

    def _may_let_in(self, waits: Demand, job_id: str) -> bool:
        """Note that this gang makes room for a job that waits, unless another gang has just done so."""
        now = time.monotonic()
        self._let_in = {each: kept for each, kept in self._let_in.items() if kept[1] > now}
        return (
            self._let_in.setdefault(waits.job_id or waits.name, (job_id, now + _LET_IN_SECONDS))[0] == job_id
        )

    def _sizing(self, job: JobSpec, job_id: str) -> Sizing:
        sizes = [job.sized(replicas) for replicas in range(job.least, job.replicas + 1)]
        read = self._read  # once for all gangs of a process that look then
        if read is None or time.monotonic() >= read[0] + LOOK_SECONDS:
            read = self._read = time.monotonic(), self._capacity.documents()
        return Sizing(self._capacity.outlook(sizes, found=read[1]), job_id=job_id, least=job.least)

    def size(self, job: JobSpec, job_id: str) -> int | None:
        """Return with how many replicas a gang is submitted: as many as there is room for now; None for all."""
        if not job.elastic:
            return None
        self._read = None
        try:
            return self._sizing(job, job_id).most() or job.least
        except Forbidden:  # then the first look at what waits for room tells more
            return None

    def _make(self, job: JobSpec, job_id: str, watch: GangWatch, wanted: _Wanted) -> None:
        """Have the ranks stop, and then the gang begin with other replicas."""
        attempt, taken = self._store.attempt(job_id)
        if taken and not self._store.stop(job_id, attempt=attempt) and time.monotonic() < wanted.until:
            watch.next = 0.0
            return
        self._read = None
        self._store.begin(job_id, after=attempt, replicas=wanted.replicas)
        line = f"[muster] {resized(wanted.why, wanted.replicas, job.replicas)}\n"
        self._store.ledger.append(job_id, line.encode(), request=f"resized-{attempt}")
        self._submitter.go_on(job, job_id)
        watch.wanted, watch.growth, watch.waits = None, None, None
