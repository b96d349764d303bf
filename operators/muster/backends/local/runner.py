"""Runs jobs on one machine: tickets that wait, and one supervisor for each job that runs.

No process waits here for anything: what waits lies in the queue's folder, and what runs belongs to its
supervisor. A job's end is decided in its folder (:meth:`~muster.backends.local.places.JobFolder.ask_to_end`)
and recorded by its supervisor; for a job without one, by the process that asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from muster.backends.jobs.checks import Resolve, from_environment, secret_values
from muster.backends.jobs.ending import record
from muster.backends.jobs.runner import Look
from muster.backends.local.finish import commit
from muster.backends.local.limits import end_left_behind
from muster.backends.local.machine import Machine, cores
from muster.backends.local.places import Places
from muster.backends.local.processes import Process
from muster.backends.local.queue import Ticket, gpus_needed, memory_needed
from muster.backends.local.room import PRIORITIES
from muster.backends.local.start import Starter
from muster.backends.local.variables import variables
from muster.backends.tracking import URI, Tracking
from muster.core.errors import CannotSchedule
from muster.core.job import JobSpec
from muster.core.settings import Settings
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Verdict
from muster.core.wire import loads
from muster.images.environment import Environments
from muster.volumes.durability import translated
from muster.volumes.folder import FolderStore
from muster.volumes.survived import survived


class LocalRunner:
    """Runs jobs as processes; see :class:`muster.backends.jobs.runner.Runner`.

    :param machine: what there is to claim; looked up where it is not given.
    :param resolve: returns secrets' values in this process; KeyError where it does not have one.
    """

    pauses_seconds = (0.01, 0.2)
    part_bytes = 1 << 20
    margin_seconds = 10.0  # the worker's and the supervisor's own way down

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
        self._starter = Starter(
            settings=settings, machine=self._machine, ledger=store.ledger, resolve=resolve
        )
        self._queue = self._starter.queue

    def check(self, job: JobSpec) -> tuple[str, ...]:
        """Refuse what can never run on this machine, or lacks a secret; return warnings about what runs otherwise."""
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
        secret_values(job, self._resolve)
        return tuple(line for line in (self._gpu_warning(job), *_warnings(job)) if line)

    def side_by_side(self, job: JobSpec) -> int:
        """Return how many such jobs the cores are enough for: the queue here counts memory and GPUs alone."""
        cpus = sum(role.replicas * role.resources.cpus for role in job.roles)
        return max(1, int(cores() / cpus)) if cpus else cores()

    def tracking(self, job: JobSpec) -> Tracking:
        """Return the variables that the job's ranks find, and its image's Python once that is built."""
        python = Path(job.interpreter.path) if job.interpreter is not None else None
        python = python or Environments(self._settings.cache).find(job.image, job.image_digest)
        secrets = secret_values(job, self._resolve)
        return Tracking(
            variables=variables(
                job,
                python=python or Path("/usr/bin/python3"),
                settings=self._settings,
                secrets=secrets,
            ),
            chosen=URI in job.env or URI in secrets,
            python=python,
        )

    def build(self, image: str, lock: Path, digest: str, say: Callable[[str], None]) -> None:
        """Build the image's environment, unless it is there."""
        Environments(self._settings.cache).ensure(image, lock, digest, say)

    def start(self, job: JobSpec, status: JobStatus) -> None:
        """Let a job wait for room, and start it now if there is some."""
        job_id = status.job_id
        # One that was interrupted waits as at first: its queue_timeout begins anew.
        interrupted = status.state is not JobState.QUEUED or self._places.job(job_id).ran() is not None
        with translated(f"let job {job_id} wait"):
            self._queue.enter(
                Ticket.of(
                    job,
                    job_id=job_id,
                    submitted=status.submitted,
                    machine=self._machine,
                    since=time.time() if interrupted else None,
                )
            )
        self._starter.admit(wait=True)

    def look(self, *, many: bool) -> Look:  # noqa: ARG002 - one job costs as little as its share of many
        """Let in what has room, and return a function that says what a job waits for, and whether it is lost."""
        self._starter.admit(wait=False)
        return partial(self._look, reasons=cache(self._queue.reasons))

    def stop(self, job: JobSpec, status: JobStatus, why: Verdict, *, owner: str | None) -> bool:
        """Ask the supervisor to end the job; a job that waits, or whose supervisor is lost, is ended here."""
        job_id = status.job_id
        if not self._ask_to_end(job_id, owner=owner, why=why):
            return False
        self._queue.withdraw(job_id, lambda: self._bury(job_id, why))
        self.clear(job, job_id)
        return True

    def end(self, job: JobSpec, job_id: str, *, late: bool) -> str:
        """Say whether the supervisor still works on the job's end; end it if it is late, or lost."""
        if self._queue.holds(job_id):
            if not late:
                return "its supervisor runs"
            self._kill_supervisor(job_id)
            end_left_behind(self._places.mark(job_id))
            if self._queue.holds(job_id):
                return "its supervisor was killed"
        self.clear(job, job_id)
        return ""

    def clear(self, job: JobSpec, job_id: str) -> bool:  # noqa: ARG002 - the ledger's job_id is enough
        """Do what a supervisor that was killed left undone: end its job, or only take its files away."""
        if self._queue.holds(job_id):
            return False
        if not (self._places.job(job_id).root.exists() or self._queue.left(job_id)):
            return False
        with self._queue.seize(job_id) as lost:
            if lost and not self._ledger.status(job_id).state.ended:
                self._bury(job_id, self._places.job(job_id).why())
            if lost:
                self._places.job(job_id).remove()
        return lost

    def left(self) -> tuple[str, ...]:
        """Nothing: a supervisor leaves nothing, and what one left that was killed, a cancel or a submit takes away."""
        return ()

    def close(self) -> None:
        """Nothing is held open."""

    def _look(self, status: JobStatus, *, reasons: Callable[[], Mapping[str, str]]) -> JobStatus:
        """Add to a job's recorded status whether a process works on it, and what it waits for."""
        if status.state.ended:
            return status
        if self._queue.waits(status.job_id):
            return replace(status, alive=True, reason=_why_waits(status, reasons().get(status.job_id, "")))
        if self._queue.holds(status.job_id):
            return replace(status, alive=True)
        status = self._ledger.status(status.job_id)  # it may have ended while we looked
        if status.state.ended:
            return status
        lost = "its supervisor is gone; submit it again to go on from its checkpoint"
        return replace(status, alive=False, reason=lost)

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
        # what its supervisor held was free when it was lost
        self._ledger.note_tally(job_id, self._ledger.tally(job_id).ended(self._ledger.last_sign(job_id)))
        if status.state is JobState.COMMITTING:
            result = commit(self._store, job_id, self._places.job(job_id))
            ended = replace(status, state=JobState.SUCCEEDED, ended=time.time(), result=result)
            self._ledger.update(replace(ended, reason=str(survived(self._ledger, job_id))))
        else:
            record(self._ledger, status, why)
            with suppress(OSError):  # what cannot go now is gc's, and no reason not to end it
                self._store.ended.give_back(job_id, cause=why.cause)
        self._store.release(job_id)

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


def _why_waits(status: JobStatus, waits_for: str) -> str:
    """Say what a job waits for, and before that why one that was preempted waits again."""
    if status.state is not JobState.QUEUED:
        return waits_for or status.reason
    return "; ".join(part for part in (status.reason, waits_for) if part)


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
