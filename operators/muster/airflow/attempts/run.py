"""Runs one job for one try of a task: the attempt is decided, the job submitted or adopted, and followed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError

from muster.airflow.attempts.attempt import Action, Attempt, Decision, decide, newer
from muster.airflow.attempts.keeping import Reuse, Wish
from muster.airflow.attempts.log import Shown, StateLog, TaskLog
from muster.airflow.attempts.resuming import Resume, choose, edited
from muster.airflow.attempts.task_state import GIVEN_UP, ask, backfill_of, ended_by_hand, no_cache, why_over
from muster.airflow.attempts.tracing import tell_life, traced
from muster.airflow.attempts.verdicts import failure, left_running
from muster.airflow.attempts.waiting import (
    GoesOn,
    InlinePatience,
    Overdue,
    Stopped,
    Wait,
    job_ends,
    stop_airflows_clock,
)
from muster.airflow.links import push_job_link
from muster.airflow.site import connect, inline_wait_seconds, origin_of
from muster.airflow.teams import DagFacts, site_teams
from muster.airflow.upstream import internals
from muster.core.cancelling import BACKSTOP, LAST_TRY, OVERTAKEN, STOPPED, out_of_time, with_task
from muster.core.errors import Conflict, NotFound, SpecError, Unreachable
from muster.core.job import JobSpec
from muster.core.origin import Origin
from muster.core.settings import Settings
from muster.core.status import JobState, JobStatus
from muster.core.tally import Tally

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

    from muster.airflow.attempts.watcher import LineListener
    from muster.airflow.operators.base import MusterOperator
    from muster.backends.base import Backend
    from muster.core.verdict import Verdict
    from muster.volumes.base import Made

STATE_KEY = "muster"
_DEFAULT_POOL = "default_pool"  # where every task is that names none

# A backend minds a job's timeouts. Where its clock stands still (a supervisor that hangs, one that is
# lost again and again), the task ends the job this long after it should have ended.
_BACKSTOP_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class TaskRun:
    """One try of one task, and all that its jobs are run with.

    :param again: whether the task has had a try before.
    :param defer: hands the wait over to a trigger and does not return; None where a trigger must not.
    :param label: what the listener calls the task.
    :param deadline: seconds since the epoch by which a release of this try has to have ended.
    :param pool: Airflow's, whose slot this try holds.
    :param limit: Airflow's ``execution_timeout``: how long a job may take from its start.
    :param cursors: where the lines of a job go on that a trigger followed meanwhile.
    :param backfill: the backfill that the run belongs to, if any.
    :param may_keep: whether this run may take what was made before.
    """

    context: Context
    settings: Settings
    backend: Backend
    origin: Origin
    owner: str
    max_tries: int
    retries: int
    last_try: bool
    again: bool = False
    wait: Wait
    log: Any
    listener: LineListener | None
    label: str = ""
    defer: Callable[[BaseTrigger], NoReturn] | None = None
    deadline: float | None = None
    limit: timedelta | None = None
    pool: str = _DEFAULT_POOL
    cursors: Mapping[str, str | None] = field(default_factory=dict)
    backfill: str | None = None
    may_keep: bool = True

    @property
    def tally(self) -> Tally | None:
        """For whom the run's jobs are counted: who triggered it, and the Dag's team."""
        facts = DagFacts.of(self.context)
        user, team = facts.user, site_teams().of_dag(facts)
        return Tally(user=user, team=team) if user or team else None

    def admitted(self, spec: JobSpec) -> JobSpec:
        """Return a job as the Dag's team may run it. :raises SpecError: it may not."""
        return site_teams().admit(DagFacts.of(self.context), spec)

    @classmethod
    def of(
        cls,
        operator: MusterOperator,
        context: Context,
        *,
        settings: Settings | None = None,
        backend: Backend | None = None,
    ) -> TaskRun:
        """Gather it from the operator and Airflow's context. :param backend: where it is not this process's own."""
        settings, ti = settings or Settings.load(), context["ti"]
        return cls(
            context=context,
            settings=settings,
            backend=backend or connect(settings),
            origin=origin_of(ti, settings),
            owner=str(ti.id),
            max_tries=ti.max_tries,
            retries=operator.retries or 0,
            last_try=ti.try_number > ti.max_tries,
            again=ti.try_number > 1,
            wait=operator.wait,
            log=operator.log,
            listener=operator.listener,
            label=operator.instance(ti.map_index),
            defer=operator.hand_over,
            deadline=operator.deadline(context),
            limit=operator.execution_timeout,
            pool=operator.pool,
            cursors=operator.cursors,
            backfill=backfill_of(context),
            may_keep=not no_cache(context),
        )

    @property
    def name(self) -> str:
        """What people call the job, ``flights.train``."""
        return f"{self.origin.dag_id}.{self.origin.task_id}"

    def run(
        self, build: Callable[[], JobSpec], *, key: str = STATE_KEY, resume: Resume = Resume.NEVER
    ) -> JobStatus:
        """Bring this try's job to its end and return how it succeeded.

        It may be called again for the same job, by the same try after it was deferred or by the next
        one, and goes on with what there is.

        :param build: makes the spec; called only where a job is started, since an adopted job keeps
            the versions that were pinned for it.
        :param key: tells the jobs of one task apart, for a task that runs several.
        :param resume: whether a job that is started goes on from the checkpoints that the one before left.
        :raises AirflowException: the verdict, retried or not as its cause says; or the try was stopped.
        :raises TaskDeferred: the job goes on, and a trigger waits for it.
        """
        return _JobRun(self, key, resume).run(build).status

    def make(
        self, build: Callable[[], JobSpec], *, resume: Resume = Resume.NEVER, wish: Wish | None = None
    ) -> JobOutcome:
        """Do as :meth:`run`, but take what was made before where it is the same.

        :param wish: what may be taken; None takes nothing.
        """
        return _JobRun(self, STATE_KEY, resume, wish if self.may_keep else None).run(build)

    def abandoned(self) -> bool:
        """Whether this task was ended, so that no try of it goes on; where Airflow does not say, one may."""
        if self.listener is not None:
            return True
        try:
            return ask(self.origin) in GIVEN_UP
        except AirflowRuntimeError:
            return False

    def patience(self) -> InlinePatience:
        """How long this process waits for anything before a trigger does."""
        seconds = None if self.defer is None else inline_wait_seconds()
        return InlinePatience(seconds=seconds, deadline=self.deadline)


