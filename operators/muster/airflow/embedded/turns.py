"""Which of the tasks that are ready may start: Airflow's limits, which elsewhere its scheduler applies.

A limit counts the tasks of one run. A task that asks for more than its pool has runs alone in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

UNLIMITED = -1


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A task instance that is ready or runs.

    :param weight: Airflow's priority; the greater goes first.
    :param place: where its task stands in the order of the Dag.
    :param ti_id: Airflow's id of the instance, or of this try.
    :param at_once: how many instances of its task may run; None: any number.
    """

    task_id: str
    map_index: int = -1
    weight: int = 1
    place: int = 0
    pool: str = ""
    slots: int = 1
    at_once: int | None = None
    ti_id: Any = None
    try_number: int = 1

    @property
    def key(self) -> tuple[str, int]:
        """Its task's id and its map index."""
        return self.task_id, self.map_index


@dataclass(frozen=True, kw_only=True)
class RunLimits:
    """What a run may have running at once.

    :param tasks: how many.
    :param pools: slots by pool; a pool that is not listed has no limit.
    """

    tasks: int
    pools: Mapping[str, int]

    def allow(self, turn: Turn, running: Collection[Turn]) -> bool:
        """Whether a task may start beside those that run."""
        if len(running) >= self.tasks:
            return False
        same = sum(each.task_id == turn.task_id for each in running)
        if turn.at_once is not None and same >= turn.at_once:
            return False
        return self._has_room(turn, [each for each in running if each.pool == turn.pool])

    def _has_room(self, turn: Turn, beside: Sequence[Turn]) -> bool:
        slots = self.pools.get(turn.pool, UNLIMITED)
        taken = sum(each.slots for each in beside)
        return slots == UNLIMITED or not beside or taken + turn.slots <= slots


def whose_turn(ready: Iterable[Turn], running: Iterable[Turn], limits: RunLimits) -> list[Turn]:
    """Return those that may start now, the first one first; one that must wait holds no other back."""
    chosen: list[Turn] = []
    busy = list(running)
    for turn in sorted(ready, key=lambda turn: (-turn.weight, turn.place, turn.map_index)):
        if limits.allow(turn, busy):
            busy.append(turn)
            chosen.append(turn)
    return chosen
