"""Fetches objects, several at once: by tasks of one loop where the source's library has one, else by threads.

Tasks cost half of the CPU of threads, which matters where objects are small. Both wait for a source that is away.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fsspec.asyn import sync

from muster_ingest.errors import IngestError, SourceAway
from muster_ingest.places import Place

Row = tuple[str, str, int, str]
"""Path, key, size and identity of an object."""
Done = Callable[[Path, Row], None]
"""Takes the file of an object that was fetched."""
FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
_TELL_SECONDS = 60.0

T = TypeVar("T")


class Asked(Protocol):
    """What is asked: it says what its errors mean.

    :ivar again: what the next run does, for the message that the source is away.
    """

    source: str
    again: str

    def denied(self, error: BaseException) -> bool:
        """Whether an error says that the credentials, or the certificates, do not do."""

    def passing(self, error: BaseException) -> bool:
        """Whether the same may work a little later."""

    def refused(self, error: BaseException) -> IngestError:
        """Say so, and name the connection."""

    def said(self, error: BaseException) -> str:
        """Return what an error says, on one line, without what the connection hides."""


class Patience:
    """How long a source may be away, before that ends the ingest; each answer starts it anew, be it that something is not there."""

    def __init__(self, place: Asked, seconds: float) -> None:
        self._place, self._seconds = place, seconds
        self._stop = threading.Event()
        self._since: float | None = None
        self._told: float | None = None

    def stop(self) -> None:
        """Wait no longer: the ingest ends."""
        self._stop.set()

    def pause(self, seconds: float) -> None:
        """Wait, unless the ingest ends before."""
        self._stop.wait(seconds)

    def ask(self, what: str, question: Callable[[], T]) -> T:
        """Ask until there is an answer. :raises IngestError: the source refuses. :raises SourceAway: it does not answer."""
        pause = FIRST_PAUSE
        while True:
            try:
                found = question()
            except Exception as error:  # whatever the libraries of ten kinds of source raise
                self._judge(what, error)
                self._stop.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                self._since = None
                return found

    async def ask_beside(self, what: str, question: Callable[[], Awaitable[T]]) -> T:
        """Do as :meth:`ask`, in a task."""
        pause = FIRST_PAUSE
        while True:
            try:
                found = await question()
            except Exception as error:  # _judge raises all that will not work a little later
                self._judge(what, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                self._since = None
                return found

    def _judge(self, what: str, error: Exception) -> None:
        """Return if the same may work a little later, else raise what the error means."""
        if isinstance(error, IngestError):
            raise error
        if self._place.denied(error):
            raise self._place.refused(error) from None
        if not self._place.passing(error):
            self._since = None  # that is an answer, too
            raise error
        now = time.monotonic()
        if self._since is None:
            self._since = now
        why = f"({type(error).__name__} at {what:.200}: {self._place.said(error):.300})"
        if now - self._since > self._seconds or self._stop.is_set():
            raise SourceAway(
                f"{self._place.source} does not answer, for {now - self._since:.0f} s {why}: run again, {self._place.again}"
            ) from None
        if self._told is None or now - self._told >= _TELL_SECONDS:
            self._told = now
            left = self._seconds - (now - self._since)
            print(
                f"{self._place.source} does not answer {why}: asking again for up to {left:.0f} s", flush=True
            )


def fetch(
    place: Place, patience: Patience, rows: Iterator[Row], done: Done, *, streams: int, parts: Path
) -> None:
    """Fetch all objects, `streams` at once, each into a file in `parts` of which `done` is told.

    One that is gone meanwhile is passed over: the next list says so.

    :param rows: taken as they are needed, by one thread at a time.
    """
    if place.fs.async_impl:
        sync(place.fs.loop, _by_tasks, place, patience, rows, done, streams, parts)
    else:
        _Threads(place, patience, done, parts).run(rows, streams)


async def _by_tasks(
    place: Place, patience: Patience, rows: Iterator[Row], done: Done, streams: int, parts: Path
) -> None:
    async def work(part: Path) -> None:
        for row in rows:
            _, key, size, _ = row
            try:
                await patience.ask_beside(
                    key, lambda key=key, size=size: place.fetch_beside(key, str(part), size)
                )
            except FileNotFoundError:
                continue
            done(part, row)

    tasks = [asyncio.ensure_future(work(parts / str(number))) for number in range(streams)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Threads:
    def __init__(self, place: Place, patience: Patience, done: Done, parts: Path) -> None:
        self._place, self._patience, self._done, self._parts = place, patience, done, parts
        self._errors: list[BaseException] = []
        self._over = False

    def run(self, rows: Iterator[Row], streams: int) -> None:
        """Fetch all. :raises IngestError: the source refuses. :raises SourceAway: it does not answer."""
        self._place.let_go(self._place.fs)
        todo: queue.Queue[Row | None] = queue.Queue(maxsize=4 * streams)
        threads = [
            threading.Thread(target=self._work, args=(self._parts / str(number), todo), daemon=True)
            for number in range(streams)
        ]
        for thread in threads:
            thread.start()
        for row in rows:
            if self._errors:
                break
            todo.put(row)
        for _ in threads:
            todo.put(None)
        for thread in threads:
            thread.join()
        if self._errors:
            raise next((each for each in self._errors if isinstance(each, IngestError)), self._errors[0])

    def _work(self, part: Path, todo: queue.Queue[Row | None]) -> None:
        try:
            fs = self._patience.ask("its start", self._open)
            while fs is not None and (row := todo.get()) is not None:
                if not self._errors:
                    self._fetch(fs, part, row)
            self._over = True
            if fs is not None:
                self._place.let_go(fs)
        except BaseException as error:  # the thread that waits raises it
            self._errors.append(error)
            self._patience.stop()
            while todo.get() is not None:  # what fills it has to see the error
                pass

    def _open(self) -> Any:
        """Return a file system for one thread; None once the others have taken all, so that none waits for a server that lets few in."""
        if self._over:
            return None
        return self._place.open() if self._place.alone else self._place.fs

    def _fetch(self, fs: Any, part: Path, row: Row) -> None:
        try:
            self._patience.ask(row[1], lambda: self._place.fetch(fs, row[1], str(part)))
        except FileNotFoundError:
            return
        self._done(part, row)
