"""The backend: where jobs and deployments run. The life of a job is the same everywhere.

What is known of a job lies in the store's ledger; what runs belongs to a :class:`~muster.backends.jobs.runner.Runner`, which
is all that tells processes on one machine (:mod:`muster.backends.local`) from a Kubernetes cluster
(:mod:`muster.backends.kubernetes`); contract tests (``tests/contract``) hold both to it. No process waits here for anything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from muster.backends.capacity import WaitingJob
from muster.backends.jobs.checks import check_store
from muster.backends.jobs.runner import Look, Runner
from muster.backends.place import NoAccess
from muster.core.cancelling import UNKNOWN
from muster.core.errors import (
    BackendError,
    Conflict,
    Corrupt,
    Forbidden,
    MusterError,
    NotFound,
    SpecError,
    StoreError,
    Unreachable,
)
from muster.core.extensions import used
from muster.core.job import JobSpec
from muster.core.names import check_job_id
from muster.core.status import JobEvent, JobState, JobStatus
from muster.core.tally import Tally
from muster.core.text import one_line
from muster.core.verdict import Cause, Verdict
from muster.volumes.protocols import LocalStore

if TYPE_CHECKING:
    from muster.backends.place import Place
    from muster.backends.releases.deployments import Deployments

PATIENCE_SECONDS = 90.0  # with a cluster that is away: an API server that restarts, or moves, is back by then
LOOK_SECONDS = 5.0  # the same for a person who looks, who does not wait as long as a job does

log = logging.getLogger(__name__)

_SOONEST_SECONDS, _LATEST_SECONDS = 0.05, 2.0  # between two tries to clear an ended job away


class Backend:
    """The life of the jobs of one place.

    :ivar store: the place's.
    :raises SpecError: what names the place is wrong.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.store: LocalStore = place.store
        with suppress(NoAccess):  # a person's token is for the store alone; what else is wrong is said now
            self.runner = place.runner
        self._ledger = self.store.ledger
        self._known = lru_cache(4096)(lambda job_id: (self._ledger.spec(job_id), self._ledger.tally(job_id)))

    @cached_property
    def runner(self) -> Runner:
        """The place's; asked for what needs no job."""
        return self.place.runner

    @property
    def deployments(self) -> Deployments:
        """The deployments of the place."""
        return self.place.deployments

    def submit(
        self, job: JobSpec, *, job_id: str, owner: str | None = None, tally: Tally | None = None
    ) -> tuple[str, ...]:
        """Start every replica or none, now or when there is room.

        The same job_id twice is one job: a running one goes on, an ended one stays ended, and one
        whose supervisor was lost is picked up from its last checkpoint, or committed if it had sealed.

        :param tally: for whom it runs.
        :return: what the runner warned of, where this call entered the job; its log begins with that.
        :raises SpecError: it can never run here, or the job_id is taken by another spec.
        """
        warnings = self._enter(job, job_id=job_id, owner=owner, tally=tally)
        try:
            if tally is not None:
                self._ledger.note_tally(job_id, tally)
        except StoreError as error:  # a full disk, or a service of an earlier release: no reason not to start
            log.warning("for whom job %s runs is not noted: %s", job_id, error)
        status = self._ledger.status(job_id)
        if status.state.ended:
            self.runner.clear(job, job_id)
        elif let_in := self._let_in(job, status, tally):
            self.runner.start(job, let_in)
        return warnings

    def status(self, job_id: str) -> JobStatus:
        """Report the job as it is now; never wait."""
        status = self._ledger.status(job_id)
        return status if status.state.ended else self._look(many=False)(status)

    def statuses(self, job_ids: Iterable[str]) -> dict[str, JobStatus]:
        """Report many jobs at once for little more than the cost of one; leave out what cannot be found or read."""
        recorded = self._ledger.statuses(list(job_ids))
        look = self._look(many=any(not status.state.ended for status in recorded))
        found = dict[str, JobStatus]()
        for status in recorded:
            with suppress(NotFound, Corrupt):
                found[status.job_id] = _looked(look, status)
        return found

    def kept(self, job_ids: Sequence[str] | None = None) -> tuple[WaitingJob, ...]:
        """Return the jobs that stand in no queue yet, oldest first: those that an extension keeps, such as for a budget.

        :param job_ids: of these; None: of all.
        """
        if not self._kept(None, Tally()):
            return ()
        recorded = self._ledger.statuses(self._ledger.jobs() if job_ids is None else job_ids)
        kept = {status.job_id: status for status in recorded if _is_kept(status) and status.reason}
        specs = self._ledger.specs([*kept])
        return tuple(_waiting(kept[job_id], job) for job_id, job in specs.items())

    async def watch(self, job_id: str, *, after: int = 0) -> AsyncIterator[JobEvent]:
        """Yield lines and changes of state until the job has ended; its end is the last event.

        :param after: the offset of the last event that was seen, to go on after a disconnect.
        """
        import asyncio  # with it comes ssl: too much for a command that only asks

        offset, seen, since = after, None, time.monotonic()
        while True:
            status, data, offset = await asyncio.to_thread(self._watched, job_id, offset)
            while data:  # never all of it at once: a log may be larger than the memory that there is
                lines = tuple(data.decode("utf-8", "replace").splitlines())
                yield JobEvent(offset=offset, lines=lines)
                if not status.state.ended:
                    break
                data, offset = await asyncio.to_thread(self._lines, job_id, offset)
            if status.state.ended:
                await self._cleared(job_id)
            if status != seen:
                seen, since = status, time.monotonic()
                yield JobEvent(offset=offset, status=status)
            if status.state.ended:
                return
            if len(data) > self.runner.part_bytes // 2:
                continue  # there is more of it
            await asyncio.sleep(self._pause(since))

    def cancel(
        self, job_id: str, *, owner: str | None = None, wait: bool = True, why: Verdict = UNKNOWN
    ) -> None:
        """End the job and leave no process. Idempotent; nothing happens for another owner's job.

        :param owner: who asks; None is an operator at the command line and always may.
        :param wait: whether to return only when nothing of it runs any more. Where not, the job's end
            is certain on return, and its ranks may still have their grace.
        """
        job, status = self._ledger.spec(job_id), self._ledger.status(job_id)
        if status.state.ended:
            with suppress(Unreachable):  # the sweep takes away what is left
                self.runner.clear(job, job_id)
        elif not self.runner.stop(job, status, why, owner=owner):
            return
        since = time.monotonic()
        deadline = since + job.grace_seconds + self.runner.margin_seconds
        while wait and not self._is_over(job, job_id, deadline):
            time.sleep(self._pause(since))  # the pace of asking

    def sweep(self) -> tuple[str, ...]:
        """Delete what jobs that ended unwatched left where they ran; return the ids of those jobs.

        Idempotent, and any number of us may do it at once.
        """
        swept = []
        for job_id, status in self.statuses(sorted(self.runner.left())).items():
            try:
                if status.state.ended and self.runner.clear(self._ledger.spec(job_id), job_id):
                    swept.append(job_id)
            except Unreachable as error:
                log.warning("job %s and those after it are swept in the next round: %s", job_id, error)
                break
            except MusterError as error:  # the others are swept all the same
                log.warning("job %s cannot be swept: %s", job_id, error)
        return tuple(swept)

    def close(self) -> None:
        """Give back what is held open to look at jobs; jobs go on."""
        self.place.close()

    def _let_in(self, job: JobSpec, status: JobStatus, tally: Tally | None) -> JobStatus | None:
        """Return the status of a job that may start; None where an extension keeps it. What was let in before is not asked for.

        The ledger has a kept job as queued without a process. Once it may start it looks like one that was lost in the queue:
        its task submits it again, with its secrets.
        """
        if not _is_kept(status):
            return status
        why = self._kept(job, tally or self._ledger.tally(status.job_id))
        status = replace(status, alive=not why, reason=why)
        self._ledger.update(status)
        return None if why else status

    def _kept(self, job: JobSpec | None, tally: Tally, *, entered: bool = False) -> str:
        asked = (held(self.store, job, tally, entered) for held in used(lambda each: each.held))
        return next(filter(None, asked), "")

    def _look(self, *, many: bool) -> Look:
        """Return the runner's look, but for jobs that are kept from their start: these say why, and end when they are overdue."""
        try:
            look = self.runner.look(many=many)
        except NoAccess:  # as with a person's token, which is for the store alone
            return lambda status: status

        def looked(status: JobStatus) -> JobStatus:
            if not _is_kept(status) or not (why := self._kept(*self._known(status.job_id))):
                return look(status)
            limit = self._known(status.job_id)[0].queue_timeout_seconds
            if time.time() <= status.submitted + limit:
                return replace(status, alive=True, reason=why)
            said = f"it waited longer than its queue_timeout of {limit:.6g} s: {why}"
            verdict = Verdict(cause=Cause.QUEUE_TIMEOUT, message=said, advice="raise it or the budget")
            try:
                self.cancel(status.job_id, wait=False, why=verdict)
            except StoreError:  # a token that only reads, or a full claim: another's look ends it
                return replace(status, alive=True, reason=said)
            return self._ledger.status(status.job_id)

        return looked

    def _enter(self, job: JobSpec, *, job_id: str, owner: str | None, tally: Tally | None) -> tuple[str, ...]:
        """Enter a job that is not known yet, with warnings as the first lines of its log; return these.

        A known job is not checked again: what it was made of need not be here any more. One that is kept is entered as kept, so
        that it does not start where this process is killed next.
        """
        check_job_id(job_id)
        warnings: tuple[str, ...] = ()
        kept = ""
        if not self._is_known(job_id):
            warnings = self.runner.check(job)
            check_store(job, self.store)
            kept = self._kept(job, tally or Tally(), entered=True)
        try:
            created = self._ledger.create(job_id, job, owner=owner, kept=kept)
        except Conflict as error:
            raise SpecError(str(error)) from error
        if created and warnings:
            self._ledger.append(job_id, "".join(f"[muster] {line}\n" for line in warnings).encode())
        return warnings if created else ()

    def _is_known(self, job_id: str) -> bool:
        try:
            self._ledger.status(job_id)
        except NotFound:
            return False
        return True

    def _pause(self, since: float) -> float:
        """Seconds until the next look at a job: the longer it has been in one state, the more, up to a limit.

        Each look takes CPU from the ranks, so this does not depend on how much they say.
        """
        soonest, latest = self.runner.pauses_seconds
        return min(max((time.monotonic() - since) / 20, soonest), latest)

    def _watched(self, job_id: str, offset: int) -> tuple[JobStatus, bytes, int]:
        """Look at a job and then at its log, in which nothing follows what is there once a job has ended."""
        status = self._ledger.status(job_id)
        status = status if status.state.ended else self._look(many=True)(status)
        return status, *self._lines(job_id, offset)

    def _lines(self, job_id: str, offset: int) -> tuple[bytes, int]:
        return self._ledger.read(job_id, after=offset, limit_bytes=self.runner.part_bytes)

    def _is_over(self, job: JobSpec, job_id: str, deadline: float) -> bool:
        """Bring a stopped job to its end as far as that goes now; whether nothing of it is left to do."""
        late = time.monotonic() > deadline
        try:
            return not self.runner.end(job, job_id, late=late)
        except Unreachable as error:  # its end is decided: the next look at it goes on
            if late:
                raise BackendError(
                    f"job {job_id} is being ended, and that takes too long: {error}"
                ) from error
            return False

    async def _cleared(self, job_id: str) -> None:
        """Clear an ended job away, and wait for a cluster that is away just now.

        Its result does not depend on that: what is left after all, the sweep takes away.
        """
        import asyncio

        deadline, pause = time.monotonic() + PATIENCE_SECONDS, _SOONEST_SECONDS
        while left := await asyncio.to_thread(self._clear, job_id):
            if time.monotonic() > deadline:
                log.warning("objects of job %s, which has ended, are left to the sweep: %s", job_id, left)
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LATEST_SECONDS)

    def _clear(self, job_id: str) -> str:
        """Clear an ended job away; say what is in the way for now."""
        try:
            self.runner.clear(self._ledger.spec(job_id), job_id)
        except (Unreachable, Forbidden) as error:  # an API server that starts knows of no rights at first
            return str(error)
        except (MusterError, OSError) as error:
            log.warning("objects of job %s, which has ended, are left to the sweep: %s", job_id, error)
        return ""


