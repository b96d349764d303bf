"""Runs a replica's ranks side by side: one loop, no threads, until every one of them has ended.

All end together: when one fails the others are told to stop, given a short while, and killed. On
SIGTERM they have the spec's grace to save their state. Processes that they leave behind are killed.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

from muster.core.forking import Forked, spawn
from muster.core.linux import adopt_orphans
from muster.core.progress import Pattern
from muster.worker.lines import LineBuffer
from muster.worker.processes import children, end_descendants, has_children
from muster.worker.watches import Silence, Watch

TAIL_LINES = 400
_FAULT_GRACE_SECONDS = 5.0
_FOLLOWER_SECONDS = 3.0  # for the culprit to end, after a rank that only lost its peer
_ABORT_SECONDS = 5.0
_LEFTOVER_SECONDS = 0.5
# Spark's JVM ends by itself, half a second after its driver, and talks to the master until then.
_DRIVER_SECONDS = 3.0
_LONGEST_SLEEP_SECONDS = 5.0
BAR_SECONDS = 10.0
_OVER_SECONDS = 1.0  # between two looks whether the ranks are still needed
# Ends a process aside whose ranks have ended. No program ends so by itself, and one that was being killed keeps its own signal.
_DONE = signal.SIGRTMAX
_DONE_SECONDS = 10.0  # for its status to be seen on a busy machine, and for what it tells its workers
_READ_BYTES = 1 << 20
TRACE_START = "Traceback (most recent call last)"


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """One process to start.

    :param arguments: the program and its words, or None for an entrypoint: it runs in a fork of the
        worker, which has loaded all it needs (an interpreter's start costs 20 ms and 8 MB).
    :param outcome: the file in which an entrypoint's rank reports its end.
    :param error_file: the file for torch's ``@record``.
    :param code: the folder that paths are shown relative to.
    """

    rank: int
    arguments: Sequence[str] | None
    environment: dict[str, str] = field(repr=False)  # it holds secrets
    folder: str
    outcome: str
    error_file: str
    code: str | None = None


class InRank(BaseException):
    """Raised in the process that is to run a rank's entrypoint; `plan` is that rank's."""

    def __init__(self, plan: RankPlan) -> None:
        super().__init__(plan)
        self.plan = plan


@dataclass(kw_only=True)
class Rank:
    """One rank while it runs and when it has ended.

    :param status: exit code, or minus the signal's number, once it has ended; `ended` is the time.
    :param traced: the time at which the last traceback began in its output.
    :param stopped: the time at which it was told to stop.
    :param bar_at: the time from which on the state of a progress bar is a line.
    """

    plan: RankPlan
    pid: int
    output: int
    lines: LineBuffer = field(default_factory=LineBuffer)
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    status: int | None = None
    ended: float = 0.0
    traced: float | None = None
    stopped: float | None = None
    bar_at: float = 0.0

    @property
    def number(self) -> int:
        """Its rank in the gang."""
        return self.plan.rank


class Ranks:
    """The ranks of one replica.

    :param grace_seconds: between SIGTERM to the worker and the end of everything.
    :param silence: detects a hang of the whole gang.
    :param failed: tells whether a rank that has ended failed; one that ends before its time may do so with status 0.
    :param follows: tells whether a rank failed only because it lost a peer.
    :param over: tells whether these ranks are not needed any more: they are told to stop then.
    :param watches: what looks now and then while they run.
    :param tidy: whether they should leave no process behind; an engine's head and workers do.
    :param pattern: finds numbers in lines of rank 0, which are told after them.
    :param serves: tells whether the processes aside still answer, where the ranks cannot go on without them: one that fails ends them.
    """

    def __init__(
        self,
        *,
        grace_seconds: float,
        silence: Silence,
        failed: Callable[[Rank], bool] = lambda rank: bool(rank.status),
        follows: Callable[[Rank], bool] = lambda _: False,
        over: Callable[[], bool] | None = None,
        watches: Sequence[Watch] = (),
        tidy: bool = True,
        serves: Callable[[], bool] | None = None,
        pattern: Pattern | None = None,
    ) -> None:
        self.ranks: list[Rank] = []
        self.unserved: tuple[float, int] | None = None
        """A time at which a process aside that has failed still ran, the last that is known, and its status."""
        self.interrupted_at: float | None = None
        self.hung = False
        self._grace = grace_seconds
        self._silence = silence
        self._failed = failed
        self._follows = follows
        self._over, self._over_at = over, 0.0
        self._watches = watches
        self._tidy = tidy
        self._serves = serves
        self._pattern = pattern
        self._aside: set[int] = set()
        self._looked = self._began = time.time()
        self._stop_at: float | None = None
        self._kill_at: float | None = None
        self._selector: selectors.BaseSelector

    def run(self, plans: Sequence[RankPlan], *, aside: Collection[int] = ()) -> list[Rank]:
        """Start every rank, pass their lines on, and return when all have ended and nothing is left.

        :param aside: processes that serve the ranks and end with them.
        :raises InRank: in the fork that is to run an entrypoint's rank.
        """
        adopt_orphans()
        self._began = time.time()
        self._aside = set(aside)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._interrupt)
        for plan in plans:
            self._start(plan)
        self._listen()
        while any(rank.status is None for rank in self.ranks):
            self._turn()
        if self._serves is not None and self._aside:
            seconds = _DRIVER_SECONDS if self._kill_at is None else _LEFTOVER_SECONDS
            self._outlast(lambda: len(children()) > len(self._aside), seconds=seconds)
            if any(rank.status for rank in self.ranks) and not self._serves():
                # It is ending: its status tells.
                self._outlast(lambda: bool(self._aside), seconds=_FOLLOWER_SECONDS)
        for pid in self._aside:  # those that have not been reaped: no other process has their numbers
            os.kill(pid, _DONE)
        if self._serves is not None:
            self._outlast(lambda: bool(self._aside), seconds=_DONE_SECONDS)
        self._outlast(has_children, seconds=_LEFTOVER_SECONDS)
        left = end_descendants()
        for rank in self.ranks:
            self._drain(rank)
        if left and self._kill_at is None and self._tidy:
            say(f"killed {left} process{'es' if left > 1 else ''} that the ranks left behind")
        return self.ranks

    def _outlast(self, left: Callable[[], bool], *, seconds: float) -> None:
        """Let processes that the ranks left behind end by themselves: trackers free shared memory now."""
        limit = time.time() + seconds
        while left() and time.time() < limit:
            self._wait(_LEFTOVER_SECONDS / 20)

    def _interrupt(self, *_: object) -> None:
        self.interrupted_at = self.interrupted_at or time.time()

    def _start(self, plan: RankPlan) -> None:
        try:
            pid, output = spawn(plan.arguments, environment=plan.environment, folder=plan.folder)
        except Forked:
            for rank in self.ranks:
                os.close(rank.output)
            raise InRank(plan) from None
        except OSError:
            end_descendants()
            raise
        self.ranks.append(Rank(plan=plan, pid=pid, output=output))

    def _listen(self) -> None:
        """Listen for output and signals; done after the forks, which would inherit these descriptors."""
        read, write = os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector = selectors.DefaultSelector()
        self._selector.register(read, selectors.EVENT_READ, lambda: os.read(read, 4096))
        for rank in self.ranks:
            self._selector.register(rank.output, selectors.EVENT_READ, partial(self._read, rank))
        self._reap()  # ranks that ended before the handler of SIGCHLD was set

    def _turn(self) -> None:
        self._wait(self._patience())
        for watch in self._watches:
            watch.look()
        now = time.time()
        self._mind_hang(now)
        if self._over is not None and self._kill_at is None and now >= self._over_at:
            self._over_at = now + _OVER_SECONDS
            if self._over():
                self._stop(now, patience=self._grace)
        if self.interrupted_at is not None and self._kill_at is None:
            # the backend kills the worker when the grace is over, so the worker ends a little earlier
            self._stop(now, patience=max(self._grace * 0.8, self._grace - 3.0))
        if self._stop_at is not None and now >= self._stop_at:
            self._stop_at = None
            self._stop(now, patience=min(self._grace, _FAULT_GRACE_SECONDS))
        if self._kill_at is not None and now >= self._kill_at:
            self._signal(signal.SIGKILL)

    def _wait(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            key.data()
        self._reap()

    def _patience(self) -> float:
        now = time.time()
        due = [at - now for at in (self._stop_at, self._kill_at) if at is not None]
        if not self.hung:
            due.append(self._silence.left(now))
        if self._over is not None and self._kill_at is None:
            due.append(self._over_at - now)
        due += [watch.left() for watch in self._watches]
        return max(0.05, min([_LONGEST_SLEEP_SECONDS, *due]))

    def _reap(self) -> None:
        begun = time.time()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                self._looked = begun
                return
            for rank in self.ranks:
                if rank.pid == pid and rank.status is None:
                    self._end(rank, os.waitstatus_to_exitcode(status))
            if pid in self._aside:
                self._aside.remove(pid)
                self._end_aside(os.waitstatus_to_exitcode(status))

    def _end(self, rank: Rank, status: int) -> None:
        self._drain(rank, hold=True)
        rank.status, rank.ended = status, time.time()
        if self._failed(rank) and self._kill_at is None:
            wait = _FOLLOWER_SECONDS if self._follows(rank) else 0.0
            due = time.time() + wait
            self._stop_at = due if self._stop_at is None else min(self._stop_at, due)

    def _end_aside(self, status: int) -> None:
        """Have the ranks stop, where they cannot go on; one that is about to end by itself still may.

        A rank may end of this before we see it, and before the kernel is done with a process that is killed. So an end that we did not ask
        for counts after theirs, too, and then comes before all that they said.
        """
        asked = status in (0, -_DONE) or self.interrupted_at is not None
        told = any(rank.stopped is not None for rank in self.ranks)
        if self._serves is not None and not asked and not told:
            running = any(rank.status is None for rank in self.ranks)
            # A driver may complain of a head that is killed some time before the kernel is done with it.
            seen = self._looked - _FOLLOWER_SECONDS if running else self._began
            self.unserved = self.unserved or (seen, status)
            due = time.time() + _FOLLOWER_SECONDS
            self._stop_at = due if self._stop_at is None else min(self._stop_at, due)

    def _stop(self, now: float, *, patience: float) -> None:
        if self._kill_at is not None:
            return
        self._kill_at = now + patience
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        for rank in self.ranks:
            if rank.status is None:
                rank.stopped = rank.stopped or time.time()
                os.kill(rank.pid, number)

    def _mind_hang(self, now: float) -> None:
        if self.hung or self._kill_at is not None:
            return
        told = self.interrupted_at is not None and self._silence.is_found()  # a peer found one
        if not told and not self._silence.is_hang(now):
            return
        self._silence.find()
        self.hung = True
        say(
            f"no line and no progress for {self._silence.seconds:g} s: this is a hang; "
            "every rank shows its stack and ends"
        )
        self._kill_at = now + _ABORT_SECONDS
        self._signal(signal.SIGABRT)  # with PYTHONFAULTHANDLER it prints the stack of every thread

    def _read(self, rank: Rank) -> bool:
        try:
            data = os.read(rank.output, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(rank.output)
            os.close(rank.output)
            rank.output = -1
            self._pass_on(rank, rank.lines.close())
            return False
        self._silence.broken()
        lines = rank.lines.feed(data)
        if not lines and time.time() >= rank.bar_at:
            lines = rank.lines.bar()
        if lines:
            rank.bar_at = time.time() + BAR_SECONDS
        self._pass_on(rank, lines)
        return True

    def _drain(self, rank: Rank, *, hold: bool = False) -> None:
        while rank.output >= 0 and self._read(rank):
            pass
        if not hold:
            self._pass_on(rank, rank.lines.close())

    def _pass_on(self, rank: Rank, lines: list[str]) -> None:
        if not lines:
            return
        torchs_own = f"[rank{rank.number}]: "  # torch's excepthook tags a traceback's lines; muster tags all
        lines = [line.removeprefix(torchs_own) for line in lines]
        rank.tail.extend(lines)
        if any(line.startswith(TRACE_START) for line in lines):
            rank.traced = time.time()
        if self._pattern is not None and rank.number == 0:
            lines = [each for line in lines for each in (line, *filter(None, [self._pattern.told(line)]))]
        say("\n".join(f"[rank {rank.number}] {line}" for line in lines))


def say(text: str) -> None:
    """Write whole lines to the log at once."""
    data = memoryview((text + "\n").encode("utf-8", "replace"))
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:  # without the reader of the log, the supervisor, there is no reason to run
        os._exit(1)
