"""Jobs on a cluster: looked at, watched and cancelled by whoever comes by.

What has succeeded stands in the ledger, written by the store service. All else is told by the cluster's
objects: how a job is now, and why it ended without success, which whoever sees it first records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

from muster.backends.base import PATIENCE_SECONDS
from muster.backends.capacity import Place
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import Document
from muster.backends.kubernetes.cluster.facts import Flavor, condition, holds
from muster.backends.kubernetes.cluster.survey import Survey
from muster.backends.kubernetes.labels import JOB as JOB_LABEL
from muster.backends.kubernetes.lifecycle.ending import Ending
from muster.backends.kubernetes.lifecycle.judged import Basis, Judged
from muster.backends.kubernetes.lifecycle.restarts import Heralds
from muster.backends.kubernetes.manifests.pods import OWN_SECONDS
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.kubernetes.state.observe import Observed, completed, merged, observe
from muster.backends.kubernetes.state.queueing import reckoned_places
from muster.backends.kubernetes.state.roots import find_root
from muster.backends.kubernetes.state.seen import Seen, seconds
from muster.backends.kubernetes.state.sight import Sight
from muster.backends.kubernetes.state.verdicts import overdue, vanished, verdict
from muster.core.cancelling import UNKNOWN
from muster.core.errors import BackendError, Corrupt, Forbidden, MusterError, NotFound, SpecError, Unreachable
from muster.core.job import JobSpec
from muster.core.status import JobEvent, JobState, JobStatus
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

_COMMIT = "the store service commits it"
_SPECS = 4096
_MOST_BYTES = 4 << 20  # of a log at a time, however long it is
_SOONEST_SECONDS, _LATEST_SECONDS = 0.05, 0.5
_LONGEST_PAUSE_SECONDS = 2.0
_CANCEL_PAUSE_SECONDS, _CANCEL_MARGIN_SECONDS = 0.2, 60.0


class Jobs:
    """The half of :class:`~muster.backends.base.Backend` that is about jobs which were submitted."""

    def __init__(
        self,
        client: Client,
        *,
        site: ClusterSite,
        store: ServiceStore,
        survey: Survey,
        sight: Sight,
        ending: Ending,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._site = site
        self._store = store
        self._survey = survey
        self._sight = sight
        self._ending = ending
        self._clock = clock
        self._heralds = Heralds(store)
        self._judged = Judged()
        self._reckoned: tuple[Sequence[Document], Mapping[str, Place]] = (), {}
        self.spec = lru_cache(_SPECS)(store.ledger.spec)

    def status(self, job_id: str) -> JobStatus:
        """Report the job as it is now, and bring it to its end if it has come to one."""
        return self._look(self._store.ledger.status(job_id), self._places())

    def statuses(self, job_ids: Iterable[str]) -> dict[str, JobStatus]:
        """Report many jobs at once: one question to the store, and to the cluster none once it is followed.

        What the cluster has is looked up again once a minute where some of them wait for it.
        """
        recorded = self._store.ledger.statuses(list(job_ids))
        if any(not status.state.ended for status in recorded):
            with suppress(Unreachable):  # then what is recorded is all that can be told
                self._sight.follow()
        places = self._places()
        found: dict[str, JobStatus] = {}
        for status in recorded:
            try:
                found[status.job_id] = self._look(status, places)
            except (NotFound, Corrupt):
                continue
            except MusterError as error:  # all others are reported all the same
                log.warning("job %s cannot be looked at: %s", status.job_id, error)
                found[status.job_id] = replace(status, reason=one_line(str(error)))
            except Exception as error:  # likewise
                log.exception("job %s cannot be looked at, by a defect of muster's own", status.job_id)
                said = (
                    f"it cannot be looked at, by a defect of muster's own ({type(error).__name__}: {error})"
                )
                found[status.job_id] = replace(status, reason=one_line(said))
        return found

    async def watch(self, job_id: str, *, after: str | None = None) -> AsyncIterator[JobEvent]:
        """Yield lines and changes of state until the job has ended."""
        import asyncio

        offset, seen, since = _offset(after), None, time.monotonic()
        while True:
            status, data, offset = await asyncio.to_thread(self._news, job_id, offset)
            while data:
                yield JobEvent(cursor=str(offset), lines=tuple(data.decode("utf-8", "replace").splitlines()))
                if not status.state.ended:
                    break
                data, offset = await asyncio.to_thread(self._lines, job_id, offset)
            if status.state.ended:
                await self._cleared(job_id)
            if status != seen:
                seen, since = status, time.monotonic()
                yield JobEvent(cursor=str(offset), status=status)
            if status.state.ended:
                return
            age = time.monotonic() - since
            await asyncio.sleep(min(max(age / 20, _SOONEST_SECONDS), _LATEST_SECONDS))

    def cancel(
        self, job_id: str, *, owner: str | None = None, wait: bool = True, why: Verdict = UNKNOWN
    ) -> None:
        """End the job and leave no pod; see :meth:`muster.backends.base.Backend.cancel`.

        :raises BackendError: something of it does not end.
        """
        job = self.spec(job_id)
        goes_on = not self._store.ledger.status(job_id).state.ended
        observed = self._observed(job, job_id) if goes_on else None
        status = self._store.ledger.status(job_id)  # anew: it may have been adopted meanwhile
        if not status.state.ended and owner not in (None, status.owner):
            return
        undecided = status.verdict is None and status.state is not JobState.COMMITTING
        if (
            not status.state.ended
            and undecided
            and not self._ending.decide(status, why, observed=observed, owner=owner)
        ):
            return  # it was adopted since
        try:
            self._ending.go_on(job, job_id)
        except Unreachable as error:  # its end is written down: whoever looks next goes on with it
            log.warning("job %s is ended as soon as the cluster answers: %s", job_id, error)
        if wait:
            self._await_end(job, job_id)

    def _news(self, job_id: str, offset: int) -> tuple[JobStatus, bytes, int]:
        """How a job is, and then its next lines: where it has ended, no other come."""
        status = self._store.ledger.status(job_id)
        if not status.state.ended:
            with suppress(Unreachable):
                self._sight.follow()
            status = self._look(status, self._places())
        return status, *self._lines(job_id, offset)

    def _lines(self, job_id: str, offset: int) -> tuple[bytes, int]:
        return self._store.ledger.read(job_id, after=offset, limit_bytes=_MOST_BYTES)

    async def _cleared(self, job_id: str) -> None:
        """Take away what is left of a job that has ended, and wait for a cluster that is away just now.

        Its result does not depend on that: what is left after all, the sweep takes away.
        """
        import asyncio

        deadline, pause = self._clock() + PATIENCE_SECONDS, _SOONEST_SECONDS
        while left := await asyncio.to_thread(self._clear, job_id):
            if self._clock() > deadline:
                log.warning("objects of job %s, which has ended, are left to the sweep: %s", job_id, left)
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _clear(self, job_id: str) -> str:
        """Take away what is left of a job that has ended; say what is in the way for now."""
        try:
            self._ending.clear(self.spec(job_id), job_id)
        except (Unreachable, Forbidden) as error:  # an API server that starts knows of no rights at first
            return str(error)
        except MusterError as error:
            log.warning("objects of job %s, which has ended, are left to the sweep: %s", job_id, error)
        return ""

    def _look(self, status: JobStatus, places: Mapping[str, Place]) -> JobStatus:
        """Add to what is recorded of a job what the cluster shows of it, if it shows anything."""
        if status.state.ended:
            self._heralds.forget(status.job_id)
            self._judged.forget(status.job_id)
            return status
        try:
            return self._looked(self.spec(status.job_id), status, places)
        except (
            Unreachable,
            Forbidden,
        ) as error:  # what runs goes on; one that starts knows of no rights at first
            return replace(status, reason=one_line(f"nothing can be seen of it now: {error}"))

    def _looked(self, job: JobSpec, status: JobStatus, places: Mapping[str, Place]) -> JobStatus:
        if status.verdict is not None:
            return self._ending.go_on(job, status.job_id)
        if status.state is JobState.COMMITTING:
            return replace(status, reason=status.reason or "every replica has sealed")
        seen = self._sight.seen(job, status.job_id)
        if seen.root is None:
            return self._rootless(job, status)
        basis, now = Basis(seen=seen, recorded=status, place=_place(seen, places)), self._clock()
        found = self._judged.recall(status.job_id, basis, now=now)
        return found or self._judge(job, status, basis, now)

    def _judge(self, job: JobSpec, status: JobStatus, basis: Basis, now: float) -> JobStatus:
        observed = observe(basis.seen, job, place=basis.place, flavors=self._flavors(basis.seen))
        if self._verdict(job, status, basis.seen, observed) is not None:
            return self._end(job, status.job_id)
        self._heralds.tell(job, status.job_id, basis.seen)
        return self._judged.keep(status.job_id, basis, merged(status, observed), now=now)

    def _flavors(self, seen: Seen) -> Mapping[str, Flavor] | None:
        """Return the cluster's flavors where a job waits for one; None where they are not known."""
        cluster = self._survey.last() if _waits(seen) else None  # one look a minute, however many wait
        return None if cluster is None else cluster.flavors

    def _end(self, job: JobSpec, job_id: str) -> JobStatus:
        """End a job that has come to its end, if that is what the API server says too."""
        seen = self._sight.asked(job, job_id)
        status = self._store.ledger.status(job_id)
        if status.state.ended or status.verdict is not None or status.state is JobState.COMMITTING:
            return self._ending.go_on(job, job_id)
        observed = observe(seen, job)
        found = self._verdict(job, status, seen, observed)
        if found is None:
            return merged(status, observed)
        return self._ending.end(job, status, found, observed=observed)

    def _verdict(self, job: JobSpec, status: JobStatus, seen: Seen, observed: Observed) -> Verdict | None:
        """Say why a job has ended or has to; None where it goes on."""
        now, started = self._clock(), status.started or observed.started
        cluster = self._survey.last() if _waits(seen) else None  # one look a minute, however many wait
        return (
            verdict(seen, job, now=now, started=started, cluster=cluster)
            or overdue(
                job,
                state=observed.state,
                submitted=status.submitted,
                started=started,
                now=now,
                workload=seen.workload,
            )
            or self._unsealed(status.job_id, seen, now)
        )

    def _unsealed(self, job_id: str, seen: Seen, now: float) -> Verdict | None:
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
        if status.state.ended or status.verdict is not None or status.state is JobState.COMMITTING:
            return self._ending.go_on(job, job_id)
        found = vanished(job_id) if taken else self._overdue(job, status)
        if found is not None:
            return self._ending.end(job, status, found)
        lost = "it has no objects on the cluster; submit it again to have them made"
        return replace(status, alive=False, reason=lost)

    def _overdue(self, job: JobSpec, status: JobStatus) -> Verdict | None:
        now = self._clock()
        return overdue(job, state=status.state, submitted=status.submitted, started=status.started, now=now)

    def _observed(self, job: JobSpec, job_id: str) -> Observed | None:
        try:
            seen = self._sight.seen(job, job_id)
        except Unreachable:  # it is ended all the same
            return None
        return None if seen.root is None else observe(seen, job)

    def _places(self) -> Mapping[str, Place]:
        workloads, (before, places) = self._sight.workloads(), self._reckoned
        if workloads is not before:
            places = reckoned_places(workloads)
            self._reckoned = workloads, places
        return places

    def _await_end(self, job: JobSpec, job_id: str) -> None:
        """Return when nothing runs and the end is recorded: ranks have their grace, a commit takes its time."""
        deadline = self._clock() + job.grace_seconds + OWN_SECONDS + _CANCEL_MARGIN_SECONDS
        while goes_on := self._goes_on(job, job_id):
            if self._clock() > deadline and goes_on != _COMMIT:
                raise BackendError(f"job {job_id} is being ended, and that takes too long: {goes_on}")
            time.sleep(_CANCEL_PAUSE_SECONDS)  # the pace of asking; a commit may take its time

    def _goes_on(self, job: JobSpec, job_id: str) -> str:
        """Say what keeps a job from having ended; nothing where it has, and no pod of it runs."""
        try:
            running = self._ending.running(job_id)
            if running:
                return f"{', '.join(running[:5])} runs; `kubectl get pods --selector={JOB_LABEL}={job_id}` shows where"
            return "" if self._ending.go_on(job, job_id).state.ended else _COMMIT
        except Unreachable as error:
            return str(error)


def _waits(seen: Seen) -> bool:
    """Whether a queue holds a job, whose pods are not made before it lets them in, or a pod of it has no node."""
    held = seen.workload is not None and not holds(seen.workload, "Admitted")
    return held or any(not pod["spec"].get("nodeName") for pod in seen.pods)


def _place(seen: Seen, places: Mapping[str, Place]) -> Place | None:
    if seen.workload is None:
        return None
    metadata = seen.workload["metadata"]
    return places.get(f"{metadata['namespace']}/{metadata['name']}")


def _offset(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit()):
        raise SpecError(f"cursor {cursor!r:.40}: expected one that watch() gave")
    return int(cursor)
