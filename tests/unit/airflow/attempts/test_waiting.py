"""The wait for a job: lines are passed on, a lost supervisor is picked up, a stop always raises."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest
from tests.unit.airflow.attempts.notes import OwnStore

from muster.airflow.attempts.waiting import (
    PICK_UPS,
    GoesOn,
    InlinePatience,
    Overdue,
    Stopped,
    Wait,
    stop_airflows_clock,
)
from muster.core.errors import BackendError
from muster.core.status import JobEvent, JobState, JobStatus

RUNNING = JobStatus(job_id="j", state=JobState.RUNNING, submitted=1.0, owner="me")
QUEUED = replace(RUNNING, state=JobState.QUEUED)
LOST = replace(RUNNING, alive=False)
DONE = replace(RUNNING, state=JobState.SUCCEEDED)


class Scripted(OwnStore):
    """A backend whose every watch plays the next act: events, and the status that holds after them."""

    def __init__(self, *acts: tuple[list[JobEvent], JobStatus]) -> None:
        self._acts = list(acts)
        self._status = RUNNING
        self.submitted: list[str | None] = []
        self.asked_after: list[int] = []
        self.when_idle: Callable[[], None] = lambda: None

    def spec(self, job_id: str) -> str:
        return f"spec of {job_id}"

    def status(self, job_id: str) -> JobStatus:
        return self._status

    def submit(self, job: object, *, job_id: str, owner: str | None = None) -> None:
        assert job == f"spec of {job_id}", "a job is picked up with the spec that it was submitted with"
        self.submitted.append(owner)

    async def watch(self, job_id: str, *, after: int = 0) -> AsyncIterator[JobEvent]:
        self.asked_after.append(after)
        events, self._status = self._acts.pop(0)
        await asyncio.to_thread(lambda: None)  # a look takes its time
        for event in events:
            yield event
        self.when_idle()
        while not self._status.state.ended and self._status.alive:
            await asyncio.sleep(3600)


def follow(backend: Any, wait: Wait | None = None) -> tuple[JobStatus, list[str]]:
    lines: list[str] = []
    status = (wait or Wait()).follow(
        backend, "j", lines=lambda text, _: lines.extend(text), progress=lambda _: None
    )
    return status, lines


def test_lines_come_in_order_and_the_last_status_is_returned() -> None:
    events = [JobEvent(offset=1, lines=("a", "b")), JobEvent(offset=2, lines=("c",), status=DONE)]
    assert follow(Scripted((events, DONE))) == (DONE, ["a", "b", "c"])


def test_a_lost_supervisor_is_picked_up_where_the_lines_ended() -> None:
    backend = Scripted(
        ([JobEvent(offset=7, lines=("a",)), JobEvent(offset=7, status=LOST)], LOST),
        ([JobEvent(offset=9, lines=("b",), status=DONE)], DONE),
    )
    assert follow(backend) == (DONE, ["a", "b"])
    assert backend.submitted == ["me"]
    assert backend.asked_after == [0, 7]


def test_one_that_is_lost_again_and_again_is_given_up() -> None:
    backend = Scripted(*[([JobEvent(offset=1, status=LOST)], LOST)] * PICK_UPS)
    with pytest.raises(BackendError, match="lost 3 times"):
        follow(backend)


def test_a_stop_before_the_wait_raises() -> None:
    wait = Wait()
    wait.stop()
    with pytest.raises(Stopped):
        follow(Scripted(([], DONE)), wait)


def test_a_signal_during_the_wait_raises_although_the_handler_returns() -> None:
    """What Airflow does on SIGTERM: its handler calls on_kill, and the program goes on."""
    wait = Wait()
    backend = Scripted(([], RUNNING))
    backend.when_idle = lambda: threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGTERM]).start()

    def handler(number: int, frame: FrameType | None) -> None:
        wait.stop()

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(Stopped):
            follow(backend, wait)
    finally:
        signal.signal(signal.SIGTERM, before)
    with pytest.raises(Stopped):
        wait.pause(0)


@pytest.mark.parametrize(
    ("patience", "waited", "queued", "left"),
    [
        (InlinePatience(), 1e6, False, None),
        (InlinePatience(), 1e6, True, None),  # one that waits to the end waits in the queue too
        (InlinePatience(seconds=20), 5, False, 15),
        (InlinePatience(seconds=20), 30, False, 0),
        (InlinePatience(seconds=20, queued_seconds=2), 1, True, 1),
        (InlinePatience(seconds=0, queued_seconds=2), 0, True, 0),
        (InlinePatience(seconds=20, deadline=1003), 5, False, 3),
        (InlinePatience(deadline=1003), 5, False, 3),
        (InlinePatience(deadline=900), 5, False, 0),
        (InlinePatience(limit_seconds=60), 5, False, 50),  # from the job's start, ten seconds ago
        (InlinePatience(limit_seconds=60), 5, True, None),  # the time in muster's queue is not the job's
        (InlinePatience(limit_seconds=5), 500, False, 0),
    ],
)
def test_how_long_is_waited(
    patience: InlinePatience, waited: float, queued: bool, left: float | None
) -> None:
    assert patience.left(waited=waited, queued=queued, now=1000, started=990) == left


def test_a_limit_of_its_own_time_does_not_end_a_job_that_waits_for_room() -> None:
    backend = Scripted(([JobEvent(offset=0, status=replace(QUEUED, started=1.0))], QUEUED))
    assert goes_on(backend, InlinePatience(seconds=0.1, limit_seconds=0.01)).offset == 0
    backend = Scripted(([JobEvent(offset=0, status=replace(RUNNING, started=1.0))], RUNNING))
    with pytest.raises(Overdue):
        goes_on(backend, InlinePatience(seconds=3600, limit_seconds=0.01))


def test_airflows_own_alarm_does_not_ring_any_more() -> None:
    before = signal.setitimer(signal.ITIMER_REAL, 3600)
    try:
        stop_airflows_clock()
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, *before)


def goes_on(backend: Scripted, patience: InlinePatience) -> GoesOn:
    with pytest.raises(GoesOn) as caught:
        Wait().follow(backend, "j", lines=lambda *_: None, progress=lambda _: None, patience=patience)  # type: ignore[arg-type]
    return caught.value


def test_what_takes_longer_is_left_where_its_lines_are() -> None:
    backend = Scripted(([JobEvent(offset=7, lines=("a",), status=RUNNING)], RUNNING))
    assert goes_on(backend, InlinePatience(seconds=0.1)).offset == 7
    assert backend.submitted == []


def test_what_waits_for_room_is_left_sooner() -> None:
    backend = Scripted(([JobEvent(offset=0, status=QUEUED)], QUEUED))
    assert goes_on(backend, InlinePatience(seconds=3600, queued_seconds=0.05)).offset == 0


@pytest.mark.parametrize("patience", [InlinePatience(seconds=0.0), InlinePatience(seconds=0.0, deadline=1.0)])
def test_what_has_ended_is_taken_however_short_the_patience(patience: InlinePatience) -> None:
    backend = Scripted(([JobEvent(offset=3, lines=("a",)), JobEvent(offset=3, status=DONE)], DONE))
    status = Wait().follow(
        backend,  # type: ignore[arg-type]
        "j",
        lines=lambda *_: None,
        progress=lambda _: None,
        patience=patience,
    )
    assert status == DONE


def test_the_deadline_is_told_apart_from_the_patience() -> None:
    backend = Scripted(([JobEvent(offset=0, status=RUNNING)], RUNNING))
    with pytest.raises(Overdue):
        Wait().follow(
            backend,  # type: ignore[arg-type]
            "j",
            lines=lambda *_: None,
            progress=lambda _: None,
            patience=InlinePatience(seconds=3600, deadline=time.time() + 0.05),
        )
