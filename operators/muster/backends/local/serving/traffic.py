"""Where a deployment's traffic goes on one machine, as pure functions: which process accepts, and whom it asks."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import TypeVar

Home = TypeVar("Home", bound=Hashable)


def in_force(shares: Mapping[str, int], *, up: Collection[str], waiting: Collection[str]) -> dict[str, int]:
    """Return the shares that can be put in force: what is not up leaves its own to the greatest that is.

    Nothing is put in force where the greatest share of all is not up and is waited for: its clients wait as
    well, and a revision that few were to ask is not asked by all.
    """
    ordered = sorted((name for name, percent in shares.items() if percent), key=lambda name: -shares[name])
    there = [name for name in ordered if name in up]
    if not there or (ordered[0] in waiting and ordered[0] not in up):
        return {}
    found = {name: shares[name] for name in there}
    found[there[0]] += sum(shares.values()) - sum(found.values())
    return found


def front(shares: Mapping[str, int], homes: Mapping[str, Home], *, now: Home | None) -> Home:
    """Return which process accepts clients: that of the greatest share, and in a tie the one that does now.

    :param shares: those in force, one or more.
    :param homes: in which process each revision is.
    """
    return homes[max(shares, key=lambda name: (shares[name], homes[name] == now))]
