"""Keeps earlier versions that a job would make again instead of running it, or says why none can be kept.

:func:`look` needs no task: it compares a job, submitted or only planned, with the store. :class:`Reuse` is a task's, which waits for
another run that makes the same. If several runs want the same versions, one makes them: before it submits its job it writes a claim
for the job into the store. The other runs wait until that job ends, then look again. They keep what it made; if it failed or was
cancelled, one of them makes it. A claim is valid only while its job is alive, so a kill leaves no valid claim behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from muster.core.address import Address, shown
from muster.core.comparison import Difference, differences, key_of, task_key_of, whole_key_of
from muster.core.errors import NotFound
from muster.core.status import JobResult, JobState, JobStatus
from muster.volumes.changes import changed_since

if TYPE_CHECKING:
    from muster.airflow.attempts.run import TaskRun
    from muster.core.job import JobSpec
    from muster.core.origin import Origin
    from muster.volumes.base import Made
    from muster.volumes.protocols import LocalStore

Refuse = Callable[["Made"], str]
"""Says why a task may not keep these versions; empty if it may."""

_AS_NOW = "same code, image, inputs and params"


@dataclass(frozen=True, kw_only=True)
class Wish:
    """Which earlier versions a task may keep.

    :param by_selector: volumes that a task of the same Dag reads by a selector; None: any of them may be. A version of
        these is kept only if the selector finds the same content.
    :param refuse: the task's own reasons against it.
    """

    by_selector: Collection[str] | None = ()
    refuse: Refuse = field(default=lambda _: "")


@dataclass(frozen=True, kw_only=True)
class Found:
    """What :func:`look` found.

    :param made: what is kept; None if nothing is.
    :param nearest: if nothing is kept, what differs least; None if the task has made nothing that is live.
    :param reasons: how the job differs from `nearest`, or why else it cannot be kept.
    """

    made: Made | None = None
    nearest: Made | None = None
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the line for the task's log."""
        if self.made is not None:
            return f"kept {named(self.made)}: {_AS_NOW}"
        if self.nearest is None:
            return "nothing is kept: this task has made nothing that is live"
        return f"not kept: {'; '.join(self.reasons)} (compared with {named(self.nearest)})"


def named(made: Made) -> str:
    """Return what a job made, and when: ``flights/features@1…@12 of 2026-11-20``."""
    return f"{shown(made.addresses)} of {time.strftime('%F', time.localtime(made.created))}"


def look(spec: JobSpec, store: LocalStore, wish: Wish | None = None) -> Found:
    """Find earlier versions that a job would make again, or else how the job differs from the nearest ones.

    :param spec: the job as it would be submitted; its code must be in the store.
    """
    wish, near = wish or Wish(), list[Found]()
    for made in store.made(key_of(spec)):
        reasons = tuple(_reasons(made, spec, store, wish))
        if not reasons:
            return Found(made=made)
        near.append(Found(nearest=made, reasons=reasons))
    if not near:
        for made in store.made(task_key_of(spec.origin)):
            reasons = tuple(map(str, compare(made, spec, store)))
            near.append(Found(nearest=made, reasons=reasons))
    return min(near, key=lambda each: len(each.reasons), default=Found())  # of equal ones the newest


def compare(made: Made, spec: JobSpec, store: LocalStore) -> list[Difference]:
    """Return how a job differs from the one that made these versions."""
    return differences(made.spec, spec, changed_since(made, spec, store))


def _reasons(made: Made, spec: JobSpec, store: LocalStore, wish: Wish) -> Iterator[str]:
    """Why versions of the same key are not kept; the costly checks come last."""
    found = [*map(str, compare(made, spec, store))]
    yield from found
    if not found and (refused := wish.refuse(made)):
        yield refused
    elif not found:
        yield from _overtaken(made, store, wish.by_selector)


def _overtaken(made: Made, store: LocalStore, by_selector: Collection[str] | None) -> Iterator[str]:
    """Name newer versions that a selector would find instead; other numbers with the same content do not count."""
    for address in made.addresses:
        volume = Address.parse(address).volume
        if by_selector is not None and volume not in by_selector:
            continue
        (version,) = store.resolve(address)
        where = f"volume://{volume}@{version.partition or 'latest'}"
        try:
            (newest,) = store.resolve(where)
        except NotFound:
            continue
        if newest.digest != version.digest:
            yield (
                f"{shown([newest.address])} came after {shown([address])}, and this Dag reads "
                f"{volume} by a selector, which finds the newer one"
            )
            return


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
