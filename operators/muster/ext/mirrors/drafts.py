"""The drafts of a folder that is mirrored to: versions that arrive, each locked by the one who brings it.

::

    STORE/mirror/<volume>@<n>/             data/ MANIFEST INDEX RECORD.json KNOWN, as the version will be (``:`` for ``/``)
    STORE/mirror/<volume>@<n>.lock         held (flock) until the version is visible; a kill releases it

A draft that a kill left is gone on with.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3

from muster.core.errors import BadOutput, Corrupt
from muster.core.holding import closing_handle, write_all
from muster.core.locks import take
from muster.ext.mirrors.base import (
    Home,
    MirrorBusy,
    Tell,
    VersionDocuments,
    ordered,
    read_at_source,
    runs,
)
from muster.volumes.commit_records import Place
from muster.volumes.gather import check_path
from muster.volumes.hashing import BIG_BYTES, Frozen, frozen, hash_file
from muster.volumes.listing import Listing
from muster.volumes.manifest import Entry
from muster.volumes.tree import copy_file, files_of, make_folders, open_regular, prune, remove, unlock


class Drafts:
    """The drafts of one process, below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._locks: dict[Place, int] = {}

    def folder(self, place: Place) -> Path:
        """The folder of a version's draft."""
        return self._root / f"{place[0].replace('/', ':')}@{place[1]}"

    def take(self, place: Place) -> Path:
        """Lock a version's draft, until :meth:`release`, and return its folder. :raises Busy: another has it."""
        if place not in self._locks:
            self._root.mkdir(exist_ok=True)
            self._locks[place] = _lock(self._lock_file(place), place)
        return self.folder(place)

    def release(self, place: Place) -> None:
        """Delete the draft of a version that is visible, and its lock."""
        remove(self.folder(place))
        self._lock_file(place).unlink(missing_ok=True)
        os.close(self._locks.pop(place))

    def close(self) -> None:
        """Release all locks; the drafts stay."""
        for fd in self._locks.values():
            os.close(fd)
        self._locks = {}

    def _lock_file(self, place: Place) -> Path:
        folder = self.folder(place)
        return folder.with_name(f"{folder.name}.lock")


