"""The searches of a folder store: what each looks for, and the events that have happened in it.

::

    STORE/searches/<search_id>/search.json     a :class:`muster.core.search.Search`
    STORE/searches/<search_id>/events          its events, one a line; only ever appended to
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from muster.core import wire
from muster.core.errors import Conflict, Corrupt, NotFound, SpecError
from muster.core.job import DAY_SECONDS
from muster.core.names import check_job_id
from muster.core.search import Event, EventPage, Search
from muster.volumes.durability import (
    TEMPORARY,
    locked,
    read_whole,
    translated,
    write_whole,
)
from muster.volumes.layout import Layout
from muster.volumes.tree import make_whole

MOST_BYTES = 4 << 20
"""At most this much of the events is read in one call."""


class FolderSearches:
    """The searches of one store."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._root = layout.root / "searches"

    def begin_search(self, search_id: str, search: Search) -> bool:
        """See :meth:`muster.volumes.protocols.Searches.begin_search`."""
        folder = self._folder(search_id)
        with translated(f"enter search {search_id}"):
            self._root.mkdir(exist_ok=True)
            if not folder.is_dir() and make_whole(
                folder, lambda new: write_whole(new / "search.json", wire.dumps(search))
            ):
                return True
        there = self.search(search_id)
        if there.spec != wire.loads(Search, wire.dumps(search)).spec:  # as it is read back, 1 is 1.0
            raise Conflict(f"search {search_id} is there already with another space or other rules")
        return False

    def search(self, search_id: str) -> Search:
        """See :meth:`muster.volumes.protocols.Searches.search`."""
        path = self._check(search_id) / "search.json"
        try:
            return wire.loads(Search, read_whole(path))
        except (FileNotFoundError, SpecError) as error:
            raise Corrupt(
                f"{path} cannot be read ({error}): take {path.parent} away, nothing else uses it"
            ) from error

    def searches(self) -> list[str]:
        """See :meth:`muster.volumes.protocols.Searches.searches`."""
        if not self._root.is_dir():
            return []
        entered = []
        for folder in self._root.iterdir():
            with suppress(FileNotFoundError):  # gc deletes it
                if not folder.name.startswith(TEMPORARY):
                    entered.append(((folder / "search.json").stat().st_mtime_ns, folder.name))
        return [name for _, name in sorted(entered, reverse=True)]

    def search_events(self, search_id: str, *, after: int = 0) -> EventPage:
        """See :meth:`muster.volumes.protocols.Searches.search_events`."""
        folder = self._check(search_id)
        try:
            with (folder / "events").open("rb") as file:
                file.seek(after)
                data = file.read(MOST_BYTES)
        except FileNotFoundError:
            return EventPage(events=(), end=after)
        whole = data[: data.rfind(b"\n") + 1]
        try:
            lines = json.loads(
                b"[%s]" % b",".join(whole.splitlines())
            )  # at once: 10,000 trials have 45,000 of them
            events = tuple(wire.build(Event, line) for line in lines)
        except (ValueError, SpecError) as error:
            raise Corrupt(f"{folder / 'events'} cannot be read behind byte {after}: {error}") from error
        return EventPage(events=events, end=after + len(whole))

    def tell_search(self, search_id: str, events: Sequence[Event], *, after: int) -> int:
        """See :meth:`muster.volumes.protocols.Searches.tell_search`."""
        folder = self._check(search_id)
        data = b"".join(json.dumps(wire.written(event), allow_nan=False).encode() + b"\n" for event in events)
        with translated(f"write the events of search {search_id}"), locked(folder / "lock"):
            handle = os.open(folder / "events", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                end = _whole(handle)
                if end != after:
                    raise Conflict(f"search {search_id} has gone on: its events end at {end}, not at {after}")
                _write(handle, data, at=end)
                os.fsync(handle)
            finally:
                os.close(handle)
        return end + len(data)

    def tidy(self, *, days: float) -> None:
        """Delete the searches in which nothing has happened for so long, with the leases of their inputs."""
        before = time.time() - days * DAY_SECONDS
        for search_id in self.searches():
            if self._last(search_id) < before:
                self._layout.delete(self._layout.leases(search_id))
                self._layout.delete(self._folder(search_id))

    def _last(self, search_id: str) -> float:
        """When something last happened in a search: its beginning, or its newest event."""
        folder = self._folder(search_id)
        times = [(folder / "search.json").stat().st_mtime]
        with suppress(FileNotFoundError):  # it has no event yet
            times.append((folder / "events").stat().st_mtime)
        return max(times)

    def _folder(self, search_id: str) -> Path:
        return self._root / check_job_id(search_id)

    def _check(self, search_id: str) -> Path:
        folder = self._folder(search_id)
        if not folder.is_dir():
            raise NotFound(f"no search {search_id} in this store: `muster search ls` lists what is there")
        return folder


def _whole(handle: int) -> int:
    """Cut the line that a crash has cut already, and return the length."""
    end = os.lseek(handle, 0, os.SEEK_END)
    while end and os.pread(handle, 1, end - 1) != b"\n":
        first = max(0, end - 4096)
        end = first + os.pread(handle, end - first, first).rfind(b"\n") + 1
        os.ftruncate(handle, end)
    return end


def _write(handle: int, data: bytes, *, at: int) -> None:
    """Write all of it, or nothing."""
    try:
        view, place = memoryview(data), at
        while view:
            written = os.pwrite(handle, view, place)
            view, place = view[written:], place + written
    except OSError:
        os.ftruncate(handle, at)
        raise
