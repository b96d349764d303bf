"""Runs jobs on a cluster, as JobSets and Jobs.

What has succeeded stands in the ledger, written by the store service. All else is told by the cluster's
objects: how a job is now, and why it ended without success, which is recorded by the first look that sees it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path

from muster.backends.capacity import QueuePlace
from muster.backends.jobs.checks import Resolve, secret_values
from muster.backends.jobs.ending import Idleness, is_decided
from muster.backends.jobs.runner import Look
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import WORKLOAD, Document
from muster.backends.kubernetes.cluster.discovery import QUICK_SECONDS, Survey
from muster.backends.kubernetes.cluster.facts import Cluster, condition, holds
from muster.backends.kubernetes.labels import JOB as JOB_LABEL
from muster.backends.kubernetes.lifecycle.ending import JobEnding, RestartNotes
from muster.backends.kubernetes.lifecycle.resizing import GangWatch, Resizing, as_made
from muster.backends.kubernetes.lifecycle.submitting import Submitter
from muster.backends.kubernetes.manifests.pods import OWN_SECONDS
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.kubernetes.state.observe import (
    ObservedJob,
    admission,
    completed,
    merged,
    observe,
    tallied,
)
from muster.backends.kubernetes.state.queueing import reckoned_places
from muster.backends.kubernetes.state.seen import JobObjects, seconds
from muster.backends.kubernetes.state.sight import Sight, find_root
from muster.backends.kubernetes.state.verdicts import overdue, vanished, verdict
from muster.backends.tracking import URI, Tracking
from muster.core.errors import BackendError, Forbidden, StoreError, Unavailable, Unreachable
from muster.core.job import JobSpec
from muster.core.status import JobState, JobStatus
from muster.core.tally import Tally
from muster.core.text import one_line
from muster.core.verdict import Cause, Verdict
from muster.volumes.service.client import ServiceStore

log = logging.getLogger(__name__)

UNSEALED = Verdict(
    cause=Cause.BACKEND_ERROR,
    message="every pod of it ended well, and the store has no seal of one or more of them",
    advice="see whether the store was put back to an earlier state, or its service is of another release",
)
_UNSEALED_SECONDS = 60.0

_MOST_SPECS = MOST_JOBS = 4096
# Verdicts also depend on how long something has been so; none is in more of a hurry than a hub that looks
# every few seconds.
KEPT_SECONDS = 4.0
_COUNTS = 0.01


@dataclass(frozen=True, kw_only=True)
class JudgedStatus:
    """A job's status at a look, and all that it rests on, but for the time. :param recorded: its status in the ledger."""

    seen: JobObjects
    recorded: JobStatus
    place: QueuePlace | None
    found: JobStatus
    at: float

    def stands(self, seen: JobObjects, recorded: JobStatus, place: QueuePlace | None, *, now: float) -> bool:
        """Whether a look would find the same now: what is seen in a mirror is one object until it changes."""
        same = self.seen is seen and self.place == place and self.recorded == recorded
        return same and 0.0 <= now - self.at < KEPT_SECONDS


@dataclass
class JobMemory:
    """What is remembered of one job between looks."""

    restarts: RestartNotes
    gang: GangWatch = field(default_factory=GangWatch)
    judged: JudgedStatus | None = None
    tally: Tally | None = None
    idleness: Idleness | None = None