def _waiting(status: JobStatus, job: JobSpec) -> WaitingJob:
    needs = dict.fromkeys(("cpu", "memory", "nvidia.com/gpu"), 0.0)
    for role in job.roles:
        asked = role.resources
        for name, amount in zip(needs, (asked.cpus, asked.memory_gib * (1 << 30), asked.gpus), strict=True):
            needs[name] += role.least * amount
    return WaitingJob(
        name=status.job_id,
        job_id=status.job_id,
        title=job.name,
        queue=job.queue or "",
        priority=0,
        since=status.submitted,
        why=status.reason,
        needs={name: amount for name, amount in needs.items() if amount},
    )


def _is_kept(status: JobStatus) -> bool:
    return status.state is JobState.QUEUED and not status.alive


def _looked(look: Look, status: JobStatus) -> JobStatus:
    """Look at one of many: what is wrong with it keeps none of the others from being reported."""
    try:
        return look(status)
    except (NotFound, Corrupt):
        raise
    except MusterError as error:
        log.warning("job %s cannot be looked at: %s", status.job_id, error)
        return replace(status, reason=one_line(str(error)))
    except Exception as error:
        log.exception("job %s cannot be looked at, by a defect of muster's own", status.job_id)
        said = f"it cannot be looked at, by a defect of muster's own ({type(error).__name__}: {error})"
        return replace(status, reason=one_line(said))
