"""``plain``: a rank gets its number and no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.core.replica import Replica


def environment(_replica: Replica, _local_rank: int, _base: Mapping[str, str]) -> dict[str, str]:
    """Return nothing: the number is in every rank's environment."""
    return {}


def meet(_replica: Replica, _environments: Sequence[dict[str, str]]) -> list[int]:
    """Do nothing: the ranks do not meet."""
    return []
