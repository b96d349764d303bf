"""Shares the files of a new version with the version before it: hard links, where those bytes are known.

``KNOWN``, beside a version's MANIFEST, says of each file the inode and its change time (ctime) when its bytes were
last known to be what the manifest says: hashed by this commit, or shared with a version whose bytes were known.
A change of a file changes its ctime, and only the kernel sets that. So a file whose inode, size and ctime
are still the same is known; another is hashed before it is shared, and where it is not what its manifest says
the new version keeps bytes of its own. Hard links change the ctime too, as does the removal of one:
a commit writes down what it finds after its last link, and gc after the last removal.

::

    b3:<digest of the version>
    <inode> <ctime in ns>        one line a file, in the manifest's order
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from muster.core.errors import Corrupt
from muster.volumes import manifest
from muster.volumes.durability import temporary, write_whole
from muster.volumes.hashing import Frozen, hash_file
from muster.volumes.holding import held
from muster.volumes.layout import Layout
from muster.volumes.manifest import Entry
from muster.volumes.numbers import hinted
from muster.volumes.tree import exchange, files_of

KNOWN = "KNOWN"

_LOG = logging.getLogger(__name__)
_KEEP_OWN_BYTES = frozenset({errno.ENOENT, errno.EMLINK, errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP})


class Previous:
    """The version before, as far as its files can be shared.

    :param trusted: whether a file whose ctime is unchanged need not be hashed again.
    :raises Corrupt: its manifest is damaged.
    """

    def __init__(self, folder: Path, *, trusted: bool) -> None:
        entries = manifest.read(folder / "MANIFEST")
        self._data = f"{folder}/data"
        self._by_hash: dict[str, Entry] = {entry.hash: entry for entry in entries.values()}
        known = _read(folder, entries) if trusted else {}
        self._known = {f"{self._data}/{path}": line for path, line in known.items()}

    def equal(self, entry: Entry) -> tuple[str, os.stat_result] | None:
        """Return a file whose bytes are known to be those of `entry`, and its status; None where there is none.

        :raises OSError: it cannot be looked at, or read.
        """
        same = self._by_hash.get(entry.hash)
        if same is None:
            return None
        path = f"{self._data}/{same.path}"
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size != entry.size_bytes:
            return None
        is_known = self._known.get(path) == _line(found.st_ino, found.st_ctime_ns)
        if not is_known and hash_file(path) != entry.hash:
            _LOG.warning(
                "%s is not what was committed: the new version keeps bytes of its own; "
                "`muster volumes fsck --deep` names all such files",
                path,
            )
            return None
        return path, found

    def linked(self, path: str, status: os.stat_result) -> None:
        """Know a file by the status that it has after one more link to it."""
        self._known[path] = _line(status.st_ino, status.st_ctime_ns)


def share(folder: Path, entries: Sequence[Frozen], previous: Previous) -> list[Frozen]:
    """Hard-link the files in `folder` that equal one of `previous`; where that fails they keep their own bytes.

    :param entries: the files of `folder`, those of one of its folders together.
    :returns: the same, each with the inode and ctime that it has now.
    """
    replaced = temporary(folder.parent)
    replaced.mkdir()
    shared: list[Frozen] = []
    for inner, files in groupby(entries, key=lambda entry: entry.path.rpartition("/")[0]):
        with held(folder, inner) as here:
            for entry in files:
                mine = f"{here}/{entry.path.rpartition('/')[2]}"
                shared.append(_shared(entry, mine, previous, spare=f"{replaced}/{len(shared)}"))
    last = {
        entry.inode: entry.ctime_ns for entry in shared
    }  # of several links to one file the last one counts
    return [
        entry if entry.ctime_ns == last[entry.inode] else replace(entry, ctime_ns=last[entry.inode])
        for entry in shared
    ]


def _shared(entry: Frozen, mine: str, previous: Previous, *, spare: str) -> Frozen:
    """Let `mine` stand for an equal file of the version before, if there is one.

    `spare` gets what `mine` was, to be deleted when there is time: ext4 needs four times as long to delete
    a small file as to link one.
    """
    try:
        same = previous.equal(entry)
    except OSError:  # it is gone, or the disk does not give it: fsck names it, and this version has its own
        return entry
    if same is None or same[1].st_ino == entry.inode:
        return entry
    path, before = same
    try:
        os.link(path, spare, follow_symlinks=False)
        if _bytes_of(os.lstat(spare)) != _bytes_of(before):  # changed since it was looked at
            return entry
        exchange(spare, mine)
        after = os.lstat(mine)
    except OSError as error:
        if error.errno not in _KEEP_OWN_BYTES:
            raise
        return entry
    previous.linked(path, after)
    return Frozen(entry.path, entry.hash, entry.size_bytes, after.st_ino, after.st_ctime_ns)


def _bytes_of(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def render(digest: str, entries: Iterable[Frozen]) -> str:
    """Write what KNOWN says of a version's files."""
    ordered = sorted(entries, key=lambda entry: entry.path)
    return "\n".join([digest, *(_line(entry.inode, entry.ctime_ns) for entry in ordered), ""])


@contextmanager
def kept_known(layout: Layout, doomed: Sequence[Path]) -> Iterator[None]:
    """Whatever below `doomed` is removed meanwhile, the files that remain are known as they were before."""
    before: dict[str, os.stat_result] = {}
    for folder in doomed:
        with suppress(
            OSError
        ):  # another collection took it, or the disk does not give it: files are hashed then
            statuses = (entry.stat(follow_symlinks=False) for entry in files_of(folder))
            before |= {str(found.st_ino): found for found in statuses if found.st_nlink > 1}
    yield
    if before:
        with suppress(OSError):  # a full disk, say: files are hashed then
            for volume, number in hinted(layout):
                _refresh(layout.version(volume, number), before)


def _refresh(folder: Path, before: Mapping[str, os.stat_result]) -> None:
    """Write the new ctimes of a version's files down where they were known until now."""
    try:
        entries = manifest.read(folder / "MANIFEST")
    except (Corrupt, FileNotFoundError):
        return  # fsck names it, or it never came to be: its files are hashed before they are shared
    known = _read(folder, entries)
    changed: dict[str, str] = {}
    for path, line in known.items():
        was = before.get(line.partition(" ")[0])
        if was is None or line != _line(was.st_ino, was.st_ctime_ns):
            continue
        with suppress(FileNotFoundError):  # the version went meanwhile
            now = os.lstat(f"{folder}/data/{path}")
            if _bytes_of(now) == _bytes_of(was):
                changed[path] = _line(now.st_ino, now.st_ctime_ns)
    if changed:
        head = manifest.read_head(folder / "MANIFEST").digest
        write_whole(
            folder / KNOWN, "\n".join([head, *(known | changed).values(), ""]), durable=False, mode=0o444
        )


def _read(folder: Path, entries: Mapping[str, Entry]) -> dict[str, str]:
    """What is known of each file by its path, which is nothing where KNOWN is not there, torn, or of other files."""
    try:
        head, *lines = (folder / KNOWN).read_text(errors="replace").split("\n")[:-1]
    except (OSError, ValueError):
        return {}
    if head != manifest.read_head(folder / "MANIFEST").digest or len(lines) != len(entries):
        return {}
    return dict(zip(sorted(entries), lines, strict=True))


def _line(inode: int, ctime_ns: int) -> str:
    return f"{inode} {ctime_ns}"
