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
from typing import Any

from muster.core.errors import SpecError
from muster.core.names import make_job_id
from muster.core.status import JobState


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
