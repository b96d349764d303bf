"""Files as one tar, packed and unpacked as a stream; only plain files are accepted."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from muster.core.errors import SpecError, StoreError
from muster.core.holding import write_all
from muster.volumes.changes import files_below
from muster.volumes.tree import lengthen, make_folders, open_regular

CHUNK_BYTES = 1 << 20
HEAD_BYTES = 2 * CHUNK_BYTES


@dataclass(frozen=True, kw_only=True)
class ArchiveMember:
    """One file of an archive: its name in the archive, and the place of its bytes or a handle of them; or an empty folder."""

    name: str
    source: Path | int
    runs: bool = False


def members(folder: Path, *, prefix: str = "") -> Iterator[ArchiveMember]:
    """Yield every file below a folder of the service, sorted by path."""
    for name, path in files_below(folder).items():
        yield ArchiveMember(name=f"{prefix}{name}", source=path, runs=os.access(path, os.X_OK))


def pack(files: Iterable[ArchiveMember]) -> Iterator[bytes]:
    """Write a tar piece by piece; the same files always give the same bytes.

    :raises StoreError: a file was truncated meanwhile.
    """
    return in_chunks(_packed(files))


def in_chunks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in fewer pieces: each piece costs a switch of threads and a write."""
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) >= CHUNK_BYTES:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)


def _packed(files: Iterable[ArchiveMember]) -> Iterator[bytes]:
    for member in files:
        if isinstance(member.source, Path) and member.source.is_dir():
            head = tarfile.TarInfo(member.name)
            head.type, head.mode = tarfile.DIRTYPE, 0o755
            yield head.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
            continue
        with _opened(member.source) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            head = tarfile.TarInfo(member.name)
            head.size, head.mode = size, 0o755 if member.runs else 0o644
            yield head.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
            yield from exactly(file, size, what=member.name)
        yield b"\0" * (-size % tarfile.BLOCKSIZE)
    yield b"\0" * (2 * tarfile.BLOCKSIZE)


def _opened(source: Path | int) -> BinaryIO:
    """Open what is packed, and never a link: another process may have put one there since it was listed."""
    return os.fdopen(os.dup(source) if isinstance(source, int) else open_regular(str(source)), "rb")


def exactly(file: BinaryIO, size: int, *, what: str) -> Iterator[bytes]:
    """Read `size` bytes, no more. :raises StoreError: there are fewer."""
    while size:
        chunk = file.read(min(CHUNK_BYTES, size))
        if not chunk:
            raise StoreError(
                f"{what!r:.200} got shorter while it was read: no process may write it meanwhile"
            )
        size -= len(chunk)
        yield chunk


def unpack(archive: BinaryIO, folder: Path, *, check: Callable[[str], str]) -> dict[str, int]:
    """Write the files and folders of a tar below `folder`, which must be empty; return the size of every file's path.

    :param check: returns a path if it is plain and stays below the folder, or raises.
    :raises SpecError: it is no tar, holds anything but files, or a file twice.
    """
    sizes: dict[str, int] = {}
    try:
        for head, content in _entries(archive):
            path = check(head.name)
            if content is None:
                make_folders(folder / path)
            elif path in sizes:
                raise SpecError(f"the archive holds {path!r:.200} twice")
            else:
                sizes[path] = _write(folder / path, content, runs=bool(head.mode & 0o100))
    except (FileExistsError, NotADirectoryError) as error:
        raise SpecError(f"the archive holds {error.filename!r:.200} as a file and as a folder") from error
    return sizes


def lengthen_all(archive: BinaryIO, folder: Path, *, check: Callable[[str], str]) -> int:
    """Append to the files below `folder` what the files of a tar have beyond them; return the number of files.

    :param check: as that of :func:`unpack`. :raises SpecError: it is no tar, or holds anything but files.
    """
    count = 0
    for head, content in _entries(archive):
        if content is not None:
            lengthen(folder / check(head.name), content)
            count += 1
    return count


class Chunks(io.RawIOBase):
    """Arriving chunks as a file; one is in memory. :param following: returns the next one, empty at the end."""

    def __init__(self, following: Callable[[], bytes]) -> None:
        self._following, self._rest = following, b""

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read into `buffer`."""
        self._rest = self._rest or self._following()
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


class _Bounded:
    """A tar being read. :ivar left: how many bytes may still be read of a head, which is in memory as a whole; None in a file."""

    def __init__(self, archive: BinaryIO) -> None:
        self._archive = archive
        self.left: int | None = HEAD_BYTES

    def read(self, size: int) -> bytes:
        """Read on. :raises SpecError: a head is too long."""
        if self.left is not None:
            self.left -= size
            if self.left < 0:
                raise SpecError(
                    f"the archive holds a file of which the name and attributes exceed {HEAD_BYTES} bytes"
                )
        return self._archive.read(size)


def _entries(archive: BinaryIO) -> Iterator[tuple[tarfile.TarInfo, BinaryIO | None]]:
    """Yield the head and content of each file of a tar, and the head of each folder; none is longer than what was sent."""
    bounded = _Bounded(archive)
    try:
        with tarfile.open(fileobj=cast("BinaryIO", bounded), mode="r|", bufsize=CHUNK_BYTES) as tar:
            while (head := tar.next()) is not None:
                if not (head.isdir() or head.isreg()) or head.issparse():
                    raise SpecError(
                        f"the archive holds {head.name!r:.200} as something that is no plain file"
                    )
                bounded.left = None
                yield head, cast("BinaryIO", tar.extractfile(head)) if head.isreg() else None
                bounded.left = HEAD_BYTES
    except tarfile.TarError as error:
        raise SpecError(f"what was sent is no tar archive: {error}") from error


def _write(target: Path, content: BinaryIO | object, *, runs: bool) -> int:
    make_folders(target.parent)
    written = 0
    with target.open("xb", buffering=0) as file:
        while chunk := content.read(CHUNK_BYTES):  # type: ignore[union-attr]
            written += len(chunk)
            write_all(file.fileno(), chunk)
    if runs:
        target.chmod(0o755)
    return written
