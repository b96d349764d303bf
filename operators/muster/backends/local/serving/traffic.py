"""Where a deployment's traffic goes on one machine, as pure functions: which process accepts, and whom it asks."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import TypeVar

Process = TypeVar("Process", bound=Hashable)


def in_force(
    shares: Mapping[str, int], *, lead: str | None, up: Collection[str], waiting: Collection[str]
) -> dict[str, int]:
    """Return the shares that can be put in force: what is not up leaves its own to `lead`, or the greatest that is.

    Nothing is put in force where `lead` is not up and is waited for: its clients wait as well, and a revision
    that is being tried is not asked by all.
    """
    found = {name: percent for name, percent in shares.items() if percent and name in up}
    if not found or (lead in waiting and lead not in up):
        return {}
    taker = lead if lead in found else max(found, key=lambda name: found[name])
    assert taker is not None
    found[taker] += sum(shares.values()) - sum(found.values())
    return found


def front(
    shares: Mapping[str, int], processes: Mapping[str, Process], *, lead: str | None, now: Process | None
) -> Process:
    """Return which process accepts clients: that of `lead`, else of the greatest share; in a tie the one that does now.

    :param shares: those in force, one or more.
    :param processes: in which one each revision is.
    """
    return processes[max(shares, key=lambda name: (name == lead, shares[name], processes[name] == now))]
