"""Runs one job for one try of a task: the attempt is decided, the job submitted or adopted, and followed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException

from muster.airflow.attempts import Action, Attempt, decide
from muster.airflow.log import TaskLog
from muster.airflow.site import connect, instance
from muster.airflow.verdicts import failure
from muster.airflow.waiting import Stopped, Wait
from muster.core.errors import Conflict, NotFound
from muster.core.job import JobSpec, Origin
from muster.core.settings import Settings
from muster.core.status import JobState, JobStatus

if TYPE_CHECKING:
    from airflow.sdk import Context

    from muster.airflow.embedded.result import Listener
    from muster.airflow.operator import MusterOperator
    from muster.backends.base import Backend

STATE_KEY = "muster"
_ENDED_FOR_AIRFLOW = frozenset({"success", "failed", "skipped", "removed", "upstream_failed", "restarting"})


@dataclass(frozen=True, kw_only=True)
class TaskRun:
    """One try of one task, and all that its jobs are run with."""

    context: Context
    settings: Settings
    backend: Backend
    origin: Origin
    owner: str
    max_tries: int
    wait: Wait
    log: Any
    listener: Listener | None

    @classmethod
    def of(cls, operator: MusterOperator, context: Context) -> TaskRun:
        """Gather it from the operator and Airflow's context."""
        settings, ti = Settings.load(), context["ti"]
        origin = Origin(
            instance=instance(settings),
            dag_id=ti.dag_id,
            run_id=ti.run_id,
            task_id=ti.task_id,
            map_index=-1 if ti.map_index is None else ti.map_index,
        )
        return cls(
            context=context,
            settings=settings,
            backend=connect(settings),
            origin=origin,
            owner=str(ti.id),
            max_tries=ti.max_tries,
            wait=operator.wait,
            log=operator.log,
            listener=operator.listener,
        )

    @property
    def name(self) -> str:
        """What people call the job, ``flights.train``."""
        return f"{self.origin.dag_id}.{self.origin.task_id}"

    def run(self, build: Callable[[], JobSpec], *, key: str = STATE_KEY) -> JobStatus:
        """Bring this try's job to its end and return how it succeeded.

        :param build: makes the spec; called only where a job is started, since an adopted job keeps
            the versions that were pinned for it.
        :param key: tells the jobs of one task apart, for a task that runs several.
        :raises AirflowException: the verdict, retried or not as its cause says; or the try was stopped.
        """
        return _JobRun(self, key).run(build)


class _JobRun:
    """One job of a :class:`TaskRun`."""

    def __init__(self, task: TaskRun, key: str) -> None:
        self._task = task
        self._backend = task.backend
        self._store = task.context["task_state_store"]
        self._key = key

    def run(self, build: Callable[[], JobSpec]) -> JobStatus:
        stored = Attempt.load(self._store.get(self._key))
        known = self._status(stored) if stored else None
        decision = decide(
            stored,
            max_tries=self._task.max_tries,
            state=known.state if known else None,
            fresh_nonce=secrets.token_hex(8),
        )
        attempt, job_id = decision.attempt, self._job_id(decision.attempt)
        if decision.action is Action.START:
            self._clear_away(stored, known, attempt)
            self._start(build(), attempt, job_id)
        elif decision.action is Action.ADOPT:
            self._adopt(job_id)
        else:
            self._task.log.info("job %s has ended already: its result is taken", job_id)
        status = self._follow(attempt, job_id)
        if status.state is not JobState.SUCCEEDED:
            self._remember(replace(attempt, reported=True))
            raise failure(status) from None
        return status

    def _job_id(self, attempt: Attempt) -> str:
        return attempt.job_id(instance=self._task.origin.instance, task=self._task.name)

    def _status(self, attempt: Attempt) -> JobStatus | None:
        try:
            return self._backend.status(self._job_id(attempt))
        except NotFound:
            return None

    def _remember(self, attempt: Attempt) -> None:
        from airflow.sdk.execution_time.context import NEVER_EXPIRE

        self._store.set(self._key, attempt.dump(), retention=NEVER_EXPIRE)

    def _clear_away(self, stored: Attempt | None, known: JobStatus | None, attempt: Attempt) -> None:
        """End what still runs for a nonce that was given up: the task was cleared meanwhile."""
        if stored and known and stored.nonce != attempt.nonce and not known.state.ended:
            self._task.log.info(
                "job %s belongs to a run of this task that was cleared: it is ended", known.job_id
            )
            self._backend.cancel(known.job_id, owner=known.owner)

    def _start(self, spec: JobSpec, attempt: Attempt, job_id: str) -> None:
        for warning in self._backend.check(spec):
            self._task.log.warning("%s", warning)
        self._remember(attempt)
        self._backend.submit(spec, job_id=job_id, owner=self._task.owner)
        self._task.log.info("job %s, attempt %d", job_id, attempt.number)

    def _adopt(self, job_id: str) -> None:
        status = self._backend.status(job_id)
        ledger = self._backend.store.ledger
        if status.owner != self._task.owner and not ledger.own(
            job_id, owner=self._task.owner, expected=status.owner
        ):
            raise Conflict(
                f"job {job_id} was adopted by another try of this task at the same moment; this one leaves it alone"
            )
        self._task.log.info("job %s is adopted: it is %s", job_id, status.state.value)
        if not status.alive:
            self._backend.submit(ledger.spec(job_id), job_id=job_id, owner=self._task.owner)

    def _follow(self, attempt: Attempt, job_id: str) -> JobStatus:
        log = TaskLog(partial(self._task.log.info, "%s"), job_id=job_id)

        def lines(come: Sequence[str]) -> None:
            log(come)
            if self._task.listener is not None:
                self._task.listener.lines(self._task.origin.task_id, come)

        try:
            return self._task.wait.follow(
                self._backend, job_id, lines=lines, progress=_Progress(self._task.log)
            )
        except Stopped:
            raise self._stop(attempt, job_id) from None
        finally:
            log.close()

    def _stop(self, attempt: Attempt, job_id: str) -> AirflowException:
        if not self._must_end():
            return AirflowException(
                f"stopped\nthe task's process was told to stop; job {job_id} goes on\n"
                f"the next try adopts it\nfull log: muster jobs logs {job_id}"
            )
        self._remember(replace(attempt, reported=True))
        self._backend.cancel(job_id, owner=self._task.owner)
        return failure(self._backend.status(job_id))

    def _must_end(self) -> bool:
        """Whether Airflow ended or cleared the task instance; a worker that merely stops leaves its job alone."""
        if self._task.listener is not None:
            return True
        origin = self._task.origin
        states = self._task.context["ti"].get_task_states(
            dag_id=origin.dag_id,
            task_ids=[origin.task_id],
            run_ids=[origin.run_id],
            map_index=origin.map_index if origin.map_index >= 0 else None,
        )
        now = states.get(origin.run_id, {})
        return bool(_ENDED_FOR_AIRFLOW & {str(state) for state in now.values()})


class _Progress:
    """Says each new state or reason of a job once."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._said: tuple[JobState, str] | None = None

    def __call__(self, status: JobStatus) -> None:
        said = (status.state, status.reason)
        if said != self._said and not status.state.ended:
            self._log.info("%s%s", status.state.value, f": {status.reason}" if status.reason else "")
        self._said = said
