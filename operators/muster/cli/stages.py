"""Shows a run in progress on stderr: a table of stages below the ranks' lines, or plain lines.

On a terminal the table stays at the bottom, and the ranks' lines scroll above it. Elsewhere each event is
a line.
"""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

from muster.cli.progress import Seldom
from muster.cli.screen import STATE_COLOURS, note, safe, seconds
from muster.core.address import shown
from muster.core.errors import SpecError
from muster.core.status import JobState

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from muster.airflow.embedded.result import Approval, Instance, Listener, Stage
    from muster.core.status import JobStatus


class Asking:
    """One person, who is asked one question at a time.

    :param show: prints a line.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show
        self._asked: Approval | None = None

    @property
    def possible(self) -> bool:
        """Whether a person may be there."""
        return sys.stdin is not None and sys.stdin.isatty()

    def __call__(self, question: Approval) -> tuple[str, ...] | None:
        """Return the options chosen, once a line names them."""
        if question is not self._asked:
            self._asked = question
            for line in (f"{question.task} asks: {question.subject}", *question.body.splitlines()):
                self._show(line)
            self._show(f"type {' or '.join(question.options)}:")
        if not select.select([sys.stdin], [], [], 0)[0]:
            return None
        try:
            return question.chosen(sys.stdin.readline())
        except SpecError as error:
            self._show(str(error))
            return None


WAITING, RUNNING = "waiting", "running"
_OF_A_RANK = "[rank "
_WORDS = {"none": "not run", "upstream_failed": "not run"}
_TOLD = ("skipped", "up_for_retry")


def view() -> AbstractContextManager[Listener]:
    """Return the view for a terminal, or for a pipe or file, on stderr."""
    return LiveView() if sys.stderr.isatty() else PlainView()


def state_of(stage: Stage) -> str:
    """Return a stage's state for people: Airflow's word, except for stages that were kept or never ran."""
    word = "kept" if stage.kept else _WORDS.get(stage.state, stage.state)
    left = [each.state == stage.state for each in stage.instances]
    return word if word != "not run" or all(left) else f"{sum(left)} of {len(left)} not run"


def versions(outputs: Mapping[str, Iterable[str]]) -> str:
    """Format the versions of a stage: ``flights/features@1…@12, flights/report@3``."""
    return shown([address for addresses in outputs.values() for address in addresses])


class _Running(NamedTuple):
    """A task, or an instance of a mapped one, that runs: what it is called, how its job stands, and why."""

    label: str
    state: str = RUNNING
    why: str = ""


class PlainView:
    """Prints one line for each event, for logs and pipes; a long preparation prints a line now and then."""

    def __init__(self) -> None:
        self._unstarted: dict[
            str, str
        ] = {}  # tasks whose job has not started, and what is added to "started"
        self._seldom = Seldom(note)
        self.answer = Asking(lambda text: note(safe(text)))

    @property
    def can_answer(self) -> bool:
        """Whether a person is before the terminal."""
        return self.answer.possible

    def __enter__(self) -> Listener:
        """Do nothing."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Print the current preparation."""
        self._seldom(safe(text))

    def warning(self, text: str) -> None:
        """Print a warning."""
        note(f"warning: {safe(text)}")

    def run_started(self, run_id: str, tasks: Sequence[str]) -> None:
        """Print the run's id and its stages."""
        note(f"run {safe(run_id)}: {safe(', '.join(tasks))}")

    def task_started(self, task: str, try_number: int, *, runs_a_job: bool) -> None:
        """Print that a stage began; a stage with a job begins when its job does."""
        self._unstarted[_instance(task)] = _again(try_number)
        if not runs_a_job:
            self._start(task)

    def job(self, task: str, status: JobStatus) -> None:
        """Print why a stage's job waits, and its start."""
        if status.state is JobState.RUNNING:
            self._start(task)
        elif status.reason:
            note(f"{safe(task)}: {safe(waits_for(status))}")

    def lines(self, task: str, lines: Sequence[str]) -> None:
        """Print the ranks' lines."""
        for line in lines:
            if line.startswith(_OF_A_RANK):  # a line may come before the job's running state
                self._start(task)
            note(f"{safe(task)} | {safe(line)}")

    def instance_ended(self, instance: Instance) -> None:
        """Print how it ended."""
        self._ended(instance.label, "kept" if instance.kept else instance.state, instance, _why(instance))

    def task_ended(self, stage: Stage) -> None:
        """Print how it ended."""
        self._ended(stage.task_id, state_of(stage), stage, _why_of_stage(stage))

    def beat(self) -> None:
        """Do nothing."""

    def _start(self, task: str) -> None:
        again = self._unstarted.pop(_instance(task), None)
        if again is not None:
            note(f"{safe(task)}: started{again}")

    def _ended(self, label: str, state: str, of: Stage | Instance, why: str) -> None:
        took = "" if of.seconds is None else f", {seconds(of.seconds)}"
        made = versions(of.versions)
        note(f"{safe(label)}: {state}{took}{f', {safe(made)}' if made else ''}{safe(why)}")


