"""Events and result of a ``muster run``: plain data, also for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from muster.airflow.attempts.watcher import LineListener
from muster.core.errors import SpecError


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a task ended, or an instance of a mapped one.

    :param state: Airflow's own: ``success``, ``failed``, ``upstream_failed``, ``skipped``; ``none``
        where it did not start; ``cancelled`` where Airflow has ``failed`` for the run was interrupted meanwhile.
    :param seconds: from start to end of its last try; of a mapped task, from the first instance's start to the
        last one's end.
    :param overhead_seconds: `seconds` without the time its job ran in them; None where it ran no job, or searched. Of a mapped task, all
        instances together.
    :param kept: it took what was made before: ``--resume`` kept it, or its operator's ``cache``.
    :param versions: addresses by the name of the output.
    :param message: why it failed, its last try did, or it skipped itself; of a mapped task, its first such instance.
    """

    state: str
    seconds: float | None = None
    overhead_seconds: float | None = None
    job_id: str | None = None
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    message: str = ""
    kept: bool = False


@dataclass(frozen=True, kw_only=True)
class Instance(Ended):
    """One instance of a mapped task.

    :param label: its name for people, with distinguishing arguments: ``fit[2] rate=0.1``.
    :param arguments: its arguments; empty if it was kept from an earlier run that alone knew them.
    """

    map_index: int
    label: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Stage(Ended):
    """One task of a run. :param instances: of a mapped task, in the order of its map; empty for others."""

    task_id: str
    instances: tuple[Instance, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Deployed:
    """A deployment after a run: its address, its version, and a line to try it with."""

    name: str
    url: str
    version: str
    curl: str


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One run of a Dag.

    :param state: ``success``, ``failed`` or ``interrupted``.
    :param log: Airflow's own log of the run.
    :param only: the task that ran alone, so that the tasks after it wait; None if none was named.
    :param resumed: whether it went on with an earlier run.
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
    only: str | None = None
    resumed: bool = False

    @property
    def nothing_ran(self) -> bool:
        """Whether it resumed a run of which nothing was left to run."""
        return self.resumed and self.succeeded and all(stage.kept for stage in self.stages)

    @property
    def succeeded(self) -> bool:
        """Whether the whole run succeeded."""
        return self.state == "success"


@dataclass(frozen=True, kw_only=True)
class Approval:
    """What a task asks a person: one of its options, or several."""

    task: str
    options: tuple[str, ...]
    subject: str = ""
    body: str = ""
    multiple: bool = False

    def chosen(self, text: str) -> tuple[str, ...]:
        """Return the options that a text names, in any case, with commas between several. :raises SpecError: it names none."""
        by_name = {option.casefold(): option for option in self.options}
        words = [word.strip().casefold() for word in (text.split(",") if self.multiple else [text])]
        if not all(word in by_name for word in words):
            several = ", one or several with commas between" if self.multiple else ""
            raise SpecError(
                f"{text.strip()!r:.60} is no answer to task {self.task}: its options are {', '.join(self.options)}{several}"
            )
        return tuple(by_name[word] for word in words)


class Listener(LineListener, Protocol):
    """Shows a run in progress. Called from one thread, one call at a time."""

    @property
    def can_answer(self) -> bool:
        """Whether a person can be asked."""

    def answer(self, question: Approval) -> tuple[str, ...] | None:
        """Ask a person, and return the options chosen; None at once where there is no answer yet. Called several times a second."""

    def note(self, text: str) -> None:
        """Show information: what is being prepared, or that a crash left a run."""

    def warning(self, text: str) -> None:
        """Show a warning."""

    def run_started(self, run_id: str, tasks: Sequence[str]) -> None:
        """Show that the run begins; `tasks` are in an order in which they can run."""

    def task_started(self, task: str, try_number: int, *, runs_a_job: bool) -> None:
        """Show that a task, or an instance of a mapped one, begins; its job has not started yet."""

    def instance_ended(self, instance: Instance) -> None:
        """Show that an instance of a mapped task ended; the task itself ends after the last one."""

    def task_ended(self, stage: Stage) -> None:
        """Show that a task ended, or is kept."""

    def beat(self) -> None:
        """Draw what moves by itself; called several times a second while tasks run."""


class Silent:
    """A listener that shows nothing."""

    can_answer = False

    def beat(self, *_: Any, **__: Any) -> None:
        """Show nothing."""

    answer = note = warning = run_started = task_started = job = lines = instance_ended = task_ended = beat
