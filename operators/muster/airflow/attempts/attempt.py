"""Which job a try of a task stands for: start one, adopt the one that runs, or take what it left.

A task writes its :class:`Attempt` to Airflow's ``task_state_store`` before it submits anything. The
store outlives the task's process and its retries, so whatever dies, the next try reads there which
job was meant, and the ledger tells how that job is. The decision is a pure function of the two.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, get_args

from muster.core.deployment import DeploymentSpec
from muster.core.errors import SpecError
from muster.core.names import make_job_id
from muster.core.status import JobState

if TYPE_CHECKING:
    from muster.airflow.attempts.run import TaskRun


class Action(str, Enum):
    """What a try does about its job."""

    START = "start"
    ADOPT = "adopt"
    TAKE = "take"
    REPORT = "report"


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt of a task, as it is kept in ``task_state_store``.

    :param nonce: drawn when the task runs for the first time or again after it was cleared.
    :param max_tries: Airflow's own; it raises the number when an ended task is cleared, by `retries`, so that it may
        come to the same as before where the Dag says fewer by then.
    :param number: counts the jobs of this nonce from 1.
    :param reported: whether its failure or cancellation has been a task's outcome, or is going to be.
    :param before: the job of the attempt before, whose checkpoints it may go on from.
    :param kept: the job of another run whose versions this attempt took; it submitted none itself.
    :param anew: whether a person cleared the task, who wants it made again.
    :param backfill: the backfill that the run belongs to, if any.
    """

    nonce: str
    max_tries: int
    retries: int = 0
    number: int = 1
    reported: bool = False
    before: str | None = None
    kept: str | None = None
    anew: bool = False
    backfill: str | None = None

    def job_id(self, *, instance: str, task: str) -> str:
        """The name of this attempt's job: the same whenever and wherever it is asked."""
        return make_job_id(instance=instance, task=task, nonce=self.nonce, attempt=self.number)

    def dump(self) -> dict[str, Any]:
        """Write it as JSON values; what `number` is called there is ``attempt``."""
        return {"attempt" if name == "number" else name: value for name, value in vars(self).items()}

    @classmethod
    def load(cls, stored: object) -> Attempt | None:
        """Read what :meth:`dump` wrote; None where nothing was stored yet.

        :raises SpecError: something else is stored.
        """
        if stored is None:
            return None
        if not isinstance(stored, Mapping) or not isinstance(stored.get("nonce"), str):
            raise SpecError(
                f"task_state_store holds {stored!r:.80} where muster keeps its attempts: clear the task"
            )
        known = {**stored, "number": stored["attempt"]}
        return cls(**{each.name: known[each.name] for each in fields(cls) if each.name in known})


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do, and the attempt it is done for."""

    action: Action
    attempt: Attempt


def decide(
    stored: Attempt | None,
    *,
    max_tries: int,
    retries: int,
    state: JobState | None,
    mine: bool,
    fresh_nonce: str,
    backfill: str | None = None,
) -> Decision:
    """Choose what a try does.

    :param stored: what an earlier try wrote, or this one before it was deferred.
    :param max_tries: what Airflow says now, and `retries` what the Dag does.
    :param state: of the stored attempt's job, or of the task's last one where nothing is stored; None where the ledger has no
        such job.
    :param mine: whether this try owns that job.
    :param fresh_nonce: used where the task has to begin anew.
    :param backfill: the one that the run belongs to. Where that is another than before, it cleared the task, and no person.
    """
    # Nothing is stored of a task that runs for the first time, or that a person cleared in Airflow 3.4; a backfill discards nothing.
    cleared = state is not None or max_tries > retries
    anew = cleared if stored is None else stored.backfill == backfill
    fresh = Attempt(nonce=fresh_nonce, max_tries=max_tries, retries=retries, anew=anew, backfill=backfill)
    if stored is None or stored.max_tries != max_tries:
        return Decision(action=Action.START, attempt=fresh)
    # Who clears what succeeded wants it done again, in another try. A Dag that was edited while this one waited for its
    # job, or while the job still runs, is no reason to give it up.
    if (state is JobState.SUCCEEDED or stored.kept) and stored.retries != retries and not mine:
        return Decision(action=Action.START, attempt=fresh)
    if state is None:  # the process died between writing the attempt and submitting its job
        return Decision(action=Action.START, attempt=stored)
    # A cancel in another try's name means that that try was ended or cleared, which may have been
    # too late for it to write down.
    if stored.reported or (state is JobState.CANCELLED and not mine):
        following = replace(stored, number=stored.number + 1, reported=False)
        return Decision(action=Action.START, attempt=following)
    if not state.ended:
        return Decision(action=Action.ADOPT, attempt=stored)
    action = Action.TAKE if state is JobState.SUCCEEDED else Action.REPORT
    return Decision(action=action, attempt=stored)


def newer(one: str, other: str | None) -> bool:
    """Whether the try `one` began after `other`: Airflow's ids of tries are UUIDs that sort by time (RFC 9562, 7)."""
    try:
        return other is not None and uuid.UUID(one) > uuid.UUID(other)
    except ValueError:
        return False


Begun = Literal["release", "rollback", "search"]
KEYS = frozenset(f"begun.{action}" for action in get_args(Begun))


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A release that a task has asked for, kept for its next tries: by then ``@latest`` may mean another version."""

    revision: str
    spec: DeploymentSpec


class Remembered:
    """One action that a task starts once in all its tries; a cleared task starts it again.

    It is kept in Airflow's ``task_state_store``, which outlives the task's process and its retries.

    :param what: the name of the action.
    """

    def __init__(self, task: TaskRun, what: Begun) -> None:
        self._store = task.context["task_state_store"]
        self._key = f"begun.{what}"
        # Airflow raises the first by the second when an ended task is cleared.
        self._series = {"max_tries": task.max_tries, "retries": task.retries}
        self._try = task.owner

    def recall(self) -> str | None:
        """Return what an earlier try wrote; None where nothing was started.

        :raises SpecError: something else is stored.
        """
        stored = self._store.get(self._key)
        if stored is None:
            return None
        if not isinstance(stored, Mapping) or not isinstance(stored.get("begun"), str):
            raise SpecError(f"task_state_store holds {stored!r:.80} as {self._key}: clear the task")
        begun = str(stored["begun"])
        if stored.get("try") != self._try:  # else it was deferred, and by now the Dag may say other retries
            if any(stored.get(name) != number for name, number in self._series.items()):
                return None
            self.remember(begun)
        return begun

    def remember(self, begun: str) -> None:
        """Write it down. Airflow refuses that to a try that is no longer the task's own."""
        from muster.airflow.upstream.internals import NEVER_EXPIRE

        self._store.set(self._key, {"begun": begun, "try": self._try, **self._series}, retention=NEVER_EXPIRE)