def _lock(path: Path, place: Place) -> int:
    """Take a lock file that its holder deletes in the end: one that was deleted meanwhile does not count."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if not take(fd, wait=False):
                os.close(fd)
                raise MirrorBusy(f"{place[0]}@{place[1]} is brought by another mirror now: it is waited for")
            if path.exists() and os.fstat(fd).st_ino == path.stat().st_ino:
                return fd
        except FileNotFoundError:  # deleted between the two looks
            pass
        os.close(fd)


class Filling:
    """The files of one draft, as they are filled in.

    :raises Corrupt: a path leads out of the folder.
    :param data: the draft's folder of files, made where it is missing. :param entries: all that it is to hold.
    :param place: the version's.
    """

    def __init__(self, data: Path, entries: Listing, *, place: Place = ("", 0)) -> None:
        self._data, self.place = data, place
        self.entries = {_plain(entry.path, place): entry for entry in entries.values()}
        self.frozen: dict[str, Frozen] = {}
        self.fresh: list[Entry] = []
        self._made = {""}
        if data.is_dir():
            unlock(data)
            self._keep_whole()
            prune(data)
        make_folders(data)
        for folder in entries.folders():
            make_folders(data / _plain(folder, place))

    @property
    def missing(self) -> dict[str, Entry]:
        """The files that are not there yet."""
        return {path: entry for path, entry in self.entries.items() if path not in self.frozen}

    @property
    def whole(self) -> bool:
        """Whether all files are there."""
        return len(self.frozen) == len(self.entries)

    def _keep_whole(self) -> None:
        """Keep what an earlier try brought whole; a part of a large file stays to be gone on with."""
        for found in list(files_of(self._data)):
            path = found.path[len(str(self._data)) + 1 :]
            entry = self.entries.get(path)
            status = found.stat(follow_symlinks=False)
            size = status.st_size
            if entry is not None and found.is_file(follow_symlinks=False):
                if size == entry.size_bytes and hash_file(found.path) == entry.hash:
                    self._freeze(entry)
                    continue
                if BIG_BYTES <= size < entry.size_bytes and _is_part(status):
                    continue
            os.unlink(found.path)  # noqa: PTH108 - text

    def part_bytes(self, entry: Entry) -> int:
        """Return how many bytes of a file are there, from its beginning."""
        try:
            return os.stat(self._path(entry)).st_size  # noqa: PTH116 - text
        except FileNotFoundError:
            return 0

    def link(self, entry: Entry, source: str) -> os.stat_result:
        """Make a file a link to one with the same bytes, and return its status."""
        target = self._path(entry)
        os.link(source, target, follow_symlinks=False)
        self._freeze(entry, fresh=False)
        return os.lstat(target)

    def copy(self, entry: Entry, source: str, tell: Tell) -> None:
        """Copy a file of this machine. :raises Corrupt: it has not the bytes of the manifest."""
        target = self._path(entry)
        self._drop(target)
        if entry.size_bytes < BIG_BYTES:
            self._write(entry, target, _small(source))
        else:
            copy_file(source, target)
            if hash_file(target) != entry.hash:
                self._drop(target)
                raise _changed(entry)
        self._freeze(entry)
        tell(entry.size_bytes)

    def write(self, entry: Entry, chunks: Iterator[bytes], tell: Tell) -> None:
        """Append to a file what it lacks. :raises Corrupt: it has not the bytes of the manifest then."""
        target, size = self._path(entry), self.part_bytes(entry)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with closing_handle(os.open(target, flags, 0o644)) as fd:
            for chunk in chunks:
                write_all(fd, chunk)
                size += len(chunk)
                tell(len(chunk))
        if size >= entry.size_bytes:
            self.check(entry)

    def check(self, entry: Entry) -> None:
        """Take a file that has all its bytes. :raises Corrupt: they are not those of the manifest."""
        target = self._path(entry)
        if self.part_bytes(entry) != entry.size_bytes or hash_file(target) != entry.hash:
            self._drop(target)
            raise _changed(entry)
        self._freeze(entry)

    def _write(self, entry: Entry, target: str, data: bytes) -> None:
        if len(data) != entry.size_bytes or blake3(data).hexdigest() != entry.hash:
            raise _changed(entry)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with closing_handle(os.open(target, flags, entry.mode)) as fd:
            write_all(fd, data)

    def _drop(self, target: str) -> None:
        if os.path.lexists(target):
            os.unlink(target)  # noqa: PTH108 - text

    def _path(self, entry: Entry) -> str:
        inner = entry.path.rpartition("/")[0]
        if inner not in self._made:
            make_folders(self._data / inner)
            self._made.add(inner)
        return f"{self._data}/{entry.path}"

    def _freeze(self, entry: Entry, *, fresh: bool = True) -> None:
        path = f"{self._data}/{entry.path}"
        found = os.lstat(path)
        if found.st_mode & 0o777 != entry.mode:
            os.chmod(path, entry.mode)  # noqa: PTH101 - text
            found = os.lstat(path)
        self.frozen[entry.path] = frozen(entry, found)
        if fresh:
            self.fresh.append(entry)


def _is_part(status: os.stat_result) -> bool:
    """Whether a file is one that was being written: a finished one may be another version's, by a link, and is never written to."""
    return status.st_nlink == 1 and bool(status.st_mode & 0o200)


def _plain(path: str, place: Place) -> str:
    """Return a path of a manifest. :raises Corrupt: it leads out of the version; no commit wrote that."""
    try:
        return check_path(path, output=f"{place[0]}@{place[1]}")
    except BadOutput as error:
        raise Corrupt(f"the manifest of {place[0]}@{place[1]} is not one of a commit: {error}") from error


def _small(source: str) -> bytes:
    with os.fdopen(open_regular(source), "rb") as file:
        return file.read()


def _changed(entry: Entry) -> Corrupt:
    return Corrupt(
        f"{entry.path!r:.200} did not arrive with the bytes of its manifest: `muster volumes fsck --deep` where it comes "
        "from says whether it is damaged there"
    )


def fetch(filling: Filling, documents: VersionDocuments, source: Home, tell: Tell) -> None:
    """Fetch the files that a draft lacks from a home: of this machine, or as streams of adjacent ones.

    :raises Corrupt: one is gone, or has not the bytes of its manifest.
    """
    folder = source.local(documents.place)
    if folder is not None:
        for entry in list(filling.missing.values()):
            with read_at_source(path := f"{folder}/{entry.path}"):
                filling.copy(entry, path, tell)
        return
    for run in list(runs(ordered(documents), filling.missing)):
        chunks = Cut(source.read(documents, run, first=(part := filling.part_bytes(run[0]))))
        for entry in run:
            filling.write(entry, chunks.take(entry.size_bytes - part, what=entry.path), tell)
            part = 0


class Cut:
    """A stream of bytes, cut into files."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, b""

    def take(self, size: int, *, what: str) -> Iterator[bytes]:
        """Yield the next `size` bytes. :raises Corrupt: the stream ends before."""
        while size > 0:
            piece = self._rest or next(self._chunks, b"")
            if not piece:
                raise Corrupt(f"{what!r:.200} ended {size} bytes too early on its way")
            self._rest = piece[size:]
            size -= len(piece) - len(self._rest)
            yield piece[: len(piece) - len(self._rest)] if self._rest else piece
