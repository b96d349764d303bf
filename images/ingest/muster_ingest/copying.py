"""Copies by hand between a folder and an object store: ``muster volumes put`` and ``get`` run it in this image.

``python -m muster_ingest.copying put|get WHAT``: WHAT is the source's description as JSON, with ``folder``. The last line of output is JSON.
"""

from __future__ import annotations

import hashlib
import json
import queue
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from muster_ingest.connection import Connection
from muster_ingest.errors import IngestError, SourceAway
from muster_ingest.fetching import Patience
from muster_ingest.listing import OWN
from muster_ingest.objects import Ingest
from muster_ingest.places import Ask, Place

_PLAIN_MD5 = 32


def fetch(folder: Path, what: Mapping[str, Any], connection: Connection) -> dict[str, float]:
    """Copy the whole source into an empty folder."""
    return Ingest(None, folder, what, connection).run()


def send(folder: Path, what: Mapping[str, Any], connection: Connection) -> dict[str, float]:
    """Copy a folder's files to their paths below the address; what is there already, by its MD5, is not sent again.

    What an ingest wrote for the next one is left out: an ingest of the copy would refuse it.

    :raises IngestError: something else lies there.
    """
    return _Sending(folder, what, connection).run()


class _Sending:
    """The copy of one folder."""

    def __init__(self, folder: Path, what: Mapping[str, Any], connection: Connection) -> None:
        paths = (path for path in folder.rglob("*") if path.is_file())
        files = {str(path.relative_to(folder)): path for path in paths}
        self._files = {name: path for name, path in files.items() if name.partition("/")[0] not in OWN}
        self._streams = int(what.get("streams") or 16)
        self._place = Place(what["source"], connection)
        self._patience = Patience(self._place, float(what.get("patience_seconds") or 300.0))
        self._todo: queue.Queue[str] = queue.Queue()
        self._errors: list[BaseException] = []

    def run(self) -> dict[str, float]:
        """Send what is not there yet."""
        self._patience.ask("its start", self._place.begin)
        there = _there(self._place, self._patience.ask)
        other = sorted(there.keys() - self._files.keys())
        if other:
            raise IngestError(
                f"{self._place.source} holds {other[0]!r:.200}, which is not of this version: name a prefix that is empty, "
                "or delete it there"
            )
        for path, file in sorted(self._files.items()):
            if path not in there or not _same(file, *there[path]):
                self._todo.put(path)
        count = self._todo.qsize()
        self._make_folders(sorted(self._todo.queue))
        threads = [threading.Thread(target=self._work, daemon=True) for _ in range(min(self._streams, count))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._errors:
            raise next((each for each in self._errors if isinstance(each, IngestError)), self._errors[0])
        if not self._todo.empty():
            raise SourceAway(f"{self._place.source}: {self._todo.qsize():,} files were not sent: run again")
        size = sum(path.stat().st_size for path in self._files.values())
        return {"files": len(self._files), "sent": count, "bytes": size}

    def _make_folders(self, paths: Sequence[str]) -> None:
        """Make the folders of files before any is sent: two threads that make one are an error at some servers."""
        if self._place.has_folders:
            for folder in sorted({self._key(path).rpartition("/")[0] for path in paths}):
                self._patience.ask(
                    folder, lambda folder=folder: self._place.fs.makedirs(folder, exist_ok=True)
                )

    def _work(self) -> None:
        try:
            fs = self._patience.ask("its start", self._open)
            while fs is not None and not self._errors:
                self._send(fs, self._todo.get_nowait())
        except queue.Empty:
            return
        except BaseException as error:  # the thread that waits raises it
            self._errors.append(error)
            self._patience.stop()

    def _open(self) -> Any:
        """Return a file system for one thread; None where the others need no help any more, so that none waits for a server that lets few in."""
        if self._errors or self._todo.empty():
            return None
        return self._place.open() if self._place.alone else self._place.fs

    def _send(self, fs: Any, path: str) -> None:
        key = self._key(path)
        self._patience.ask(key, lambda: fs.put_file(str(self._files[path]), key))

    def _key(self, path: str) -> str:
        return f"{self._place.root}/{path}"


def _there(place: Place, ask: Ask) -> dict[str, tuple[int, str]]:
    try:
        return {path: (size, tag) for _, path, size, tag in place.objects(ask)}
    except FileNotFoundError:
        return {}


def _same(file: Path, size: int, tag: str) -> bool:
    """Whether an object is known to hold a file's bytes: of many stores the tag is their MD5."""
    if size != file.stat().st_size or len(tag) != _PLAIN_MD5:
        return False
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() == tag


def main(verb: str, text: str) -> int:
    """Do it, and say how it ended in the last line."""
    what = json.loads(text)
    try:
        connection = Connection.of_environment(what)
        told = (fetch if verb == "put" else send)(Path(what["folder"]), what, connection)
    except (IngestError, SourceAway, OSError) as error:
        print(json.dumps({"error": str(error)}))
        return 1
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
