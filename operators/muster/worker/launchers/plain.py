"""``plain``: a rank learns its number and no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from muster.core.replica import Replica


def environment(
    replica: Replica,  # noqa: ARG001
    local_rank: int,  # noqa: ARG001
    *,
    base: Mapping[str, str],  # noqa: ARG001
    error_file: str,  # noqa: ARG001
) -> dict[str, str]:
    """Return nothing: what every rank finds holds its number."""
    return {}


def meet(replica: Replica, environments: Sequence[dict[str, str]]) -> list[int]:  # noqa: ARG001
    """Do nothing: the ranks do not meet."""
    return []
