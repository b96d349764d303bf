"""Budgets: what the jobs of a Dag or a team may hold in a month, before further jobs wait for the next one.

``STORE/usage/budgets.json`` has them by whose they are, ``dag:flights`` or ``team:vision``. A Dag's stands in its file, and each job
that is submitted sets it; a person sets a team's by ``muster budget``. What was set last counts, also for jobs that wait.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from muster.core import wire
from muster.core.errors import Corrupt, SpecError
from muster.core.tally import HourBudget, month_of
from muster.ext.usage import log
from muster.ext.usage.table import UsageQuestion, usage
from muster.volumes.durability import locked, text_of, translated, write_whole

if TYPE_CHECKING:
    from muster.volumes.folder import FolderStore

_FRESH_SECONDS = 10  # many jobs may wait, and each is looked at every second


@dataclass(frozen=True, kw_only=True)
class SpentBudget:
    """A budget, and the hours of this month that were held."""

    whose: str
    budget: HourBudget
    gpu_hours: float = 0.0
    cpu_hours: float = 0.0

    def over(self, *, cards: bool, gpu: float = 0.0, cpu: float = 0.0) -> str:
        """Say which budget is used up after `gpu` and `cpu` more hours; empty where hours are left.

        :param cards: whether hours of cards are asked for at all.
        """
        limit, (kind, _, name) = self.budget, self.whose.partition(":")
        for what, most, held, more in (
            ("GPU", limit.gpu_hours if cards else None, self.gpu_hours, gpu),
            ("CPU", limit.cpu_hours, self.cpu_hours, cpu),
        ):
            if most is not None and (held >= most or held + more > most):
                planned = f" and {more:.3g} planned" if more else ""
                following = time.strftime("%Y-%m-%d", time.gmtime(month_of(time.time())[1]))
                told = f"{kind} {name} has used {held:.4g} of {most:g} {what}-hours of this month"
                return f"{told}{planned}; the next one begins on {following}"
        return ""


@dataclass(frozen=True, kw_only=True)
class BudgetQuestion:
    """Asks for budgets. :param whose: of these; empty: all. :param given: those that come before what is stored; None: none."""

    whose: tuple[str, ...] = ()
    given: Mapping[str, HourBudget | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for whose in self.given:
            kind, _, name = whose.partition(":")
            if kind not in ("dag", "team") or not name or len(name) > 250 or not name.isprintable():
                raise SpecError(f"a budget of {whose!r:.80}: expected dag:NAME or team:NAME")


@dataclass(frozen=True, kw_only=True)
class SpentBudgets:
    """An answer."""

    budgets: tuple[SpentBudget, ...]


def spent(store: FolderStore, question: BudgetQuestion, *, keep: bool = False) -> SpentBudgets:
    """Answer a question where the log is. :param keep: whether what is given is stored."""
    path = store.layout.root / "usage" / "budgets.json"
    budgets = {**_stored(path), **question.given}
    if keep and budgets != _stored(path):
        path.parent.mkdir(exist_ok=True)
        with translated("set a budget"), locked(path.parent / "lock"):
            budgets = {**_stored(path), **question.given}
            write_whole(path, wire.dumps(BudgetQuestion(given=budgets)))
    found = []
    for whose, budget in sorted(budgets.items()):
        if budget is not None and whose in (question.whose or budgets):
            kind, _, name = whose.partition(":")
            gpu, cpu = _held(store, kind, int(time.time() // _FRESH_SECONDS)).get(name, (0.0, 0.0))
            found.append(SpentBudget(whose=whose, budget=budget, gpu_hours=gpu, cpu_hours=cpu))
    return SpentBudgets(budgets=tuple(found))


def _stored(path: Path) -> Mapping[str, HourBudget | None]:
    try:
        with translated("read the budgets"):
            return wire.loads(BudgetQuestion, text_of(path) or wire.dumps(BudgetQuestion())).given
    except SpecError as error:
        raise Corrupt(
            f"{path} cannot be read: {error}; put it back as it was, or take it away and set the budgets again: muster budget"
        ) from error


@lru_cache(8)
def _held(store: FolderStore, kind: str, turn: int) -> Mapping[str, tuple[float, float]]:
    """Return the GPU- and CPU-hours of every Dag or team in the month of a turn; within it they stay as they were asked first."""
    now = time.time()
    question = UsageQuestion(by=(kind,), since=month_of(turn * _FRESH_SECONDS)[0])
    lines = log.read(store.layout.root, store.ledger, since=question.since, now=now)
    return {row.keys[0]: (row.gpu[0], row.cpu[0]) for row in usage(lines, question, now=now)}
