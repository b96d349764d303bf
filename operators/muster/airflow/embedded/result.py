"""What a run behind ``muster run`` tells while it goes on, and when it has ended. Plain data, for JSON too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from muster.airflow.attempts.listening import LineListener


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One task of a run.

    :param state: Airflow's own: ``success``, ``failed``, ``upstream_failed``, ``skipped``; ``none``
        where it did not start.
    :param seconds: from start to end, of its last try.
    :param overhead_seconds: `seconds` less the time its job ran; None where it ran no job.
    :param kept: it succeeded before, and ``--resume`` left it as it was.
    :param versions: addresses by the name of the output.
    :param message: why it failed.
    """

    task_id: str
    state: str
    seconds: float | None = None
    overhead_seconds: float | None = None
    kept: bool = False
    job_id: str | None = None
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """What answers after a run: where, with which version, and a line to try it with."""

    name: str
    url: str
    version: str
    curl: str


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One run of a Dag.

    :param state: ``success``, ``failed`` or ``interrupted``.
    :param log: where Airflow's own log of the run is.
    """

    dag_id: str
    run_id: str
    state: str
    seconds: float
    log: str
    params: Mapping[str, Any] = field(default_factory=dict)
    stages: tuple[Stage, ...] = ()
    deployments: tuple[Deployed, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def succeeded(self) -> bool:
        """Whether the whole run did."""
        return self.state == "success"


class Listener(LineListener, Protocol):
    """Who shows a run while it goes on. Called from one thread, one call at a time."""

    def note(self, text: str) -> None:
        """Something to know: what is being prepared, that a run was left by a crash."""

    def warning(self, text: str) -> None:
        """Something to look at."""

    def run_started(self, run_id: str, tasks: Sequence[str]) -> None:
        """The run begins; `tasks` in the order in which they can run."""

    def task_started(self, task_id: str, try_number: int) -> None:
        """A task begins."""

    def task_ended(self, stage: Stage) -> None:
        """A task ended, or a kept one is passed over."""


class Silent:
    """A listener that shows nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def warning(self, text: str) -> None:
        """Show nothing."""

    def run_started(self, run_id: str, tasks: Sequence[str]) -> None:
        """Show nothing."""

    def task_started(self, task_id: str, try_number: int) -> None:
        """Show nothing."""

    def lines(self, task_id: str, lines: Sequence[str]) -> None:
        """Show nothing."""

    def task_ended(self, stage: Stage) -> None:
        """Show nothing."""
