"""Jobs on one machine: asked for, looked at, watched and cancelled by whoever comes by.

No process of ours waits here for anything: what is known lies in the store's ledger, what waits in
the queue's folder, and what runs belongs to its supervisor.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache

from muster.backends.jobs.checks import Resolve, from_environment, secret_values
from muster.backends.jobs.entering import enter
from muster.backends.local.admission import Admission
from muster.backends.local.finish import commit, ended_as
from muster.backends.local.limits import end_left_behind
from muster.backends.local.machine import Machine
from muster.backends.local.places import Places
from muster.backends.local.processes import Process
from muster.backends.local.queue import PRIORITIES, Ticket, gpus_needed, memory_needed
from muster.core.cancelling import UNKNOWN
from muster.core.errors import CannotSchedule, Corrupt, NotFound, SpecError
from muster.core.job import JobSpec
from muster.core.settings import Settings
from muster.core.status import JobEvent, JobState, JobStatus
from muster.core.verdict import Verdict
from muster.core.wire import loads
from muster.volumes.durability import translated
from muster.volumes.folder import FolderStore
from muster.volumes.held import give_back

_SOONEST_SECONDS = 0.01
_LATEST_SECONDS = 0.2
# Over and above the grace that the ranks get: the worker's and the supervisor's own way down.
_CANCEL_MARGIN_SECONDS = 10.0


class LocalJobs:
    """The half of :class:`~muster.backends.base.Backend` that is about jobs.

    :param resolve: returns secrets' values in this process; KeyError where it does not have one.
    """

    def __init__(
        self,
        settings: Settings,
        store: FolderStore,
        *,
        machine: Machine | None = None,
        resolve: Resolve = from_environment,
    ) -> None:
        self._settings = settings
        self._store = store
        self._ledger = store.ledger
        self._machine = machine or Machine.here()
        self._places = Places(settings.home)
        self._resolve = resolve
        self._admission = Admission(
            settings=settings, machine=self._machine, ledger=store.ledger, resolve=resolve
        )
        self._queue = self._admission.queue

    def check(self, job: JobSpec) -> tuple[str, ...]:
        """Refuse what can never run on this machine; return warnings about what runs otherwise."""
        _check_linux()
        wanted, there = memory_needed(job), self._machine.memory_gib
        if wanted > there:
            raise CannotSchedule(
                f"job {job.name} asks for {wanted:g} GiB of memory (all replicas together), this machine has "
                f"{there:.1f} GiB: lower memory_gib or the number of replicas, or run it on a bigger machine"
            )
        for variable, secret in job.secrets.items():
            if secret.source == "kubernetes":
                raise CannotSchedule(
                    f"secret {variable} comes from a Kubernetes Secret, and this is one machine: "
                    "use the source 'environment' or 'connection' here"
                )
        return tuple(line for line in (self._gpu_warning(job), *_warnings(job)) if line)

    def submit(self, job: JobSpec, *, job_id: str, owner: str | None = None) -> None:
        """Enter the job and start it now if there is room; see :meth:`muster.backends.base.Backend.submit`."""
        enter(job, job_id=job_id, owner=owner, store=self._store, check=self._check_here)
        status = self._ledger.status(job_id)
        if status.state.ended:
            self._tidy(job_id)
            return
        with translated(f"let job {job_id} wait"):
            self._queue.enter(
                Ticket.of(job, job_id=job_id, submitted=status.submitted, machine=self._machine)
            )
        self._admission.admit(wait=True)

    def status(self, job_id: str) -> JobStatus:
        """Report the job as it is now, and let in whoever can start."""
        status = self._ledger.status(job_id)
        if status.state.ended:
            return status
        self._admission.admit(wait=False)
        return self._look(status, self._queue.reasons)

    def statuses(self, job_ids: Iterable[str]) -> dict[str, JobStatus]:
        """Report many jobs as they are now, and let in whoever can start; the queue is read once for all."""
        self._admission.admit(wait=False)
        reasons = cache(self._queue.reasons)
        found = {}
        for job_id in job_ids:
            with suppress(NotFound, Corrupt):
                found[job_id] = self._look(self._ledger.status(job_id), reasons)
        return found

    def _look(self, status: JobStatus, reasons: Callable[[], Mapping[str, str]]) -> JobStatus:
        """Add to what is recorded of a job whether anybody works on it, and what it waits for."""
        if status.state.ended:
            return status
        if self._queue.waits(status.job_id):
            return replace(status, alive=True, reason=reasons().get(status.job_id) or status.reason)
        if self._queue.holds(status.job_id):
            return replace(status, alive=True)
        status = self._ledger.status(status.job_id)  # it may have ended while we looked
        if status.state.ended:
            return status
        lost = "its supervisor is gone; submit it again to go on from its checkpoint"
        return replace(status, alive=False, reason=lost)

    async def watch(self, job_id: str, *, after: str | None = None) -> AsyncIterator[JobEvent]:
        """Yield lines and changes of state until the job has ended."""
        import asyncio  # with it comes ssl: too much for a command that only asks

        offset = _offset(after)
        seen: JobStatus | None = None
        since = time.monotonic()
        while True:
            status = await asyncio.to_thread(self.status, job_id)
            while True:  # to the end, and never all of it at once: a log may be larger than what we may use
                data, offset = await asyncio.to_thread(self._lines, job_id, offset)
                if not data:
                    break
                yield JobEvent(cursor=str(offset), lines=tuple(data.decode("utf-8", "replace").splitlines()))
            if status != seen:
                seen, since = status, time.monotonic()
                yield JobEvent(cursor=str(offset), status=status)
            if status.state.ended:
                return
            # What has long been as it is is looked at less often, however much it says: each look
            # takes CPU from the ranks.
            age = time.monotonic() - since
            await asyncio.sleep(min(max(age / 20, _SOONEST_SECONDS), _LATEST_SECONDS))

    def cancel(
        self, job_id: str, *, owner: str | None = None, wait: bool = True, why: Verdict = UNKNOWN
    ) -> None:
        """End the job and leave no process; see :meth:`muster.backends.base.Backend.cancel`.

        :raises BackendError: something of it does not die.
        """
        status = self._ledger.status(job_id)
        if status.state.ended:
            self._tidy(job_id)
            return
        if not self._ask_to_end(job_id, owner=owner, why=why):
            return
        if self._queue.withdraw(job_id, lambda: self._bury(job_id, why)):
            self._tidy(job_id)
            return
        if wait:
            spec = self._ledger.spec(job_id)
            self._await_end(job_id, spec.grace_seconds + _CANCEL_MARGIN_SECONDS)
        self._tidy(job_id)

    def _ask_to_end(self, job_id: str, *, owner: str | None, why: Verdict) -> bool:
        """Ask for the job's end, unless another owner has it: it cannot be adopted between that look and the asking."""
        asked = self._places.job(job_id)
        if owner is None:
            asked.ask_to_end(why)
            return True
        with self._ledger.owned(job_id, owner=owner) as mine:
            if mine:
                asked.ask_to_end(why)
            return mine

    def _tidy(self, job_id: str) -> None:
        """Do what a supervisor that was killed left undone: end its job, or only take its files away."""
        if not self._queue.holds(job_id) and (
            self._places.job(job_id).root.exists() or self._queue.left(job_id)
        ):
            with self._queue.seize(job_id) as lost:
                if lost and not self._ledger.status(job_id).state.ended:
                    self._bury(job_id, self._places.job(job_id).why())
                if lost:
                    self._places.job(job_id).remove()

    def _await_end(self, job_id: str, seconds: float) -> None:
        """Wait for the supervisor to end the job; end the supervisor if it does not."""
        deadline = time.monotonic() + seconds
        while self._queue.holds(job_id):
            if time.monotonic() > deadline:
                self._kill_supervisor(job_id)
                end_left_behind(self._places.mark(job_id))
            time.sleep(_SOONEST_SECONDS)

    def _kill_supervisor(self, job_id: str) -> None:
        """End a supervisor that does not end its job, if it is still the process that wrote its name."""
        try:
            process = loads(Process, self._places.job(job_id).supervisor.read_bytes())
        except FileNotFoundError:
            return  # it ended meanwhile
        process.kill()

    def _bury(self, job_id: str, why: Verdict) -> None:
        """End a job that has no supervisor: what one that was lost had begun to commit is committed."""
        end_left_behind(self._places.mark(job_id))
        status = self._ledger.status(job_id)
        if status.state is JobState.COMMITTING:
            result = commit(self._store, job_id, self._places.job(job_id))
            self._ledger.update(replace(status, state=JobState.SUCCEEDED, ended=time.time(), result=result))
        else:
            self._cancelled(job_id, why)
            with suppress(OSError):  # what cannot go now is gc's, and no reason not to end it
                give_back(self._store, job_id, cause=why.cause)
        self._store.release(job_id)

    def _cancelled(self, job_id: str, why: Verdict) -> None:
        status = self._ledger.status(job_id)
        self._ledger.append(job_id, (why.render(job_id=job_id) + "\n").encode())
        self._ledger.update(replace(status, state=ended_as(why), ended=time.time(), verdict=why))

    def _check_here(self, job: JobSpec) -> tuple[str, ...]:
        """Do what :meth:`check` does, and refuse secrets that this process does not have."""
        warnings = self.check(job)
        secret_values(job, self._resolve)
        return warnings

    def _gpu_warning(self, job: JobSpec) -> str:
        wanted, there = gpus_needed(job), len(self._machine.gpus)
        if wanted <= there:
            return ""
        if self._settings.require_gpus or job.require_gpus:
            raise CannotSchedule(
                f"job {job.name} asks for {wanted} GPUs and requires them, this machine has {there}: "
                "ask for fewer, or let it run on CPUs (without require_gpus)"
            )
        return f"the gang asks for {wanted} GPUs, this machine has {there}: the whole gang runs on CPUs"

    def _lines(self, job_id: str, offset: int) -> tuple[bytes, int]:
        return self._ledger.read(job_id, after=offset)


def _check_linux() -> None:
    if sys.platform != "linux":
        raise CannotSchedule(
            f"muster runs jobs on Linux, this is {sys.platform}: use WSL2 on Windows, a Linux virtual machine elsewhere"
        )


def _warnings(job: JobSpec) -> list[str]:
    found = []
    if job.priority is not None and job.priority not in PRIORITIES:
        known = ", ".join(PRIORITIES)
        found.append(
            f"priority {job.priority} is not known on one machine (known are {known}): it counts as normal"
        )
    if any(role.resources.gpu_class for role in job.roles):
        found.append("gpu_class is not looked at on one machine: any of its cards is taken")
    if any(role.resources.disk_gib for role in job.roles):
        found.append("disk_gib is not kept on one machine: jobs share what the disk has")
    if job.queue is not None:
        found.append(f"queue {job.queue} is for a cluster: one machine has one queue")
    if job.pod_override:
        found.append("pod_override is for a cluster: one machine has no pods, and does not look at it")
    return found


def _offset(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit()):
        raise SpecError(f"cursor {cursor!r:.40}: expected one that watch() gave")
    return int(cursor)
