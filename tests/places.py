"""A place that is put together of what a test has made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from muster.backends.jobs.runner import Runner
from muster.core.check import Check
from muster.volumes.base import Version
from muster.volumes.protocols import LocalStore


@dataclass
class MadePlace:
    """A :class:`muster.backends.place.Place` of these parts; what a test does not use is left out."""

    store: LocalStore
    runner: Runner
    deployments: Any = None
    capacity: Any = None
    name: str = "made"
    here: bool = True
    package: str = "tests"
    used: bool = True

    def expecting_jobs(self) -> AbstractContextManager[None]:
        return nullcontext()

    def commit_requests(
        self,
        name: str,
        made: Callable[[Version], None],
        *,
        progress: Callable[[str], None],
    ) -> Iterable[str]:
        return ()

    def evidence(self) -> tuple[()]:
        return ()

    def secrets(self) -> tuple[()]:
        return ()

    def checks(self) -> Iterable[Check]:
        return ()

    def close(self) -> None:
        self.runner.close()
        self.store.close()
