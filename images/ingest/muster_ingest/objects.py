"""Brings a folder to the state of an object store: lists, fetches what differs, and lists again.

What changed while it was fetched differs in the next list, and is fetched again. A file that was fetched whole is moved to its place and
noted, so a kill at any moment loses at most the files under way.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from muster_ingest import listing
from muster_ingest.connection import Connection
from muster_ingest.errors import IngestError
from muster_ingest.fetching import Patience, Row, fetch
from muster_ingest.listing import CARRIED, FRESH, JOURNAL, LISTING, PARTS, Listing
from muster_ingest.places import Place

ROUNDS = 3
_TELL_SECONDS = 5.0


class Ingest:
    """One ingest of objects.

    :param base: the last version. :param target: the folder of checkpoints.
    """

    def __init__(
        self, base: Path | None, target: Path, what: Mapping[str, Any], connection: Connection
    ) -> None:
        self._base, self._target = base, target
        self._identity = {"url": what["source"]}
        self._streams = int(what.get("streams") or 16)
        self._place = Place(what["source"], connection)
        self._patience = Patience(self._place, float(what.get("patience_seconds") or 300.0))
        self._lock = threading.Lock()
        self._fetched = self._fetched_bytes = 0
        self._told = 0.0
        self._folders: set[str] = set()

    def run(self) -> dict[str, float]:
        """Do it, and return the numbers of files that the version has, and of those fetched, kept and gone."""
        with tempfile.TemporaryDirectory() as scratch:
            self._list = Listing(Path(scratch) / "listing.sqlite")
            try:
                return self._run()
            finally:
                self._list.close()

    def _run(self) -> dict[str, float]:
        if self._base is not None:
            self._list.had(listing.read(self._base / LISTING, self._identity), here=False)
        before, _ = self._list.count()
        self._patience.ask("its start", self._place.begin)
        self._go_on()
        gone = self._rounds()
        files, size = self._list.count()
        if not files:
            stays = ", and the last version stays" if self._base is not None else ""
            raise IngestError(f"{self._place.source} holds no object: nothing is committed{stays}")
        here, _ = self._list.count(here=True)
        kept, _ = self._list.count(here=False)
        if not here and kept == before > 0:
            self._clear()
            print(f"{self._place.source} holds nothing new: {files:,} files, {size:,} B", flush=True)
        else:
            self._finish()
        return {
            "files": files,
            "bytes": size,
            "fetched": here,
            "fetched_bytes": self._fetched_bytes,
            "kept": kept,
            "gone": gone,
        }

    def _go_on(self) -> None:
        """Take what an attempt before this one has fetched and noted; delete all else that it left.

        One whose commit was refused has left the listing of its version, without what that took over.
        """
        journal, fresh = self._target / JOURNAL, self._target / FRESH
        for noted in (self._target / LISTING, journal):
            self._list.claim(listing.read(noted, self._identity))
        with fresh.open("w", encoding="utf-8") as file:
            file.write(listing.first_line(self._identity))
            for found, path in self._left():
                facts = self._list.claimed(path)
                if facts is not None and facts[0] == found.stat().st_size:
                    self._list.note(path, *facts)
                    file.write(listing.line(path, *facts))
                else:
                    found.unlink()
        fresh.replace(journal)
        there, _ = self._list.count(here=True)
        if there:
            print(f"goes on from {there:,} files that were fetched before", flush=True)
        (self._target / PARTS).mkdir(exist_ok=True)

    def _left(self) -> Iterator[tuple[Path, str]]:
        """Yield every file that is there, but the journals."""
        for folder, _, names in os.walk(self._target):
            for name in names:
                path = os.path.relpath(f"{folder}/{name}", self._target)
                if path not in (JOURNAL, FRESH):
                    yield Path(folder) / name, path

    def _rounds(self) -> int:
        """List and fetch until nothing differs; return how many files of the last version are gone."""
        gone = 0
        for number in range(1, ROUNDS + 2):
            left_out = self._look()
            if left_out and number == 1:
                print(f"left out: {left_out:,} empty objects that stand for folders", flush=True)
            if self._place.no_files and number == 1:
                print(f"left out: {self._place.no_files:,} links or devices: only files are read", flush=True)
            for path, here in self._list.gone():
                gone += 0 if here else 1
                if here:
                    (self._target / path).unlink(missing_ok=True)
            changed = self._list.changed() if number > ROUNDS else ""
            if changed:
                raise IngestError(
                    f"{self._place.source}: {changed!r:.200} changed again while it was read, {ROUNDS} times over: nothing is committed; "
                    "end what writes it, or ingest what is complete"
                )
            late, _ = self._list.missing()
            if not late:
                break
            if number > ROUNDS:
                self._refuse_unread()
                print(f"{late:,} objects came while this ran: the next ingest takes them", flush=True)
                break
            self._fetch_all()
        return gone

    def _refuse_unread(self) -> None:
        """Refuse an object that was asked for and never came as it is listed: left out, it would be so in each ingest."""
        found = self._list.refused()
        if found is not None:
            path, size = found
            listed = f"is listed with {size:,} B, and" if size >= 0 else "is listed, and"
            raise IngestError(
                f"{self._place.source}: {path!r:.200} {listed} could not be read as that in {ROUNDS} tries: nothing is committed; end "
                "what writes or deletes it, or ingest what is complete"
            )

    def _look(self) -> int:
        try:
            return self._list.list(self._place.objects(self._patience.ask), self._place.source)
        except FileNotFoundError:
            by = f"; {self._place.connection.named}" if self._place.connection.conn_id else ""
            raise IngestError(
                f"{self._place.source} is not there: no such bucket, folder or object{by}"
            ) from None

    def _fetch_all(self) -> None:
        count, total = self._list.missing()
        self._total = (self._fetched + count, self._fetched_bytes + total)
        self._patience.pause(self._place.settles_in(time.time()))
        with (self._target / JOURNAL).open("a", encoding="utf-8") as self._journal:
            fetch(
                self._place,
                self._patience,
                self._missing(),
                self._keep,
                streams=max(1, min(self._streams, count)),
                parts=self._target / PARTS,
            )

    def _missing(self) -> Iterator[Row]:
        """Yield what is missing, batch by batch: the tables change meanwhile."""
        last = ""
        while True:
            with self._lock:
                rows = self._list.missing_after(last)
                self._list.ask(row[0] for row in rows)
            if not rows:
                return
            yield from rows
            last = rows[-1][0]

    def _keep(self, part: Path, row: Row) -> None:
        """Move a file that was fetched to its place, and note it; not one that has changed, as the next list says."""
        path, _, size, identity = row
        found = part.stat().st_size
        if size >= 0 and found != size:
            return
        folder, _, name = path.rpartition("/")
        place = f"{self._target}/{folder}"
        with self._lock:
            if place not in self._folders:
                Path(place).mkdir(parents=True, exist_ok=True)
                self._folders.add(place)
        try:
            part.replace(f"{place}/{name}")
        except IsADirectoryError:  # what lay in it is gone from the source
            with self._lock:
                _remove_empty(f"{place}/{name}")
                self._folders.clear()
            part.replace(f"{place}/{name}")
        with self._lock:
            self._journal.write(listing.line(path, found, identity))
            self._journal.flush()
            self._list.note(path, found, identity)
            self._fetched += 1
            self._fetched_bytes += found
            self._tell()

    def _tell(self) -> None:
        now = time.monotonic()
        files, size = self._total
        if now - self._told >= _TELL_SECONDS or self._fetched == files:
            self._told = now
            print(
                f"muster: files={self._fetched}/{files} bytes={self._fetched_bytes}"
                + (f"/{size}" if size >= self._fetched_bytes else ""),
                flush=True,
            )

    def _finish(self) -> None:
        """Write the listing of the new version, and which of its files are taken over."""
        for path in self._list.kept(here=False):
            file = self._target / path
            if file.is_file():  # a rest of another attempt: the last version's is as the source says
                file.unlink()
        with (self._target / LISTING).open("w", encoding="utf-8") as file:
            file.write(listing.first_line(self._identity))
            file.writelines(listing.line(*row) for row in self._list.rows())
        if self._base is not None:
            with (self._target / CARRIED).open("w", encoding="utf-8") as file:
                file.writelines(f"{path}\n" for path in self._list.kept(here=False))
        with suppress(FileNotFoundError):
            (self._target / JOURNAL).unlink()
        self._remove_parts()

    def _clear(self) -> None:
        (self._target / JOURNAL).unlink(missing_ok=True)
        self._remove_parts()

    def _remove_parts(self) -> None:
        for file in (self._target / PARTS).iterdir():
            file.unlink()
        (self._target / PARTS).rmdir()


def _remove_empty(folder: str) -> None:
    """Delete a folder that holds only folders. :raises OSError: it holds a file."""
    for inner, _, _ in os.walk(folder, topdown=False):
        Path(inner).rmdir()