@dataclass(frozen=True, kw_only=True)
class JobOutcome:
    """How a job succeeded: that of this try, or the one that made before what is kept.

    :param kept: what is kept, or None.
    """

    status: JobStatus
    kept: Made | None = None


class _JobRun:
    """One job of a :class:`TaskRun`."""

    def __init__(self, task: TaskRun, key: str, resume: Resume, wish: Wish | None = None) -> None:
        self._task = task
        self._reuse = None if wish is None else Reuse(task, wish, self._tell)
        self._resume = resume
        self._backend = task.backend
        self._ledger = task.backend.store.ledger
        self._store = task.context["task_state_store"]
        self._key = key

    def run(self, build: Callable[[], JobSpec]) -> JobOutcome:
        stored = Attempt.load(self._store.get(self._key))
        known = self._status(stored) if stored else self._forgotten()
        decision = self._decide(stored, known)
        outdated = decision.action is Action.ADOPT and self._is_outdated(known, build)
        if outdated:
            following = replace(decision.attempt, number=decision.attempt.number + 1)
            decision = Decision(action=Action.START, attempt=following)
        attempt, job_id = decision.attempt, self._job_id(decision.attempt)
        if decision.action is Action.START:
            self._clear_away(known, job_id, why=OVERTAKEN if outdated else with_task(None))
            attempt = replace(attempt, before=self._before(stored, known))
            self._remember(attempt)  # before anything can fail: what was cleared is told from what never ran
            spec = self._task.admitted(build())
            if (kept := self._take(spec, attempt, job_id)) is not None:
                return kept
            self._start(traced(self._going_on(spec, attempt.before)), attempt, job_id)
        elif decision.action is Action.ADOPT:
            self._adopt(job_id)
        elif decision.action is Action.REPORT:
            self._own(job_id)  # this try writes down that it reports it, so that the next one begins anew
        if decision.action in (Action.TAKE, Action.REPORT) and job_id not in self._task.cursors:
            self._task.log.info("job %s has ended already: its result is taken", job_id)
        push_job_link(self._task.context["ti"], job_id)
        status = self._follow(attempt, job_id)
        tell_life(self._backend.store, status, self._task.log.warning)
        if status.state is not JobState.SUCCEEDED:
            self._settle(attempt, status)
            raise failure(status) from None
        if status.reason:  # what it survived
            self._task.log.warning("%s", status.reason)
        return JobOutcome(status=status)

    def _take(self, spec: JobSpec, attempt: Attempt, job_id: str) -> JobOutcome | None:
        """Take what was made before, unless a person cleared the task, who wants it made again."""
        if self._reuse is None or attempt.anew:
            return None
        made = self._reuse.take(spec, job_id)
        if made is None:
            return None
        self._remember(replace(attempt, kept=made.job_id))
        push_job_link(self._task.context["ti"], made.job_id)
        return JobOutcome(status=self._reuse.status(made), kept=made)

    def _decide(self, stored: Attempt | None, known: JobStatus | None) -> Decision:
        return decide(
            stored,
            max_tries=self._task.max_tries,
            retries=self._task.retries,
            state=known.state if known else None,
            mine=known is not None and known.owner == self._task.owner,
            fresh_nonce=secrets.token_hex(8),
            backfill=self._task.backfill,
        )

    def _forgotten(self) -> JobStatus | None:
        """The task's last job, of which nothing is stored any more: *Clear* of Airflow 3.4 discards what tries wrote down."""
        task = self._task.origin
        if not self._task.again or self._key != STATE_KEY:
            return None
        origins = self._ledger.origins(dag_id=task.dag_id, run_id=task.run_id)
        last = [job_id for job_id, origin in origins.items() if origin == task][-1:]
        return self._backend.status(*last) if last else None

    def _job_id(self, attempt: Attempt) -> str:
        return attempt.job_id(instance=self._task.origin.instance, task=self._task.name)

    def _status(self, attempt: Attempt) -> JobStatus | None:
        try:
            return self._backend.status(self._job_id(attempt))
        except NotFound:
            return None

    def _remember(self, attempt: Attempt) -> None:
        """Write the attempt down. Airflow refuses that to a try that is no longer the task's own."""
        self._store.set(self._key, attempt.dump(), retention=internals.NEVER_EXPIRE)

    def _settle(self, attempt: Attempt, status: JobStatus) -> None:
        """Write down that this attempt's end is reported, unless another try has taken it over."""
        if status.owner == self._task.owner:
            self._remember(replace(attempt, reported=True))

    def _clear_away(self, known: JobStatus | None, job_id: str, *, why: Verdict) -> None:
        """End the job of an attempt that was given up, if it still runs."""
        if known and known.job_id != job_id and not known.state.ended:
            self._task.log.info("job %s is ended: %s", known.job_id, why.message)
            self._backend.cancel(known.job_id, owner=known.owner, why=why)

    def _is_outdated(self, known: JobStatus | None, build: Callable[[], JobSpec]) -> bool:
        """Whether a job of which nothing runs any more was made from what a person who resumes has edited since."""
        if self._task.listener is None or known is None or known.alive or known.state is JobState.COMMITTING:
            return False
        sealed = self._backend.store.sealed(known.job_id) is not None
        return not sealed and edited(self._ledger.spec(known.job_id), self._task.admitted(build()))

    def _before(self, stored: Attempt | None, known: JobStatus | None) -> str | None:
        """The job of the attempt before; one that was written down and never submitted is passed over."""
        if known is not None:
            return known.job_id
        return None if stored is None else stored.before

    def _going_on(self, spec: JobSpec, before: str | None) -> JobSpec:
        """Have a job begin with the checkpoints of the one before where they may be its own, and say so."""
        choice = choose(spec, before, self._resume, self._backend.store)
        for line in choice.lines:
            self._tell(line)
        return replace(spec, follows=choice.follows)

    def _tell(self, line: str) -> None:
        self._task.log.info("%s", line)
        if self._task.listener is not None:
            self._task.listener.lines(self._task.label, [f"[muster] {line}"])

    def _start(self, spec: JobSpec, attempt: Attempt, job_id: str) -> None:
        try:
            self._backend.submit(spec, job_id=job_id, owner=self._task.owner, tally=self._task.tally)
        except SpecError:
            if self._status(attempt) is None:
                raise
            # A try before this one, which was thought dead, came between with what it had pinned.
            self._adopt(job_id)
            return
        self._own(job_id)
        self._task.log.info("job %s, attempt %d", job_id, attempt.number)

    def _adopt(self, job_id: str) -> None:
        mine = self._backend.status(job_id).owner == self._task.owner
        self._own(job_id)
        status = self._backend.status(job_id)
        if not mine:
            self._task.log.info("job %s is adopted: it is %s", job_id, status.state.value)
        if not status.state.ended and status.state is not JobState.COMMITTING:
            self._complete(job_id, alive=status.alive)

    def _complete(self, job_id: str, *, alive: bool) -> None:
        """Submit a job again: the process that did may have been killed before it had made all of it."""
        try:
            self._backend.submit(self._ledger.spec(job_id), job_id=job_id, owner=self._task.owner)
        except Unreachable as error:
            if not alive:
                raise
            self._task.log.warning("job %s is followed as it is: %s", job_id, error)

    def _own(self, job_id: str) -> None:
        """Make this try the job's owner, unless a newer one is. :raises Conflict: a newer one is."""
        mine, owner = self._task.owner, self._ledger.status(job_id).owner
        while owner != mine:
            if newer(owner or "", mine):
                raise Conflict(
                    f"job {job_id} belongs to a newer try of this task, which goes on: leave this one"
                )
            self._ledger.own(job_id, owner=mine, expected=owner)
            owner = self._ledger.status(job_id).owner

    def _follow(self, attempt: Attempt, job_id: str) -> JobStatus:
        log = TaskLog(partial(self._task.log.info, "%s"), job_id=job_id)
        limit = self._task.limit
        if limit is not None:
            stop_airflows_clock()
        patience = replace(
            self._task.patience(),
            deadline=self._ends(job_id),
            limit_seconds=None if limit is None else limit.total_seconds(),
        )

        shown = self._shown(job_id)

        def tell(status: JobStatus) -> None:
            if self._task.listener is not None:
                self._task.listener.job(self._task.label, status)

        try:
            return self._task.wait.follow(
                self._backend,
                job_id,
                lines=partial(self._show, log, shown),
                progress=StateLog(self._task.log, tell=tell),
                after=int(self._task.cursors.get(job_id) or (shown.before if shown else 0)),
                patience=patience,
            )
        except Stopped:
            raise self._stop(attempt, job_id) from None
        except Overdue:
            return self._end_overdue(job_id)
        except GoesOn as wait:
            if self._is_ended():  # Airflow refuses to defer then, and ends this process without a word to us
                raise self._stop(attempt, job_id) from None
            self._hand_over(job_id, wait.offset, patience)
        finally:
            log.close()

    def _shown(self, job_id: str) -> Shown | None:
        """How far its log was shown already; None where there is no screen."""
        if self._task.listener is None:
            return None
        shown = Shown(self._store, self._key, job_id)
        if shown.before:
            self._tell(f"goes on where it was shown before; the full log: muster jobs logs {job_id}")
        return shown

    def _show(self, log: TaskLog, shown: Shown | None, text: Sequence[str], offset: int) -> None:
        text = log.without_verdict(text)
        log(text)
        if self._task.listener is not None and shown:
            if text:
                self._task.listener.lines(self._task.label, text)
            shown.note(offset)

    def _ends(self, job_id: str) -> float:
        """When the job has to have ended at the latest, in seconds since the epoch."""
        spec, status = self._ledger.spec(job_id), self._ledger.status(job_id)
        limits = spec.queue_timeout_seconds + spec.run_timeout_seconds  # it may be put back, and wait again
        return status.submitted + limits + _BACKSTOP_SECONDS

    def _hand_over(self, job_id: str, offset: int, patience: InlinePatience) -> NoReturn:
        from muster.airflow.attempts.trigger import JobTrigger

        assert self._task.defer is not None
        self._task.log.info("job %s goes on; the triggerer waits for it", job_id)
        self._task.log.info("if it writes TensorBoard's events: muster tensorboard %s", job_id)
        if self._task.pool != _DEFAULT_POOL:
            self._task.log.info(
                "pool %s counts this task meanwhile only if it includes deferred tasks "
                "(Airflow: Admin, Pools, Include Deferred)",
                self._task.pool,
            )
        trigger = JobTrigger(
            job_id=job_id,
            owner=self._task.owner,
            cursor=str(offset),
            deadline=patience.deadline,
            limit_seconds=patience.limit_seconds,
        )
        self._task.defer(trigger)

    def _end_overdue(self, job_id: str) -> JobStatus:
        """End a job that should have ended; one that just did is taken as it ended."""
        limit, why = self._task.limit, BACKSTOP
        if limit is not None:
            due = job_ends(self._ledger.status(job_id).started, limit.total_seconds())
            why = out_of_time(limit) if due is not None and time.time() >= due else why
        self._backend.cancel(job_id, owner=self._task.owner, why=why)
        return self._backend.status(job_id)

    def _stop(self, attempt: Attempt, job_id: str) -> AirflowException:
        """End the job if Airflow ended the task, or leave it to the next try.

        SIGKILL comes five seconds after SIGTERM, so what must not be lost is done first: the cancel
        is asked for, then written down, and only then waited for.
        """
        why = self._why_end()
        if why is None:
            return left_running(job_id)
        self._backend.cancel(job_id, owner=self._task.owner, wait=False, why=why)
        # Refused where the task was cleared: the attempt is the next try's by now, which sees the cancel.
        with suppress(AirflowRuntimeError):
            self._settle(attempt, self._backend.status(job_id))
        self._backend.cancel(job_id, owner=self._task.owner, why=why)
        return failure(self._backend.status(job_id))

    def _is_ended(self) -> bool:
        """Whether the task was ended or cleared a moment ago; it is told so only at its next heartbeat."""
        try:
            return ended_by_hand(ask(self._task.origin))
        except AirflowRuntimeError:  # the triggerer's comparison ends the job then
            return False

    def _why_end(self) -> Verdict | None:
        """Why no later try takes the job over; None for a worker that merely stops, which leaves its job to the next."""
        if self._task.listener is not None:
            return STOPPED
        try:
            state = ask(self._task.origin)
            if ended_by_hand(state):
                return why_over(self._task.origin, state)
            if state != "running" or not self._task.last_try:
                return None
            # Stopped in its last try, it fails now, and no try comes after it; unless it was reset, which
            # gives the task another id, so that Airflow finds nothing stored for this one.
            return None if self._store.get(self._key) is None else LAST_TRY
        except AirflowRuntimeError as error:
            self._task.log.warning("Airflow does not say how the task stands, so its job goes on: %s", error)
            return None
