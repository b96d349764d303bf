"""A task's log: its job's lines as they come, at a rate that neither Airflow nor a reader drowns in; and failures that repeat."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from logging import Logger
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError

from muster.airflow.upstream import internals
from muster.core.errors import MusterError
from muster.core.status import JobState, JobStatus
from muster.core.verdict import VERDICT_LINES, full_log

LINES_PER_SECOND = 20.0
_BYTES_PER_SECOND = 4096.0
BURST_LINES = 400
BURST_BYTES = 256 * 1024
KEPT_LINES = 100
LINE_LENGTH = 2000
BURST_REASONS = 5
REASON_SECONDS = 30.0
_MARK_EVERY_SECONDS = 1.0

# A rank's line begins with this, whatever the rank wrote; all else in a job's log is said by muster.
_OF_A_RANK = "[rank "
_LENGTH = re.compile(r"(?<=, place )(\d+) of \d+")  # of a queue: who comes behind a job is no news to it
# Airflow's page takes either of these, anywhere in a line, for the begin or end of a folded group.
_FOLDING = re.compile(r"::(?=(?:end)?group::)")


class TaskLog:
    """Passes a job's lines on, in their order, and says how many it left out.

    Lines wait while they come faster than the rate, which is that of a token bucket in lines and
    bytes; of those that wait only the newest are kept. So an author who prints a thousand lines a
    second sees stretches of them, and always the last ones before the end, which explain it. What
    muster itself says is never left out, but for the verdict in the job's last lines: the task that waits for
    the job raises it, and so it is said already.

    Call it at least once a second, with nothing where nothing came, so that what waits gets its turn.

    :param write: takes one line.
    :param clock: seconds, from any start.
    """

    def __init__(
        self, write: Callable[[str], None], *, job_id: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._job_id = job_id
        self._clock = clock
        self._waiting: deque[str] = deque()
        self._left_out = 0
        self._lines, self._bytes = float(BURST_LINES), float(BURST_BYTES)
        self._at = clock()

    def __call__(self, lines: Iterable[str] = ()) -> None:
        """Take in what came, and write what is due."""
        self._refill()
        for line in self.without_verdict(list(lines)):
            self._waiting.append(fit(line))
            self._pass_on()
            while len(self._waiting) > KEPT_LINES:
                self._leave_out(self._waiting.popleft())
        self._pass_on()

    def close(self) -> int:
        """Write what waits: the last lines of a job that has ended. Returns how many."""
        waited = len(self._waiting)
        while self._waiting:
            self._put(self._waiting.popleft())
        self._report_left_out()
        return waited

    def without_verdict(self, lines: Sequence[str]) -> Sequence[str]:
        """The lines but for the verdict, which the task that waits for the job raises."""
        last = full_log(self._job_id)  # no rank's line reads so: those begin with their rank
        return lines[: max(0, lines.index(last) + 1 - VERDICT_LINES)] if last in lines else lines

    def _refill(self) -> None:
        now = self._clock()
        passed, self._at = max(0.0, now - self._at), now
        self._lines = min(BURST_LINES, self._lines + passed * LINES_PER_SECOND)
        self._bytes = min(BURST_BYTES, self._bytes + passed * _BYTES_PER_SECOND)

    def _pass_on(self) -> None:
        while self._waiting and self._may_go(self._waiting[0]):
            self._put(self._waiting.popleft())

    def _may_go(self, line: str) -> bool:
        if not line.startswith(_OF_A_RANK):
            return True
        if self._left_out:  # stretches rather than single lines: once some were left out, save up first
            return self._lines >= BURST_LINES / 2 and self._bytes >= BURST_BYTES / 2
        return self._lines >= 1 and self._bytes >= len(line.encode())

    def _leave_out(self, line: str) -> None:
        if line.startswith(_OF_A_RANK):
            self._left_out += 1
        else:
            self._put(line)

    def _put(self, line: str) -> None:
        self._report_left_out()
        self._write(line)
        if line.startswith(_OF_A_RANK):
            self._lines -= 1
            self._bytes -= len(line.encode())

    def _report_left_out(self) -> None:
        if self._left_out:
            left_out, self._left_out = self._left_out, 0
            s = "s" * (left_out > 1)
            self._write(f"… {left_out:,} line{s} left out; the full log: muster jobs logs {self._job_id}")


class StateLog:
    """Says each new state of a job that goes on, once, and each new reason for it.

    Why a job waits for room may change with every other that comes or goes, for days: after the first few
    times a new reason of that kind is said now and then only. Call it at each look.

    :param tell: hears of the same, too.
    :param clock: seconds, from any start.
    """

    def __init__(
        self,
        log: Any,
        *,
        tell: Callable[[JobStatus], None] = lambda _status: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._tell = tell
        self._clock = clock
        self._said: tuple[JobState, str] | None = None
        self._reasons, self._at = float(BURST_REASONS), clock()

    def __call__(self, status: JobStatus) -> None:
        """Say it if it is new."""
        new = (status.state, _LENGTH.sub(r"\1", status.reason))
        if new == self._said or (self._still_waits(status.state) and not self._may_go()):
            return
        if not status.state.ended:
            self._log.info("%s%s", status.state.value, f": {status.reason}" if status.reason else "")
            self._tell(status)
        self._said = new

    def _still_waits(self, state: JobState) -> bool:
        return state is JobState.QUEUED and self._said is not None and self._said[0] is state

    def _may_go(self) -> bool:
        """Whether there is one of the reasons left that may be said; it is taken."""
        now = self._clock()
        self._reasons += max(0.0, now - self._at) / REASON_SECONDS
        self._reasons, self._at = min(BURST_REASONS, self._reasons), now
        if self._reasons < 1:
            return False
        self._reasons -= 1
        return True


class Shown:
    """How far ``muster run`` has shown a job's log, so that a run which goes on after a kill does not show all of it again.

    It is a mark in Airflow's ``task_state_store``, which outlives the process; a task under a scheduler needs none, since
    each of its tries has a log of its own, which is whole. It is behind by a second or two: what a kill kept from the screen is shown again rather than never.

    :param key: the attempt's. :param job_id: a mark of another job does not count. :ivar before: the offset that is marked.
    """

    def __init__(
        self, store: Any, key: str, job_id: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._key, self._job_id, self._clock = store, f"shown.{key}", job_id, clock
        job, _, offset = str(store.get(self._key) or "").partition(" ")
        self.before = self._next = int(offset) if job == job_id else 0
        self._due = clock() + _MARK_EVERY_SECONDS

    def note(self, offset: int) -> None:
        """Take in that the log up to here was shown. Call it about once a second, also where nothing came."""
        if self._clock() < self._due:
            return
        if self._next != self.before:
            # refused where the task was cleared: its next try has another job
            with suppress(AirflowRuntimeError):
                self._store.set(self._key, f"{self._job_id} {self._next}", retention=internals.NEVER_EXPIRE)
        self.before, self._next, self._due = self._next, offset, self._clock() + _MARK_EVERY_SECONDS


def fit(line: str) -> str:
    """Cut a line to what a page can show, and take from it what the page would obey."""
    line = _FOLDING.sub(": :", line)
    if len(line) <= LINE_LENGTH:
        return line
    return f"{line[:LINE_LENGTH]} … ({len(line) - LINE_LENGTH:,} characters more in the full log)"


_REPEAT_SECONDS = 60.0


class FailureLog:
    """Logs the failures of one repeated action.

    :param cannot: the message of a failure, with what is done about it; `again`: the message of the next success.
    """

    def __init__(self, log: Logger, *, cannot: str, again: str) -> None:
        self._log = log
        self._cannot = cannot
        self._again = again
        self._at: float | None = None

    def failed(self, error: Exception) -> None:
        """Log the failure, at most once a minute; a defect of muster's own with its traceback."""
        now = time.monotonic()
        if self._at is None or now - self._at >= _REPEAT_SECONDS:
            self._at = now
            outside = isinstance(error, (MusterError, OSError))
            self._log.warning("%s: %s", self._cannot, error, exc_info=not outside)

    def over(self) -> None:
        """Log that it works again, if it had failed."""
        if self._at is not None:
            self._log.info("%s", self._again)
            self._at = None