class LiveView:
    """Draws a table at the bottom of the terminal, and lines above it."""

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self._stages: dict[str, Stage | float | None] = {}
        self._status = ""
        self._running: dict[str, _Running] = {}  # by instance
        self._console = console or Console(stderr=True)
        # It draws when something is told to it: a thread of its own would be in the way of the forks of the run.
        self._live = Live(
            console=self._console, get_renderable=self.render, auto_refresh=False, transient=True
        )
        self._asking = Asking(lambda text: self._print("", text, "bold"))

    @property
    def can_answer(self) -> bool:
        """Whether a person is before the terminal."""
        return self._asking.possible

    def answer(self, question: Approval) -> tuple[str, ...] | None:
        """Ask in place of the table, which would be drawn over what is typed."""
        self._live.stop()
        chosen = self._asking(question)
        if chosen is not None:
            self._live.start()
        return chosen

    def __enter__(self) -> Listener:
        """Begin to draw."""
        self._live.start()
        return self

    def beat(self) -> None:
        """Draw the clocks."""
        if self._live.is_started:
            self._live.refresh()

    def __exit__(self, *_: object) -> None:
        """Remove the table: the summary replaces it."""
        self._live.stop()

    def note(self, text: str) -> None:
        """Show the current preparation below the table, until the next note."""
        self._status = safe(text)
        if not self._stages:  # later the run draws, and this may come from a signal's handler
            self.beat()

    def warning(self, text: str) -> None:
        """Print a warning above the table."""
        self._print("warning: ", text, "yellow")

    def run_started(self, run_id: str, tasks: Sequence[str]) -> None:
        """Draw every stage as waiting."""
        self._status = safe(run_id)
        self._stages = dict.fromkeys(tasks)
        self.beat()

    def task_started(self, task: str, try_number: int, *, runs_a_job: bool) -> None:  # noqa: ARG002
        """Start a stage's clock."""
        task_id = _instance(task).partition("[")[0]
        # a mapped task's clock runs from its first instance
        if not isinstance(self._stages.get(task_id), float):
            self._stages[task_id] = time.monotonic()
        self._running[_instance(task)] = _Running(task)
        if try_number > 1:
            self._print(f"{task} ", f"started{_again(try_number)}", "yellow")

    def job(self, task: str, status: JobStatus) -> None:
        """Show why a stage's job waits, in its row."""
        self._running[_instance(task)] = _Running(task, status.state.value, status.reason)

    def lines(self, task: str, lines: Sequence[str]) -> None:
        """Print the ranks' lines above the table."""
        for line in lines:
            self._print(f"{task} │ ", line, "")

    def instance_ended(self, instance: Instance) -> None:
        """Print above the table how an instance ended."""
        self._running.pop(_instance(instance.label), None)
        made = versions(instance.versions)
        took = f"{instance.state}, {seconds(instance.seconds)}{f', {made}' if made else ''}{_why(instance)}"
        self._print(f"{instance.label} ", took, STATE_COLOURS.get(instance.state, ""))

    def task_ended(self, stage: Stage) -> None:
        """Stop its clock."""
        self._running.pop(stage.task_id, None)
        self._stages[stage.task_id] = stage
        if why := _why_of_stage(stage):
            self._print(f"{stage.task_id} ", f"{state_of(stage)}{why}", STATE_COLOURS.get(stage.state, ""))
        self.beat()

    def _print(self, head: str, text: str, style: str) -> None:
        from rich.text import Text

        line = Text.assemble((safe(head), "dim"), (safe(text), style))
        self._console.print(line, soft_wrap=True)

    def render(self) -> RenderableType:
        """Return the current table of stages."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("stage", "state"):
            table.add_column(column, no_wrap=True)
        table.add_column("seconds", justify="right", no_wrap=True)
        table.add_column("versions", overflow="ellipsis", no_wrap=True)
        for task_id, stage in self._stages.items():
            self._row(table, task_id, stage)
        status = Text(self._status, style="dim", no_wrap=True, overflow="ellipsis")
        return Group(Text(), table, status) if self._stages else status

    def _now(self, task_id: str) -> tuple[str, str]:
        """Return the state of a task that runs, and what its instances wait for."""
        found = [each for name, each in self._running.items() if name.partition("[")[0] == task_id]
        if not found:
            return RUNNING, ""
        first = next((each for each in found if each.state == RUNNING), found[0])
        instance = first.label if "[" in first.label else ""
        more = f"and {len(found) - 1} more" if len(found) > 1 else ""
        return first.state, "  ".join(filter(None, (instance, first.why, more)))

    def _row(self, table: Table, task_id: str, stage: Stage | float | None) -> None:
        from rich.text import Text

        if stage is None:
            state, took, made = WAITING, "", ""
        elif isinstance(stage, float):
            state, made = self._now(task_id)
            took = seconds(time.monotonic() - stage)
        else:
            state, took, made = state_of(stage), seconds(stage.seconds), versions(stage.versions)
        cells = (
            Text(safe(task_id)),
            Text(state, style=STATE_COLOURS.get(state, "dim")),
            Text(took),
            Text(safe(made)),
        )
        table.add_row(*cells)


def waits_for(status: JobStatus) -> str:
    """Return why a job has not started: ``queued: 2 before it``."""
    state = status.state.value
    return status.reason if status.reason.startswith(state) else f"{state}: {status.reason}"


def _instance(label: str) -> str:
    """Return what a task or an instance is called without its arguments, which may be known only later: ``fit[2]``."""
    return label.partition(" ")[0]


def _why(of: Stage | Instance) -> str:
    """Return why a task skipped itself, or is tried again, in a line; a failure's verdict is shown at the run's end."""
    if of.state not in _TOLD:
        return ""
    # of a verdict, its cause and its message
    return "".join(f": {line}" for line in of.message.splitlines()[:2])


def _why_of_stage(stage: Stage) -> str:
    return "" if stage.instances else _why(stage)  # each instance has told its own


def _again(try_number: int) -> str:
    return f" again, try {try_number}" if try_number > 1 else ""
