"""The workers of one revision: which requests each computes together, and what happens when one of them ends.

A worker computes one frame after the other, so its end costs the requests of the frame that it computed, and no others:
each gets one error that names the cause. What it had not begun goes to the next worker. It is started again, at once the
first time, after growing pauses when it ends again and again; meanwhile requests wait for another worker, or for this one. Where all workers are down for longer, they are refused.

A request that is answered in parts holds its worker until the last part, or until no more are wanted. A part is computed when
it is asked for, so a client that reads slowly fills no memory; it holds the worker for `request_seconds` at most.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from muster_serving.errors import ModelError, PredictionError, RequestError, ServingError
from muster_serving.process.frames import ANSWER, MORE, PART, SPENT, STOP, WRONG, Part
from muster_serving.process.processes import WorkerProcess, begin
from muster_serving.process.start import Setup

FIRST_PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 30.0  # one that lived for so long may end once more without a pause
_REFUSE_SECONDS = 1.0  # a pause of so long is not waited for
_AHEAD = 8  # frames that a worker has at most, of which it computes the first: it need not wake up for each
_SOON_SECONDS = (
    0.01  # frames are sent ahead where the last one took less, so that a slow model's wait in the front
)

Told = Callable[[str, bool], None]


class _PoolRequest:
    """One request that waits, or is computed.

    :ivar answer: its outputs' bytes, or the next part of them: empty after the last.
    :ivar paused: the worker's place whose next part is not asked for yet; :ivar lost: why there will be none.
    :ivar pauses: the seconds of the pauses that are over; :ivar paused_at: when the last one began.
    """

    __slots__ = ("answer", "data", "lost", "paused", "paused_at", "pauses", "rows", "since")

    def __init__(self, data: bytes, rows: int, loop: asyncio.AbstractEventLoop) -> None:
        self.data = data
        self.rows = rows
        self.answer: asyncio.Future[bytes | memoryview] = loop.create_future()
        self.since = loop.time()
        self.paused: _WorkerPlace | None = None
        self.paused_at = self.pauses = 0.0
        self.lost: ServingError | None = None

    def take(self, kind: int, data: bytes | memoryview) -> None:
        """End with what its worker says."""
        if kind != ANSWER:
            self.fail(str(data, "utf-8", "replace"), kind=RequestError if kind == WRONG else PredictionError)
        elif not self.answer.done():
            self.answer.set_result(data)

    def fail(self, why: str, *, kind: type[ServingError] = PredictionError) -> None:
        self.lost = kind(why)
        if not self.answer.done():
            self.answer.set_exception(self.lost)


class _WorkerPlace:
    """A worker's place: the process in it, the frames that it has, and how long the next process waits.

    :ivar held: each frame's requests; the first frame is computed since `began`, its next part since `sent`; the frame before it
        took `took` seconds.
    :ivar given: the frames that the process was sent, and :ivar answered: the requests that it answered.
    :ivar spent: whether the process is ended to be replaced.
    """

    def __init__(self) -> None:
        self.process: WorkerProcess | None = None
        self.held: deque[list[_PoolRequest]] = deque()
        self.began = 0.0
        self.sent = 0.0
        self.took = _SOON_SECONDS
        self.up = 0.0
        self.pause = 0.0
        self.given = self.answered = 0
        self.spent = False


class WorkerPool:
    """Computes requests in worker processes.

    :param most_rows: the most rows that the signature allows in one call.
    :param told: is called with what is wrong now, empty where nothing is, and whether a worker has just ended.
    """

    def __init__(self, folder: Path, setup: Setup, *, revision: str, most_rows: int, told: Told) -> None:
        self._folder = folder
        self._setup = setup
        self._revision = revision
        self._most = min(setup.most, most_rows)
        self._wait = setup.wait_ms / 1000
        self._told = told
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_PoolRequest] = deque()
        self._queued_rows = 0
        self._places = [_WorkerPlace() for _ in range(setup.workers)]
        self._idle: list[_WorkerPlace] = []
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._refusing = ""
        self._closing = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Return when all workers have loaded the version. :raises ModelError: one cannot."""
        starting = [asyncio.ensure_future(self._fill(place)) for place in self._places]
        try:
            await asyncio.gather(*starting)
        except BaseException:  # cancelled, too: no worker may be left
            self._closing = True
            for each in starting:
                each.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
            self.close()
            raise

    async def ask(self, data: bytes, rows: int) -> bytes | memoryview:
        """Have one request computed, and return its outputs' bytes.

        :raises PredictionError: the model failed, its process ended, or it took too long.
        :raises RequestError: the model needs a text's place in its categories, and it has none.
        """
        asked = self._begin(data, rows)
        try:
            return await asked.answer
        except asyncio.CancelledError:
            self._leave(asked)
            raise

    async def stream(self, data: bytes, rows: int) -> AsyncGenerator[bytes | memoryview, None]:
        """Have one request computed part by part, each when it is asked for; close this where no more are wanted.

        :raises PredictionError: as :meth:`ask`; or all parts together took too long.
        :raises RequestError: 408, the next part was not asked for in time.
        """
        asked = self._begin(data, rows)
        try:
            while part := await asked.answer:
                yield part
                self._go_on(asked)
        finally:
            self._leave(asked)

    def _begin(self, data: bytes, rows: int) -> _PoolRequest:
        """Take a request. :raises PredictionError: all workers are down."""
        if self._refusing:
            raise PredictionError(self._refusing)
        asked = _PoolRequest(data, rows, self._loop)
        self._queue.append(asked)
        self._queued_rows += rows
        self._dispatch()
        if self._watch is None:
            self._look_again()
        return asked

    def _go_on(self, asked: _PoolRequest) -> None:
        """Ask for the next part. :raises ServingError: there will be none."""
        if asked.lost:
            raise asked.lost
        place = asked.paused
        assert place is not None
        if late := self._late(place, asked):
            raise late
        asked.answer = self._loop.create_future()
        self._tell(place, MORE)

    def _late(self, place: _WorkerPlace, asked: _PoolRequest) -> ServingError | None:
        """Say that a request that is paused took too long: the client's fault where the pauses are more than half of it."""
        seconds, now = self._setup.request_seconds, self._loop.time()
        whole, pauses = now - place.began, asked.pauses + now - asked.paused_at
        if whole <= seconds:
            return None
        if pauses > whole - pauses:
            late = f"the answer was not taken within {seconds:g} s (request_timeout): read it faster"
            return RequestError(late, status=408)
        return PredictionError(f"the answer was not whole within {seconds:g} s (request_timeout)")

    def _leave(self, asked: _PoolRequest) -> None:
        """Compute nothing more for a request whose client is gone, or has enough."""
        if asked.paused:
            self._tell(asked.paused, STOP)
        elif asked in self._queue:
            self._queue.remove(asked)
            self._queued_rows -= asked.rows
            if self._closing:
                self._end_idle()

    def _tell(self, place: _WorkerPlace, what: int) -> None:
        """Have a worker that waits between two parts compute the next one, or none."""
        (asked,) = place.held[0]
        asked.paused = None
        place.sent = self._loop.time()
        asked.pauses += place.sent - asked.paused_at
        assert place.process is not None
        place.process.send([(what, b"")], ahead=False)

    def close(self) -> None:
        """Let the workers finish what they compute, and end them."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        self._end_idle()

    def _end_idle(self) -> None:
        """End the workers that compute nothing, once nothing waits for one."""
        if not any(place.process for place in self._places):
            self._refuse("its revision is unloaded")
        if not self._queue:
            for place in self._places:
                if place.process and not place.held:
                    place.process.kill("its revision is unloaded")

    def _dispatch(self) -> None:
        """Give the requests that wait to the workers that are free."""
        while self._queue and (place := self._free()):
            if self._most and self._queued_rows < self._most and any(each.held for each in self._places):
                due = self._queue[0].since + self._wait
                if self._loop.time() < due:
                    if self._timer is None:
                        self._timer = self._loop.call_at(due, self._due)
                    return
            if not place.held:
                self._idle.pop()
                place.began = place.sent = self._loop.time()
            held = self._take()
            assert place.process is not None
            place.process.send([(asked.rows, asked.data) for asked in held], ahead=bool(place.held))
            place.given += 1
            place.held.append(held)

    def _free(self) -> _WorkerPlace | None:
        """Return the worker that gets the next frame: one that is idle, or the only one where it will be soon.

        Of several workers none gets frames ahead: another one may be free first. Nor does one that answers in parts.
        """
        while self._idle:
            place = self._idle[-1]
            if place.process and not place.process.gone:
                return place
            self._idle.pop()  # it has just ended: `_ended` is about to be called
        if self._most or self._setup.stream or len(self._places) > 1:
            return None
        (place,) = self._places
        if place.process is None or place.process.gone:
            return None
        return place if place.took < _SOON_SECONDS and len(place.held) < _AHEAD else None

    def _due(self) -> None:
        self._timer = None
        self._dispatch()

    def _take(self) -> list[_PoolRequest]:
        """Take the first request, and those after it that fit into one batch."""
        taken = [self._queue.popleft()]
        rows = taken[0].rows
        while self._queue and rows + self._queue[0].rows <= self._most:
            taken.append(self._queue.popleft())
            rows += taken[-1].rows
        self._queued_rows -= rows
        return taken

    def _answered(self, place: _WorkerPlace, parts: list[Part]) -> None:
        if parts[0][0] == PART:
            (asked,) = place.held[0]
            asked.paused, asked.paused_at = place, self._loop.time()
            if asked.answer.done():  # its client is gone
                self._tell(place, STOP)
            else:
                asked.answer.set_result(parts[0][1])
            return
        if not place.held:
            return  # it was put back
        held, now = place.held.popleft(), self._loop.time()
        place.took = now - place.began
        place.began = place.sent = now
        place.answered += len(held)
        most = self._setup.max_requests
        if any(kind == SPENT for kind, _ in parts):
            self._replace(place, "needed all of its memory")
        elif most and place.answered >= most and all(one.process for one in self._places):
            self._replace(place, f"answered {place.answered:,} requests (max_requests)")
        elif not place.held:
            self._idle.append(place)
        if self._queue:
            self._dispatch()
        if self._closing:
            self._end_idle()
        for asked, part in zip(held, parts, strict=True):
            asked.take(*part)

    def _replace(self, place: _WorkerPlace, why: str) -> None:
        """End a worker that has kept memory, or may have: the next one has all of it. That is no crash."""
        assert place.process is not None
        place.spent = True
        while place.held:
            self._put_back(place.held.pop())
        place.process.kill(why)

    async def _fill(self, place: _WorkerPlace) -> None:
        """Put a worker into its place. :raises ModelError: it cannot load the version."""
        process = await begin(self._folder, self._setup, revision=self._revision)
        await process.load(self._setup.load_seconds)
        process.answered = lambda parts: self._answered(place, parts)
        process.ended = lambda how: self._ended(place, how, begun=process.begun)
        place.process, place.up = process, self._loop.time()
        place.given = place.answered = 0
        self._refusing = ""
        self._idle.append(place)
        self._dispatch()

    def _ended(self, place: _WorkerPlace, how: str, *, begun: int | None) -> None:
        """Tell those whose requests it computed, and start another: what it had not begun is for the next.

        What it had begun fails, and is not tried again: a request that ends each worker would end them all.

        :param begun: how many frames it had begun; None where that is unknown: then one.
        """
        place.process, place.took = None, _SOON_SECONDS
        if place in self._idle:
            self._idle.remove(place)
        done = place.given - len(place.held)
        computed = place.held.popleft() if place.held and (begun is None or begun > done) else []
        for asked in computed:
            asked.paused = None
            asked.fail(f"the model's process {how}")
        while place.held:
            self._put_back(place.held.pop())
        if self._closing:
            self._end_idle()
            return
        steady = place.spent or self._loop.time() - place.up > STEADY_SECONDS
        place.pause = 0.0 if steady else place.pause
        self._told(f"a worker {how}; {self._again(place)}", not place.spent)  # which is no crash
        place.spent = False
        task = self._loop.create_task(self._bring_back(place))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _put_back(self, frame: list[_PoolRequest]) -> None:
        """Have requests that were sent ahead wait again, before all others."""
        waiting = [asked for asked in frame if not asked.answer.done()]
        self._queue.extendleft(reversed(waiting))
        self._queued_rows += sum(asked.rows for asked in waiting)

    async def _bring_back(self, place: _WorkerPlace) -> None:
        """Start workers for a place until one is up."""
        while True:
            pause = place.pause
            place.pause = min(max(2 * pause, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
            if pause >= _REFUSE_SECONDS and all(one.process is None for one in self._places):
                self._refuse(f"the model's process ends again and again: it is started again in {pause:g} s")
            await asyncio.sleep(pause)
            try:
                await self._fill(place)
            except ModelError as error:
                self._told(f"a worker cannot be started: {error}; {self._again(place)}", False)
            else:
                if all(one.process for one in self._places):
                    self._told("", False)
                return

    def _again(self, place: _WorkerPlace) -> str:
        return f"it is started again in {place.pause:g} s" if place.pause else "it is started again"

    def _refuse(self, why: str) -> None:
        self._refusing = why
        for asked in self._queue:
            asked.fail(why)
        self._queue.clear()
        self._queued_rows = 0

    def _look_again(self) -> None:
        period = min(max(self._setup.request_seconds / 20, 0.02), 0.5)
        self._watch = self._loop.call_later(period, self._look)

    def _look(self) -> None:
        """End what takes too long, as long as anything is asked."""
        self._watch = None
        seconds, now = self._setup.request_seconds, self._loop.time()
        while self._queue and now - self._queue[0].since > seconds:
            asked = self._queue.popleft()
            self._queued_rows -= asked.rows
            why = (
                "each answers one at a time" if self._setup.stream else "the model is too slow for its users"
            )
            asked.fail(f"no worker was free within {seconds:g} s (request_timeout): {why}")
        busy = [place for place in self._places if place.held]
        for place in busy:
            if (asked := place.held[0][0]).paused:
                if late := self._late(place, asked):
                    asked.lost = late
                    self._tell(place, STOP)
            elif now - place.sent > seconds and place.process:
                place.process.kill(f"gave no answer within {seconds:g} s (request_timeout), and was ended")
        if busy or self._queue:
            self._look_again()
