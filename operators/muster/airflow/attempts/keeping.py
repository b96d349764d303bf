"""Finds earlier versions that a job would make again, or says why none can be kept.

Nothing here needs a task: :func:`look` compares a job, submitted or only planned, with the store. The task's side is
:mod:`muster.airflow.attempts.run`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from muster.core.address import Address, shown
from muster.core.comparison import Difference, differences, key_of, task_key_of
from muster.core.errors import NotFound
from muster.volumes.changes import changed_since

if TYPE_CHECKING:  # a Dag file imports this room
    from muster.core.job import JobSpec
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
