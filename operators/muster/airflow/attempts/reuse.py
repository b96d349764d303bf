"""Keeps earlier versions instead of running a job, and waits for another run that makes the same ones.

If several runs want the same versions, one makes them: before it submits its job it writes a claim for the job into
the store. The other runs wait until that job ends, then look again. They keep what it made; if it failed or was
cancelled, one of them makes it. A claim is valid only while its job is alive, so a kill leaves no valid claim behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from muster.airflow.attempts.keeping import Wish, look
from muster.core.comparison import whole_key_of
from muster.core.errors import NotFound
from muster.core.status import JobResult, JobState, JobStatus

if TYPE_CHECKING:
    from muster.airflow.attempts.run import TaskRun
    from muster.core.job import JobSpec
    from muster.core.origin import Origin
    from muster.volumes.base import Made

# For a job that has its claim but is not in the ledger yet, or whose supervisor is being replaced.
GRACE_SECONDS = 30.0
_LOOK_SECONDS = 0.5


class Reuse:
    """The search of one try of a task.

    :param tell: writes a line into the task's log and shows it in the terminal of `muster run`.
    """

    def __init__(self, task: TaskRun, wish: Wish, tell: Callable[[str], None]) -> None:
        self._task, self._wish, self._tell = task, wish, tell
        self._backend, self._store = task.backend, task.backend.store
        self._seen_alive: dict[str, float] = {}

    def take(self, spec: JobSpec, job_id: str) -> Made | None:
        """Return what is kept instead of running the job. None: the job has the claim and must be submitted.

        :raises Stopped: the task's process was told to stop while it waited for another run.
        :raises TaskDeferred: a trigger waits for another run.
        """
        while True:
            found = look(spec, self._store, self._wish)
            if found.made is not None:
                if self._use(found.made, spec.origin):
                    self._tell(str(found))
                    return found.made
                continue
            maker = self._maker(whole_key_of(spec), job_id)
            if maker is None:
                if found.reasons:
                    self._tell(str(found))
                else:
                    self._task.log.info("%s", found)
                return None
            self._wait_for(maker)

    def _use(self, made: Made, task: Origin) -> bool:
        try:
            self._store.use(made.job_id, by=task)
        except NotFound as error:  # gc or a person deleted it meanwhile
            self._tell(str(error))
            return False
        return True

    def _maker(self, key: str, job_id: str) -> str | None:
        """Return the job of another run that makes the same now; None if this job has the claim."""
        lost: str | None = None
        while (holder := self._store.claim(key, job_id=job_id, expected=lost)) != job_id:
            if self._is_making(holder):
                return holder
            lost = holder
        return None

    def _is_making(self, job_id: str) -> bool:
        try:
            status = self._backend.status(job_id)
        except NotFound:  # its process is about to submit it, or was killed before
            status = None
        if status is not None and status.state.ended:
            return False
        now = time.monotonic()
        since = self._seen_alive.setdefault(job_id, now)
        if status is not None and status.alive:
            self._seen_alive[job_id] = now
            return True
        return now - since < GRACE_SECONDS

    def _wait_for(self, job_id: str) -> None:
        """Wait until a job ends or is lost, or let a trigger wait."""
        self._tell(f"waits for {self._whose(job_id)}")
        patience, began = self._task.patience(), time.monotonic()
        while self._is_making(job_id):
            left = patience.left(waited=time.monotonic() - began, queued=False, now=time.time())
            if left == 0 and self._task.defer is not None and self._is_alive(job_id):
                self._hand_over(job_id)
            self._task.wait.pause(_LOOK_SECONDS)

    def _is_alive(self, job_id: str) -> bool:
        try:
            return self._backend.status(job_id).alive
        except NotFound:
            return False

    def _whose(self, job_id: str) -> str:
        """Return whose job it is: ``muster__2026-11-25's train``."""
        try:
            origin = self._store.ledger.spec(job_id).origin
        except NotFound:
            return f"job {job_id}"
        where = "" if origin.dag_id == self._task.origin.dag_id else f"{origin.dag_id}, "
        return f"{where}{origin.run_id}'s {origin.task_id} (job {job_id})"

    def _hand_over(self, job_id: str) -> None:
        from muster.airflow.attempts.trigger import OthersJobTrigger

        assert self._task.defer is not None
        self._task.defer(
            OthersJobTrigger(job_id=job_id, owner=self._task.owner, deadline=self._task.deadline)
        )

    def status(self, made: Made) -> JobStatus:
        """Return the status of the job that made what is kept."""
        try:
            told = self._store.ledger.status(made.job_id).result
        except NotFound:  # gc took its entry away
            told = None
        result = JobResult(
            outputs=made.outputs,
            metrics=made.metrics,
            modules=made.modules,
            links=told.links if told else {},
        )
        return JobStatus(
            job_id=made.job_id,
            state=JobState.SUCCEEDED,
            submitted=made.created,
            ended=made.created,
            result=result,
        )
