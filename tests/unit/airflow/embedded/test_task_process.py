"""A task in a fork: its lines, its end, a stop, and that it never outlives its run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import eventually

from muster.airflow.attempts.watcher import LineListener
from muster.airflow.embedded.result import Silent
from muster.airflow.embedded.task_process import TaskOutcome, TaskProcess, hear
from muster.core.status import JobState, JobStatus

Start = Callable[..., TaskProcess]


class Heard(Silent):
    def __init__(self) -> None:
        self.text: list[str] = []
        self.jobs: list[tuple[str, JobStatus]] = []

    def lines(self, task: str, lines: object) -> None:
        self.text += [f"{task}: {line}" for line in lines]  # type: ignore[attr-defined]

    def job(self, task: str, status: JobStatus) -> None:
        self.jobs.append((task, status))


@pytest.fixture
def heard() -> Heard:
    return Heard()


def start(
    work: Callable[[LineListener], TaskOutcome], *, label: str = "say", captured: bool = True
) -> TaskProcess:
    process = TaskProcess(lambda _, listener: work(listener), captured=captured, stop=lambda: os._exit(7))
    process.start(None, label=label)
    return process


@pytest.fixture
def started() -> Iterator[Callable[..., TaskProcess]]:
    """Starts processes, and ends them."""
    every: list[TaskProcess] = []

    def go(*arguments: Any, **options: Any) -> TaskProcess:
        every.append(start(*arguments, **options))
        return every[-1]

    yield go
    for process in every:
        process.leave()


def to_the_end(process: TaskProcess, heard: Heard) -> TaskProcess:
    eventually(lambda: hear([process], heard, 0.1))
    return process


def test_what_it_tells_and_how_it_ended_come_back(heard: Heard, started: Start) -> None:
    status = JobStatus(job_id="say-1", state=JobState.QUEUED, submitted=1.0, reason="1 before it")

    def work(listener: LineListener) -> TaskOutcome:
        listener.lines("fit[1] rate=0.1", ["[rank 0] here"])
        listener.job("fit[1] rate=0.1", status)
        return TaskOutcome(arguments={"rate": 0.1}, message="no")

    assert to_the_end(started(work), heard).outcome == TaskOutcome(arguments={"rate": 0.1}, message="no")
    assert heard.text == ["fit[1] rate=0.1: [rank 0] here"]
    assert heard.jobs == [("fit[1] rate=0.1", status)]


def test_what_it_or_a_program_prints_is_told_by_line_under_its_name(heard: Heard, started: Start) -> None:
    def work(_: LineListener) -> TaskOutcome:
        print("one")
        subprocess.run(["sh", "-c", "echo two; echo three >&2"], check=True)
        sys.stdout.write("no end of line")
        return TaskOutcome()

    to_the_end(started(work), heard)
    assert heard.text == ["say: one", "say: two", "say: three", "say: no end of line"]


def test_one_that_is_not_captured_prints_where_the_run_does(
    heard: Heard, started: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    def work(_: LineListener) -> TaskOutcome:
        subprocess.run(["echo", "to the terminal"], check=True)
        return TaskOutcome()

    to_the_end(started(work, captured=False), heard)
    assert heard.text == []
    assert capfd.readouterr().out == "to the terminal\n"


def test_a_program_that_it_leaves_behind_does_not_keep_it(
    heard: Heard, started: Start, tmp_path: Path
) -> None:
    def work(_: LineListener) -> TaskOutcome:
        left = subprocess.Popen(["sleep", "60"], start_new_session=True)
        (tmp_path / "pid").write_text(str(left.pid))
        return TaskOutcome()

    try:
        assert to_the_end(started(work), heard).outcome == TaskOutcome()
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_it_runs_one_task_after_the_other_and_each_says_its_own(heard: Heard) -> None:
    def work(order: str, _: LineListener) -> TaskOutcome:
        print(order, os.getpid())
        return TaskOutcome(message=order)

    process = TaskProcess(work, captured=True, stop=lambda: None)
    for order in ("one", "two"):
        process.start(order, label=f"task {order}")
        assert to_the_end(process, heard).outcome == TaskOutcome(message=order)
        assert process.alive
    (first, second) = (line.rpartition(" ") for line in heard.text)
    assert (first[0], second[0]) == ("task one: one", "task two: two")
    assert first[2] == second[2]
    process.leave()
    assert not process.alive


@pytest.mark.parametrize(
    ("end", "how"),
    [
        (lambda: os._exit(3), "ended with exit code 3"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was ended by SIGKILL"),
        (lambda: sys.exit("never mind"), "ended with exit code 1"),
    ],
)
def test_one_that_ends_without_a_word_says_how(
    end: Callable[[], None], how: str, heard: Heard, started: Start
) -> None:
    def work(_: LineListener) -> TaskOutcome:
        end()
        return TaskOutcome()

    process = to_the_end(started(work), heard)
    assert (process.outcome, process.how) == (None, how)


def test_a_stop_is_heard_and_ctrl_c_is_the_run_s(heard: Heard, started: Start) -> None:
    def work(_: LineListener) -> TaskOutcome:
        os.kill(os.getpid(), signal.SIGINT)
        print("goes on", flush=True)
        signal.pause()
        return TaskOutcome()

    process = started(work)

    def said() -> bool:
        assert not hear([process], heard, 0.1)
        return bool(heard.text)

    eventually(said)
    process.stop()
    assert to_the_end(process, heard).how == "ended with exit code 7"


RUN = """
import os, signal, sys
from pathlib import Path
from muster.airflow.embedded.task_process import TaskProcess

def work(order, listener):
    Path(sys.argv[1]).write_text(str(os.getpid()))
    signal.pause()

TaskProcess(work, captured=True, stop=lambda: None).start(None, label="say")
signal.pause()
"""


def test_it_dies_with_its_run(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    run = subprocess.Popen([sys.executable, "-c", RUN, str(told)])
    try:
        pid = int(eventually(lambda: told.exists() and told.read_text()))
    finally:
        run.kill()
        run.wait()

    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
        except OSError:
            return True

    eventually(gone)
