"""The supervisor: one process for each job that runs, which brings it to its end whatever happens.

It has no parent: it lives on without Airflow and without a terminal. It holds the job's claim by
a lock, so there are never two of it; every process of the job dies with it; and where it dies
itself, the next one takes the job up: a sealed attempt is committed, another starts again. A job that is
asked to give its room back is preempted: it waits again, and its next supervisor goes on from its checkpoint.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from muster.backends.jobs.checks import check_inputs, lease_inputs
from muster.backends.jobs.ending import Idleness, ended_as
from muster.backends.jobs.sizing import resized
from muster.backends.local.elastic import Extras
from muster.backends.local.finish import commit, verdict_of
from muster.backends.local.gang import Gang, replicas_of
from muster.backends.local.limits import end_left_behind
from muster.backends.local.orders import Orders
from muster.backends.local.processes import Process, end_descendants
from muster.backends.local.queue import JobQueue, Ticket
from muster.backends.local.spawn import Worker, spawn
from muster.backends.stores import folder_store
from muster.backends.tracking import tracking_database
from muster.core.errors import MusterError, StoreError
from muster.core.job import Interpreter
from muster.core.linux import giving_up_orphans
from muster.core.masking import Masking
from muster.core.progress import Told, heard
from muster.core.status import JobResult, JobState, JobStatus
from muster.core.tally import Allotment, Tally
from muster.core.verdict import Cause, Verdict
from muster.core.wire import dumps, loads
from muster.images.environment import Environments
from muster.volumes.survived import survived, with_survived

if TYPE_CHECKING:
    from muster.backends.local.start import Starter

EVERY_SECONDS = 2.0  # between two writings of what the ranks told
_UNSAID_BYTES = 1 << 20


def main(text: str, secrets: Mapping[str, str], workers: list[Worker]) -> None:
    """Bring one job to its end: the whole program of the process that ``launch`` starts.

    :param workers: one for each replica, started already, or none.
    """
    orders = loads(Orders, text)
    Supervisor(orders, secrets, workers).run()


class _AskedToEnd(Exception):
    """The job was cancelled, or we were told to go and leave it for the next supervisor."""


class _Preempted(Exception):
    """The job was asked to give its room back to one of a higher priority."""


class _Resized(Exception):
    """The gang goes on with fewer replicas, or with more."""


class StatusUpdates:
    """What the ranks told of their progress, written to the job's status no oftener than it is looked at.

    :param told: what is in the status already.
    :param clock: seconds, from any start.
    """

    def __init__(self, status: JobStatus, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.told = self._written = Told(progress=status.progress, links=status.links)
        self._clock = clock
        self._next = clock()

    def hear(self, log: bytes) -> None:
        """Take in lines of the log."""
        self.told = self.told.then(heard(log))

    def due(self) -> bool:
        """Whether there is something new, and the last time was long enough ago; ask before each writing."""
        if self.told == self._written or self._clock() < self._next:
            return False
        self._written, self._next = self.told, self._clock() + EVERY_SECONDS
        return True


class Supervisor:
    """One job on its way from its claim to its end."""

    def __init__(self, orders: Orders, secrets: Mapping[str, str], workers: list[Worker]) -> None:
        self._orders = orders
        self._job_id = orders.job_id
        self._secrets = secrets
        self._early = workers
        self._grows = False
        self._folder = orders.places.job(orders.job_id)
        self._store = folder_store(orders.settings)
        self._ledger = self._store.ledger
        self._status = self._ledger.status(orders.job_id)
        self._spec = self._ledger.spec(orders.job_id)
        self._masking = Masking(secrets.values(), shown=self._spec.shown)
        self._tally = self._ledger.tally(orders.job_id).ended(self._ledger.last_sign(orders.job_id))
        self._extras = Extras(self._spec, orders.claim, JobQueue(orders.places, orders.machine), self._folder)
        self._news = StatusUpdates(self._status)
        self._idleness = Idleness(self._spec.idle_seconds)
        self._ran_before = 0.0
        self._began: float | None = None
        self._told_to_go = False
        self._begun: int | None = None  # the attempt that is ours: every process of it is below us
        self._unsaid = b""

    def run(self) -> None:
        """Bring the job to its end, or preempt it; give its claim back and let in who waits for that."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        waits = False
        try:
            if not self._status.state.ended:
                ended = self.work()
                waits = ended is None and self._waits_again()
                if not waits:
                    self.end(ended or self._folder.why())
            if not waits:
                self._folder.remove()
        except _AskedToEnd:
            self._say("the supervisor was told to go: submit the job again to go on from its checkpoint")
        starter = self._starter()
        self._extras.give_all_back()
        if not waits:
            starter.queue.leave(self._job_id, self._orders.claim_handle)
        starter.admit(wait=True)

    def work(self) -> Verdict | JobResult | None:
        """Return what became of the job, or None where it is preempted; nothing of it runs any more then."""
        try:
            self._folder.supervisor.write_text(dumps(Process.me()))
            self._folder.keep_reserve()
            self._hold(self._extras.queue.since(self._orders.claim))
            if self._status.state is not JobState.QUEUED:
                self._say("taken up again after its supervisor was lost")
                end_left_behind(self._orders.mark, but=[worker.pid for worker in self._early])
            if self._store.sealed(self._job_id) is not None:
                return self._commit()
            try:
                return self._attempts()
            except _Preempted:
                end_descendants()  # what does not die may hold what the other job waits for
                return None
        except _AskedToEnd:
            if self._cancelled():
                return self._folder.why()
            raise
        except Exception as error:  # told as the job's verdict
            if not isinstance(error, MusterError):
                import traceback  # a defect of ours, or of the machine

                self._log(traceback.format_exc().encode())
            return verdict_of(
                error,
                committing=self._status.state is JobState.COMMITTING,
                job_id=self._job_id,
                store=self._store,
                cache=self._orders.settings.cache,
            )
        finally:
            self._leave(self._end_descendants, partial(self._store.release, self._job_id))
            # What has succeeded leaves its temporary files to the end of its folder, once its own end is recorded.
            if self._status.state is not JobState.COMMITTING:
                self._leave(self._folder.drop_scratch)

    def _leave(self, *steps: Callable[[], None]) -> None:
        """Take each step of a way out; one that fails is told in the log and hides no verdict."""
        for step in steps:
            try:
                step()
            except (MusterError, OSError) as error:
                self._say(f"left behind: {error}")

    def _attempts(self) -> Verdict | JobResult:
        """Start the gang, again and again while what stopped it is not the author's fault."""
        self._go_on()
        python = self._prepare()
        self._began = time.monotonic()
        deadline = self._began + self._spec.run_timeout_seconds - self._ran_before
        verdict, left = self._attempt_resized(python, deadline), self._spec.max_restarts
        while verdict is not None and verdict.cause.restarts_gang:
            if self._store.sealed(self._job_id) is not None:
                return self._commit()  # it was lost only after all had sealed
            if not left:
                return verdict
            who = "" if verdict.rank is None else f", rank {verdict.rank}"
            self._say(
                f"{verdict.cause.value}{who}: {verdict.message}; the whole gang starts again from its "
                f"checkpoint ({left} restart{'s' * (left > 1)} left)"
            )
            left -= 1
            self._end_descendants()  # what does not die may hold what the next attempt needs
            self._move(JobState.PREPARING, "starting again", restarts=self._status.restarts + 1)
            verdict = self._attempt_resized(python, deadline)
        return verdict or self._commit()

    def _attempt_resized(self, python: Path, deadline: float) -> Verdict | None:
        """Start the gang with what it can have, and again whenever that changes, which counts as no restart."""
        self._extras.take()
        while True:
            self._hold(time.time())
            try:
                return self._attempt(python, deadline)
            except _Resized:
                self._end_descendants()
                self._resize()

    def _resize(self) -> None:
        """Give back what the gang was asked for; what it has taken, it has already."""
        asked = self._extras.asked()
        self._extras.give_back(*asked)
        self._hold(time.time())
        self._grows = False
        why = next(iter(asked.values())) or "a job waits" if asked else "there is room for more"
        now = self._extras.replicas
        self._say(resized(why, now, self._spec.replicas))
        if asked:
            with giving_up_orphans():  # else the other job would be below us, and end with our next attempt
                self._starter().admit(wait=True)
        self._move(JobState.PREPARING, f"goes on with {now} replicas")

    def _hold(self, since: float) -> None:
        """Note what the gang holds now, where that is another size than it was."""
        replicas, now = self._extras.replicas, self._tally.current
        if now is None or now.replicas != replicas:
            held = Allotment(since=since or time.time(), replicas=replicas, gpus=len(self._extras.cards))
            self._note_tally(self._tally.begun(held))

    def _note_tally(self, tally: Tally) -> None:
        self._tally = tally
        with suppress(OSError, StoreError):  # the disk is full: no reason to end the job
            self._ledger.note_tally(self._job_id, tally)

    def _end_descendants(self) -> None:
        """End all that is left of the attempt; its checkpoints then need not be copied for the next, or for the next job."""
        end_descendants()
        if self._begun is not None:
            self._store.note_gone(self._job_id, attempt=self._begun)

    def _go_on(self) -> None:
        """Take up a preempted job: its start moves to where it would be had it never waited, so limits count no wait."""
        ran = self._folder.ran() if self._status.state is JobState.QUEUED else None
        if ran is None:
            return
        self._ran_before = ran
        if self._status.started is not None:
            self._status = replace(self._status, started=time.time() - ran)
        self._say("there is room again: the job goes on from its checkpoint")

    def _waits_again(self) -> bool:
        """Give the claim back and wait for room, as at first; False where the job was cancelled meanwhile.

        A kill on the way leaves a job that nothing works on, or one that waits.
        """
        whom = self._folder.for_whom() or "a job of higher priority waits"
        self._folder.drop_reserve()
        ran = 0.0 if self._began is None else time.monotonic() - self._began
        self._folder.note_ran(self._ran_before + ran)
        self._note_tally(self._tally.ended(time.time()))
        self._say(f"preempted: {whom}; the job goes on from its checkpoint when there is room again")
        self._move(JobState.QUEUED, f"was preempted ({whom}) and waits again")
        ticket = Ticket.of(
            self._spec,
            job_id=self._job_id,
            submitted=self._status.submitted,
            machine=self._orders.machine,
            since=time.time(),
        )
        handle = self._orders.claim_handle
        return self._starter().queue.wait_again(ticket, handle, unless=self._cancelled)

    def _starter(self) -> Starter:
        # Not before a job starts: it takes as long as a worker's start.
        from muster.backends.local.start import Starter

        return Starter(settings=self._orders.settings, machine=self._orders.machine, ledger=self._ledger)

    def _prepare(self) -> Path:
        """Have the image's Python ready and the inputs kept from gc."""
        spec, environments = self._spec, Environments(self._orders.settings.cache)
        built = spec.interpreter is not None or environments.find(spec.image, spec.image_digest) is not None
        self._move(JobState.PREPARING, "" if built else f"building image {spec.image}")
        check_inputs(spec, self._store)
        lease_inputs(spec, self._store, job_id=self._job_id)
        if spec.interpreter is not None:
            return self._unlocked(spec.interpreter)
        return environments.ensure(
            spec.image,
            self._store.code(spec.image_digest),
            spec.image_digest,
            self._progress,
        )

    def _unlocked(self, interpreter: Interpreter) -> Path:
        """Return the Python of this machine that the job was submitted with, and say so in its log."""
        from muster.images.interpreter import look_again  # most jobs run with their image's lock

        python = look_again(self._spec.image, interpreter)
        self._say(f"image {self._spec.image}: runs with {python} ({interpreter}), not with its lock")
        return python

    def _attempt(self, python: Path, deadline: float) -> Verdict | None:
        self._check_asked()
        job = self._spec.sized(self._extras.replicas)
        command = self._orders.command(python)
        environment = self._orders.variables(self._spec, python, self._secrets)
        # One worker for each replica; they wait to be told what they are.
        more = [spawn(command, environment) for _ in range(job.replicas - len(self._early))]
        workers, self._early = [*self._early, *more], []
        staging = self._store.stage(self._job_id, replicas=job.replicas)
        self._begun = staging.attempt
        replicas = replicas_of(
            job,
            staging=staging,
            store=self._store,
            claim=self._orders.claim,
            cards=self._extras.cards,
            folder=self._folder,
            scratch=self._folder.scratch(),
        )
        tracking_database(self._orders.settings.home).parent.mkdir(exist_ok=True)
        gang = Gang(
            replicas,
            workers,
            mark=self._orders.mark,
            log=lambda lines: self._news.hear(self._log(lines)),
            turn=partial(self._turn, staging.checkpoints),
            asked_to_end=self._asked,
            deadline=deadline,
        )
        size = f"{job.replicas} of up to {self._spec.replicas} replicas" if self._spec.elastic else ""
        self._move(JobState.RUNNING, size, started=self._status.started or time.time())
        try:
            verdict = gang.run()
        finally:
            self._leave(end_descendants, gang.close)
        self._check_ended()
        if verdict is None or verdict.cause is not Cause.CANCELLED:
            return verdict
        if self._store.sealed(self._job_id) is not None:
            return None  # every replica sealed after it was asked
        if self._idleness.verdict is not None:
            return self._idleness.verdict
        raise _Preempted if self._asked_to_give_back() else _Resized

    def _check_asked(self) -> None:
        self._check_ended()  # first: a cancel wins
        if self._asked_to_give_back():
            raise _Preempted

    def _check_ended(self) -> None:
        if self._asked_to_end():
            raise _AskedToEnd

    def _commit(self) -> JobResult:
        self._move(JobState.COMMITTING, "")
        return commit(self._store, self._job_id, self._folder)

    def end(self, ended: Verdict | JobResult) -> None:
        """Record the end of the job, and say it in its log."""
        if isinstance(ended, JobResult):
            self._move_at_last(
                JobState.SUCCEEDED, reason=str(survived(self._ledger, self._job_id)), result=ended
            )
            return  # its folder goes next, with its temporary files
        # first: its end needs room, too
        self._leave(
            self._folder.drop_scratch, partial(self._store.ended.give_back, self._job_id, cause=ended.cause)
        )
        mask = self._masking.text
        ended = ended.going_on(self._spec.origin.again)
        masked = replace(ended, message=mask(ended.message), advice=mask(ended.advice))
        verdict = with_survived(masked, self._ledger, self._job_id)
        self._log((verdict.render(job_id=self._job_id) + "\n").encode())
        self._move_at_last(ended_as(verdict), verdict=verdict)

    def _move_at_last(self, state: JobState, *, reason: str = "", **changes: object) -> None:
        """Record the job's end; on a full disk in the room that was kept for this."""
        if self._unsaid:
            self._folder.drop_reserve()
            self._log(b"")
        try:
            self._move(state, reason, ended=time.time(), **changes)
        except (OSError, StoreError):
            self._folder.drop_reserve()
            self._move(state, reason, ended=time.time(), **changes)

    def _move(self, state: JobState, reason: str, **changes: object) -> None:
        told = self._news.told
        self._status = replace(
            self._status,
            state=state,
            reason=reason,
            progress=told.progress,
            links=told.links,
            **changes,  # type: ignore[arg-type]
        )
        self._ledger.update(self._status)

    def _turn(self, checkpoints: Path) -> None:
        """Look after a gang that runs."""
        if (
            self._idleness.verdict is None
        ):  # else it is being ended: what it does on its way is no reason to go on
            series, replicas = partial(self._ledger.series, self._job_id), self._extras.replicas
            self._idleness.look(series, replicas=replicas, now=time.time(), warn=self._say)
        if not self._grows and self._extras.may_grow(checkpoints):
            self._grows = self._extras.take() > 0
            self._hold(time.time())
        if self._news.due():
            with suppress(OSError, StoreError):  # the disk is full: no reason to end the job
                self._move(self._status.state, self._status.reason)

    def _progress(self, line: str) -> None:
        self._check_asked()
        self._say(line)
        self._move(JobState.PREPARING, line)

    def _say(self, line: str) -> None:
        self._log(f"[muster] {line}\n".encode())

    def _log(self, lines: bytes) -> bytes:
        """Add lines to the job's log, and return them as they stand there."""
        lines = self._masking.log(lines)
        self._unsaid = (self._unsaid + lines)[-_UNSAID_BYTES:]
        try:
            self._ledger.append(self._job_id, self._unsaid)
        except (OSError, StoreError):
            return lines  # the disk is full: no reason to end the job, and the next line says these again
        self._unsaid = b""
        return lines

    def _cancelled(self) -> bool:
        return self._folder.cancel.exists()

    def _asked_to_end(self) -> bool:
        return self._told_to_go or self._cancelled()

    def _asked_to_give_back(self) -> bool:
        return self._folder.gives_back().exists()

    def _asked(self) -> bool:
        asked = self._asked_to_end() or self._asked_to_give_back() or self._idleness.verdict is not None
        return asked or self._grows or bool(self._extras.asked())

    def _on_sigterm(self, _number: int, _frame: object) -> None:
        self._told_to_go = True
