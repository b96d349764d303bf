"""Who else hears what jobs say, beside the tasks' logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class LineListener(Protocol):
    """Hears the lines of every job that this process waits for. Called from one thread, one call at a time."""

    def lines(self, task_id: str, lines: Sequence[str]) -> None:
        """Its job wrote lines."""
