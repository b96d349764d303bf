"""The event logs of a folder store, by kind and name: what each is about, and what has happened.

::

    STORE/events/<kind>/<name>/head.json     what was said at its beginning
    STORE/events/<kind>/<name>/events        its events, a line of JSON each; only ever appended to
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from muster.core.errors import Conflict, Corrupt, NotFound, SpecError
from muster.core.holding import closing_handle
from muster.core.job import DAY_SECONDS
from muster.core.names import check_job_id, check_label, is_label
from muster.volumes.base import LogPage
from muster.volumes.durability import locked, read_whole, translated, write_whole
from muster.volumes.layout import Layout
from muster.volumes.tree import make_whole

MOST_BYTES = 4 << 20
"""At most this much of the events is read in one call."""

_AT_THE_ROOT = {"searches": "search.json"}
"""Kinds of earlier stores, which have them at their root, and the name that the head has there."""


class FolderEventLogs:
    """The event logs of one store."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._others = layout.root / "events"

    def begin_log(self, kind: str, name: str, head: str) -> bool:
        """See :meth:`muster.volumes.protocols.EventLogs.begin_log`."""
        folder = self._folder(kind, name)
        with translated(f"begin {name} of {kind}"):
            folder.parent.mkdir(parents=True, exist_ok=True)
            return not folder.is_dir() and make_whole(
                folder, lambda new: write_whole(new / _head(kind), head)
            )

    def log_head(self, kind: str, name: str) -> str:
        """See :meth:`muster.volumes.protocols.EventLogs.log_head`."""
        path = self._there(kind, name) / _head(kind)
        try:
            return read_whole(path).decode()
        except (FileNotFoundError, UnicodeDecodeError) as error:
            raise Corrupt(
                f"{path} cannot be read ({error}): take {path.parent} away, nothing else uses it"
            ) from error

    def logs(self, kind: str) -> list[str]:
        """See :meth:`muster.volumes.protocols.EventLogs.logs`."""
        begun = []
        for folder in _folders(self._root(kind)):
            with suppress(FileNotFoundError):  # gc deletes it
                begun.append(((folder / _head(kind)).stat().st_mtime_ns, folder.name))
        return [name for _, name in sorted(begun, reverse=True)]

    def log_events(self, kind: str, name: str, *, after: int = 0) -> LogPage:
        """See :meth:`muster.volumes.protocols.EventLogs.log_events`."""
        path = self._there(kind, name) / "events"
        try:
            with path.open("rb") as file:
                file.seek(after)
                data = file.read(MOST_BYTES)
        except FileNotFoundError:
            return LogPage(events=(), end=after)
        whole = data[: data.rfind(b"\n") + 1]
        try:
            events = json.loads(b"[%s]" % b",".join(whole.splitlines()))  # at once: there may be 45,000
        except ValueError as error:
            raise Corrupt(f"{path} cannot be read behind byte {after}: {error}") from error
        return LogPage(events=tuple(events), end=after + len(whole))

    def append_events(self, kind: str, name: str, events: Sequence[Mapping[str, Any]], *, after: int) -> int:
        """See :meth:`muster.volumes.protocols.EventLogs.append_events`."""
        folder = self._there(kind, name)
        lines = [json.dumps(dict(event), allow_nan=False).encode() + b"\n" for event in events]
        if (longest := max(map(len, lines), default=0)) > MOST_BYTES:
            raise SpecError(
                f"an event of {name} of {kind} has {longest} bytes, and a reader gets at most {MOST_BYTES} at once: "
                "write it as several events, or as a file"
            )
        data = b"".join(lines)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        with (
            translated(f"write the events of {name} of {kind}"),
            locked(folder / "lock"),
            closing_handle(os.open(folder / "events", flags, 0o644)) as handle,
        ):
            end = _whole(handle)
            if end != after:
                raise Conflict(f"{name} of {kind} has gone on: its events end at {end}, not at {after}")
            _write(handle, data, at=end)
            os.fsync(handle)
        return end + len(data)

    def tidy(self, *, days: float) -> None:
        """Delete the logs in which nothing has happened for so long, with the leases that each holds."""
        before = time.time() - days * DAY_SECONDS
        for kind in (*_AT_THE_ROOT, *(each.name for each in _folders(self._others))):
            for name in self.logs(kind):
                if self._last(kind, name) < before:
                    self._layout.delete(self._layout.leases(name))
                    self._layout.delete(self._folder(kind, name))

    def _last(self, kind: str, name: str) -> float:
        """When something last happened: its beginning, or its newest event."""
        folder = self._folder(kind, name)
        times = [(folder / _head(kind)).stat().st_mtime]
        with suppress(FileNotFoundError):  # it has no event yet
            times.append((folder / "events").stat().st_mtime)
        return max(times)

    def _root(self, kind: str) -> Path:
        return (self._layout.root if kind in _AT_THE_ROOT else self._others) / check_label("kind", kind)

    def _folder(self, kind: str, name: str) -> Path:
        return self._root(kind) / check_job_id(name)

    def _there(self, kind: str, name: str) -> Path:
        folder = self._folder(kind, name)
        if not folder.is_dir():
            raise NotFound(f"no {name} among the {kind} of this store")
        return folder


def _head(kind: str) -> str:
    return _AT_THE_ROOT.get(kind, "head.json")


def _folders(root: Path) -> Iterator[Path]:
    """Return the folders that muster can have made; a stray file is no log."""
    if root.is_dir():
        yield from (each for each in root.iterdir() if is_label(each.name) and each.is_dir())


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
