"""Airflow's ``task_state_store``, in memory."""

from __future__ import annotations

from typing import Any


class Notes:
    """What one task has written down, for all of its tries."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        """Return what was written under a key; None where nothing was."""
        return self.kept.get(key)

    def set(self, key: str, value: Any, *, retention: Any) -> None:
        """Write it down."""
        self.kept[key] = value
