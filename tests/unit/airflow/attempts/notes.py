"""What a try of a task has around it, in memory: ``task_state_store``, its task instance, its log, a backend."""

from __future__ import annotations

from typing import Any
from uuid import uuid4


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


class Ti:
    """The task instance that links are pushed for."""

    def __init__(self) -> None:
        self.id = uuid4()

    def xcom_push(self, *words: object, **more: object) -> None: ...


class Log:
    """A task's or a trigger's log."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str, *words: object) -> None:
        self.lines.append(text % words)

    warning = info


class OwnStore:
    """A backend that is its own store and its own ledger."""

    @property
    def store(self) -> Any:
        return self

    @property
    def ledger(self) -> Any:
        return self
