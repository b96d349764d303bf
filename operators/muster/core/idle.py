"""Whether a gang does nothing with what it holds, judged from samples of its replicas. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.core.series import Series  # a worker needs none

QUIET = "quiet_seconds"
"""The number by which a worker tells how long its replica has done nothing."""

QUIET_CORES, QUIET_SHARE = 0.05, 0.01
FRESH_SECONDS = 90.0
"""A replica that has sent no sample for 90 s is not known to be idle."""


def quiet(
    before: float | None, seconds: float, *, cores: float, shares: Sequence[float], has_output: bool
) -> float | None:
    """Return how long a replica has done nothing at the end of one more sample; None until it has begun.

    It begins with its first output or use of a CPU or card. Then its cards count, where they are measured; else its output and CPU.

    :param seconds: the length of the sample. `shares`: of its cards, in which they computed; empty where none is measured.
    :param cores: the mean. `has_output`: whether a line came.
    """
    if before is None and not (has_output or cores > 0 or any(shares)):
        return None
    busy = max(shares) >= QUIET_SHARE if shares else has_output or cores >= QUIET_CORES
    return 0.0 if busy or before is None else before + seconds


def idle_seconds(series: Series, *, replicas: int, now: float) -> float:
    """Return how long every replica of a gang has done nothing; 0 where one works, has not begun, or has sent no sample for 90 s."""
    newest = [curve for curve in series.use if curve.name == QUIET and curve.values]
    fresh = [c.values[-1] for c in newest if now - series.start - c.seconds[-1] < FRESH_SECONDS]
    return min(fresh) if len(fresh) >= replicas else 0.0
