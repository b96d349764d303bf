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
from muster.volumes.changes import files_below
from muster.volumes.tree import lengthen, make_folders, open_regular

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ArchiveMember:
    """One file of an archive: its name in the archive, and its bytes, their place, or a handle of them; or an empty folder."""

    name: str
    source: Path | bytes | int
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


def _opened(source: Path | bytes | int) -> BinaryIO:
    """Open what is packed, and never a link: another process may have put one there since it was listed."""
    if isinstance(source, bytes):
        return io.BytesIO(source)
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
        with tarfile.open(fileobj=archive, mode="r|", bufsize=CHUNK_BYTES) as tar:
            for head in tar:
                path = check(head.name)
                if head.isdir():
                    make_folders(folder / path)
                    continue
                content = tar.extractfile(head) if head.isreg() else None
                if content is None or path in sizes:
                    raise SpecError(f"the archive holds {path!r:.200} twice, or as something that is no file")
                sizes[path] = _write(folder / path, content, runs=bool(head.mode & 0o100))
    except tarfile.TarError as error:
        raise SpecError(f"what was sent is no tar archive: {error}") from error
    except (FileExistsError, NotADirectoryError) as error:
        raise SpecError(f"the archive holds {error.filename!r:.200} as a file and as a folder") from error
    return sizes


def lengthen_all(archive: BinaryIO, folder: Path, *, check: Callable[[str], str]) -> int:
    """Append to the files below `folder` what the files of a tar have beyond them; return the number of files.

    :param check: as that of :func:`unpack`. :raises SpecError: it is no tar, or holds anything but files.
    """
    count = 0
    try:
        with tarfile.open(fileobj=archive, mode="r|", bufsize=CHUNK_BYTES) as tar:
            for head in tar:
                content = tar.extractfile(head) if head.isreg() else None
                if content is None:
                    raise SpecError(f"the archive holds {head.name!r:.200} as something that is no file")
                lengthen(folder / check(head.name), cast("BinaryIO", content))
                count += 1
    except tarfile.TarError as error:
        raise SpecError(f"what was sent is no tar archive: {error}") from error
    return count


def _write(target: Path, content: BinaryIO | object, *, runs: bool) -> int:
    make_folders(target.parent)
    written = 0
    with target.open("xb", buffering=0) as file:
        while chunk := content.read(CHUNK_BYTES):  # type: ignore[union-attr]
            written += len(chunk)
            view = memoryview(chunk)
            while view:
                view = view[file.write(view) :]
    if runs:
        target.chmod(0o755)
    return written