class JobMemories:
    """What is remembered of each job. Safe to share between threads. Of very many jobs the oldest are forgotten."""

    def __init__(self, store: ServiceStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._kept: dict[str, JobMemory] = {}

    def of(self, job_id: str) -> JobMemory:
        """Return what is remembered of a job."""
        with self._lock:
            found = self._kept.pop(job_id, None) or JobMemory(RestartNotes(self._store))
            self._kept[job_id] = found
            while len(self._kept) > MOST_JOBS:
                self._kept.pop(next(iter(self._kept)))
            return found

    def forget(self, job_id: str) -> None:
        """Know nothing more of a job, which has ended."""
        with self._lock:
            self._kept.pop(job_id, None)


class KubernetesRunner:
    """Runs jobs on one namespace; see :class:`muster.backends.jobs.runner.Runner`.

    :param client: is patient where jobs are submitted; all else answers within seconds.
    :param resolve: returns the values of secrets that this process has, KeyError for others.
    """

    pauses_seconds = (0.05, 0.5)
    part_bytes = 4 << 20  # a request costs more than the memory
    margin_seconds = OWN_SECONDS + 60.0

    def __init__(
        self,
        client: Client,
        *,
        site: ClusterSite,
        store: ServiceStore,
        resolve: Resolve,
    ) -> None:
        self._client = client.patient(QUICK_SECONDS)
        self._site = site
        self._store = store
        self._resolve = resolve
        self._survey = Survey(client, site)
        self._sight = Sight(self._client, site=site, survey=self._survey)
        self._ending = JobEnding(self._client, site=site, store=store, sight=self._sight)
        self._submitter = Submitter(
            client,
            site=site,
            store=store,
            survey=self._survey,
            resolve=resolve,
            size=lambda job, job_id: self._resizing.size(job, job_id),
        )
        self._resizing = Resizing(self._client, site=site, store=store, submitter=self._submitter)
        self._memories = JobMemories(store)
        self._leaving = set[str]()  # have ended, and hold their quota until their last pod has gone
        self._reckoned: tuple[Sequence[Document], Mapping[str, QueuePlace]] = (), {}
        self._spec = lru_cache(_MOST_SPECS)(store.ledger.spec)

    def check(self, job: JobSpec) -> tuple[str, ...]:
        """Refuse what can never run here, as far as the cluster and a dry run tell; nothing is made."""
        return self._submitter.check(job)

    def side_by_side(self, job: JobSpec) -> None:
        """None: the cluster's queues count CPUs, too."""

    def tracking(self, job: JobSpec) -> Tracking:
        """Return the variables of the job: pods reach MLflow by nothing else."""
        hidden = (name for name, secret in job.secrets.items() if secret.source == "kubernetes")
        return Tracking(
            variables={**job.env, **secret_values(job, self._resolve)},
            chosen=URI in job.env or URI in job.secrets,
            containers=True,
            hidden=tuple(name for name in hidden if name.startswith("MLFLOW_")),
        )

    def build(self, image: str, lock: Path, digest: str, say: Callable[[str], None]) -> None:
        """Do nothing: an image is a container, which was pushed to its registry before."""

    def start(self, job: JobSpec, status: JobStatus) -> None:
        """Make the job's objects, as far as they are not there; one that was cancelled meanwhile is ended."""
        self._submitter.submit(job, status)
        self._ending.go_on(job, status.job_id)

    def look(self, *, many: bool) -> Look:
        """Follow the cluster where many jobs are looked at: then no look costs a request.

        What the cluster has is looked up again once a minute where some of them wait for it.
        """
        if many:
            with suppress(Unreachable):  # then what is recorded is all that can be told
                self._sight.follow()
        self._note_given_back()
        return partial(self._look, places=self._places())

    def stop(self, job: JobSpec, status: JobStatus, why: Verdict, *, owner: str | None) -> bool:
        """Write down why the job ends, unless that is decided, and begin to delete its objects."""
        observed = self._observed(job, status.job_id)
        status = self._store.ledger.status(status.job_id)  # anew: it may have been adopted meanwhile
        if not status.state.ended and owner not in (None, status.owner):
            return False
        if not is_decided(status) and not self._ending.decide(status, why, observed=observed, owner=owner):
            return False
        try:
            self._ending.go_on(job, status.job_id)
        except Unreachable as error:  # its end is written down: the next look goes on with it
            log.warning("job %s is ended as soon as the cluster answers: %s", status.job_id, error)
        return True

    def end(self, job: JobSpec, job_id: str, *, late: bool) -> str:
        """Record the end once no pod runs: ranks have their grace, and a commit may take its time."""
        running = self._ending.running(job_id)
        if not running:
            return "" if self._ending.go_on(job, job_id).state.ended else "the store service commits it"
        left = (
            f"{', '.join(running[:5])} runs; `kubectl get pods --selector={JOB_LABEL}={job_id}` shows where"
        )
        if late:
            raise BackendError(f"job {job_id} is being ended, and that takes too long: {left}")
        return left

    def clear(self, job: JobSpec, job_id: str) -> bool:
        """Begin to delete the job's objects; whether that was not begun yet."""
        begun = self._ending.clear(job, job_id)
        if begun and WORKLOAD in self._survey.kinds():
            self._leaving.add(job_id)
        return begun

    def left(self) -> set[str]:
        """Return the jobs that have objects here."""
        return {document["metadata"]["labels"][JOB_LABEL] for document in self._sight.roots()}

    def close(self) -> None:
        """Follow the cluster no longer."""
        self._sight.close()

    def _look(self, status: JobStatus, *, places: Mapping[str, QueuePlace]) -> JobStatus:
        """Add to what is recorded of a job what the cluster shows of it, if it shows anything."""
        job_id = status.job_id
        if status.state.ended:
            self._memories.forget(job_id)
            return status
        try:
            return self._looked(self._spec(job_id), status, places)
        except (
            Unreachable,
            Forbidden,
        ) as error:  # what runs goes on; one that starts knows of no rights at first
            return replace(status, reason=one_line(f"nothing can be seen of it now: {error}"))
        except StoreError as error:
            if type(error) is not StoreError:
                raise
            # A token that only reads, or a full claim: its end is due, and another's look writes it down.
            job = self._spec(job_id)
            seen = self._sight.seen(job, job_id)
            shown = status if seen.root is None else merged(status, observe(seen, as_made(job, seen.root)))
            return replace(shown, reason=one_line(f"its end is due, and is not written down here: {error}"))

    def _looked(self, job: JobSpec, status: JobStatus, places: Mapping[str, QueuePlace]) -> JobStatus:
        if status.verdict is not None:
            return self._ending.go_on(job, status.job_id)
        if status.state is JobState.COMMITTING:
            return replace(status, reason=status.reason or "every replica has sealed")
        seen = self._sight.seen(job, status.job_id)
        if seen.root is None:
            return self._rootless(job, status)
        memory = self._memories.of(status.job_id)
        if job.elastic:
            observed = observe(seen, as_made(job, seen.root))
            self._resizing.look(job, status.job_id, seen.root, observed, memory.gang)
            job = as_made(job, seen.root)
        self._note_tally(job, status.job_id, seen, memory)
        place, now, judged = _place(seen, places), time.time(), memory.judged
        if judged is not None and judged.stands(seen, status, place, now=now):
            return judged.found
        cluster = self._cluster(seen)
        observed = observe(seen, job, place=place, flavors=None if cluster is None else cluster.flavors)
        if self._verdict(job, status, seen, observed) is not None:
            return self._end(job, status.job_id)
        memory.restarts.tell(job, status.job_id, seen)
        found = merged(status, observed)
        memory.judged = JudgedStatus(seen=seen, recorded=status, place=place, found=found, at=now)
        return found

    def _note_tally(self, job: JobSpec, job_id: str, seen: JobObjects, memory: JobMemory) -> None:
        """Note when the gang holds its resources, once for each change; whose token only reads leaves that to others."""
        now = tallied(Tally(), seen, job)
        try:
            before = memory.tally or self._store.ledger.tally(job_id)
            now = tallied(before, seen, job)
            if now != before:
                self._store.ledger.note_tally(job_id, now)
        except Unavailable:
            return  # the next look notes it
        except StoreError as error:  # of such a token, or of a service of an earlier release
            log.info("when job %s holds its resources is not noted: %s", job_id, error)
        memory.tally = now

    def _note_given_back(self) -> None:
        """Note until when jobs that have ended held their quota: until Kueue has seen their end, or let their Workload go.

        What is less than a hundredth is not noted: the job's line in the log of usage is written again.
        """
        if not self._leaving or not self._sight.followed:
            return
        owned = {
            str(owner["name"]): each
            for each in self._sight.workloads()
            for owner in each["metadata"].get("ownerReferences") or ()
        }
        for job_id in [*self._leaving]:
            until = admission(owned[job_id])[1] if job_id in owned else time.time()
            if until is None:
                continue
            self._leaving.discard(job_id)
            with suppress(StoreError):  # as above
                before = self._store.ledger.tally(job_id)
                ended = before.times[-1].until if before.times else None
                if ended is not None and until - ended > _COUNTS * (ended - before.times[-1].since):
                    last = replace(before.times[-1], until=until)
                    self._store.ledger.note_tally(job_id, Tally(times=(last,)))

    def _cluster(self, seen: JobObjects) -> Cluster | None:
        """Return what the cluster has where a job waits for it, by one look a minute, however many wait."""
        return self._survey.last() if _waits(seen) else None

    def _end(self, job: JobSpec, job_id: str) -> JobStatus:
        """End a job that has come to its end, if that is what the API server says too."""
        seen = self._sight.asked(job, job_id)
        job = as_made(job, seen.root)
        status = self._store.ledger.status(job_id)
        if is_decided(status):
            return self._ending.go_on(job, job_id)
        observed = observe(seen, job)
        found = self._verdict(job, status, seen, observed)
        if found is None:
            return merged(status, observed)
        return self._ending.end(job, status, found, observed=observed)

    def _verdict(
        self, job: JobSpec, status: JobStatus, seen: JobObjects, observed: ObservedJob
    ) -> Verdict | None:
        """Say why a job has ended or has to; None where it goes on."""
        now, started, memory = (
            time.time(),
            status.started or observed.started,
            self._memories.of(status.job_id),
        )
        cluster = self._cluster(seen)
        return (
            verdict(seen, job, now=now, started=started, restarts=status.restarts, cluster=cluster)
            or overdue(
                job,
                state=observed.state,
                submitted=status.submitted,
                started=started,
                now=now,
                workload=seen.workload,
            )
            or memory.restarts.spins(job, seen, now=now)
            or self._idle(job, status.job_id, observed, now, memory)
            or self._unsealed(status.job_id, seen, now)
        )

    def _idle(
        self, job: JobSpec, job_id: str, observed: ObservedJob, now: float, memory: JobMemory
    ) -> Verdict | None:
        """Look whether a gang that runs does nothing; its log is warned once of each time, however many of us see it."""
        if not job.idle_seconds or observed.state is not JobState.RUNNING:
            return None

        def warn(line: str) -> None:
            name = f"idle-{round(now / job.idle_seconds)}"
            try:
                self._store.ledger.append(job_id, f"[muster] {line}\n".encode(), request=name)
            except StoreError as error:  # a token that only reads, or a full claim: no reason to see nothing
                log.warning("not in the log of job %s: %s (%s)", job_id, line, error)

        memory.idleness = memory.idleness or Idleness(job.idle_seconds)
        series = partial(self._store.ledger.series, job_id)
        return memory.idleness.look(series, replicas=observed.replicas, now=now, warn=warn)

    def _unsealed(self, job_id: str, seen: JobObjects, now: float) -> Verdict | None:
        """Look for the seals of a job whose pods have all ended well: it is committed, unless some are missing."""
        if seen.root is None or not completed(seen.root):
            return None
        ended = condition(seen.root, "Completed") or condition(seen.root, "Complete")
        if now - (seconds(ended.get("lastTransitionTime")) or now) < _UNSEALED_SECONDS:
            return None
        return UNSEALED if self._store.sealed(job_id) is None else None

    def _rootless(self, job: JobSpec, status: JobStatus) -> JobStatus:
        """Say what it means that a job has no objects: a mirror may be a moment behind."""
        job_id = status.job_id
        _, taken = self._store.attempt(job_id)
        if find_root(self._client, job, job_id, namespace=self._site.namespace) is not None:
            return merged(status, observe(self._sight.asked(job, job_id), job))
        status = self._store.ledger.status(job_id)
        if is_decided(status):
            return self._ending.go_on(job, job_id)
        now, since = time.time(), status.submitted
        found = (
            vanished(job_id, age_seconds=now - since)
            if taken
            else overdue(job, state=status.state, submitted=since, started=status.started, now=now)
        )
        if found is not None:
            return self._ending.end(job, status, found)
        if job.elastic and self._submitter.go_on(job, job_id):
            return replace(status, state=JobState.PREPARING, reason="its objects are made anew")
        lost = "it has no objects on the cluster; submit it again to have them made"
        return replace(status, alive=False, reason=lost)

    def _observed(self, job: JobSpec, job_id: str) -> ObservedJob | None:
        try:
            seen = self._sight.seen(job, job_id)
        except Unreachable:  # it is ended all the same
            return None
        if seen.root is None:
            return None
        job = as_made(job, seen.root)
        self._note_tally(
            job, job_id, seen, self._memories.of(job_id)
        )  # it may hold its quota since a moment ago
        return observe(seen, job)

    def _places(self) -> Mapping[str, QueuePlace]:
        workloads, (before, places) = self._sight.workloads(), self._reckoned
        if workloads is not before:
            places = reckoned_places(workloads)
            self._reckoned = workloads, places
        return places


def _waits(seen: JobObjects) -> bool:
    """Whether a queue holds a job, whose pods are not made before it lets them in, or a pod of it has no node."""
    held = seen.workload is not None and not holds(seen.workload, "Admitted")
    return held or any(not pod["spec"].get("nodeName") for pod in seen.pods)


def _place(seen: JobObjects, places: Mapping[str, QueuePlace]) -> QueuePlace | None:
    if seen.workload is None:
        return None
    metadata = seen.workload["metadata"]
    return places.get(f"{metadata['namespace']}/{metadata['name']}")
