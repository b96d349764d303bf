"""``plain``: a rank gets its number and no more."""

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
    """Return nothing: the number is in every rank's environment."""
    return {}


def meet(replica: Replica, environments: Sequence[dict[str, str]]) -> list[int]:  # noqa: ARG001
    """Do nothing: the ranks do not meet."""
    return []
