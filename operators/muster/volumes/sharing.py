"""Shares the files of a new version with the version before it, by hard links to files with known bytes.

``KNOWN``, beside a version's MANIFEST, holds for each file the inode and its change time (ctime) when the
file was last known to match the manifest: hashed by this commit, or shared with a version whose bytes were
known. Any change of a file changes its ctime, and only the kernel sets that. So a file with the same inode,
size and ctime is known. Another file is hashed before it is shared, and if it does not match its manifest
the new version keeps its own bytes. Adding or removing a hard link changes the ctime too, so a commit
records it after its last link, and gc after the last removal.

::

    b3:<digest of the version>
    <inode> <ctime in ns>        one line per file, in the manifest's order

An output that begins with a version takes files of it over in the same way, without reading them. The job names them in a file at the top of
the output (:data:`muster.core.data.CARRIED`), which is moved beside the draft, where a commit that begins again after a crash finds it.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import groupby, repeat
from pathlib import Path

from muster.core.address import Address
from muster.core.data import CARRIED, Pinned
from muster.core.errors import BadOutput, Corrupt, StoreError
from muster.core.holding import held
from muster.volumes import listing, manifest
from muster.volumes.catalog import Catalog
from muster.volumes.durability import temporary, write_whole
from muster.volumes.gather import Draft, check_path
from muster.volumes.hashing import Frozen, frozen, hash_file
from muster.volumes.layout import Layout
from muster.volumes.manifest import Entry, Head
from muster.volumes.numbers import hinted, newest
from muster.volumes.tree import copy_file, exchange, files_of, make_folders, unlock

KNOWN = "KNOWN"

_LOG = logging.getLogger(__name__)
KEEPS_OWN = "the new version keeps bytes of its own; `muster volumes fsck --deep` names all such files"
KEEP_OWN_BYTES = frozenset({errno.ENOENT, errno.EMLINK, errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP})


class Previous:
    """The files of the version before that can be shared.

    A file whose mode or owner is not what the commit gave it is never shared: both are the inode's.

    :param wanted: the files that may share one; nothing is kept of others, of which there may be a million.
    :param trusted: whether a file whose ctime is unchanged need not be hashed again.
    :param means: what is done about a file that has changed, for the log.
    :raises Corrupt: its manifest is damaged.
    """

    def __init__(
        self, folder: Path, wanted: Iterable[Entry], *, trusted: bool, means: str = KEEPS_OWN
    ) -> None:
        self._means = means
        entries = listing.read(folder / "MANIFEST")
        self._data = f"{folder}/data"
        self._owner = (folder / "data").stat().st_uid if (folder / "data").is_dir() else -1
        # The path of a file, and its line of KNOWN.
        self._same: dict[tuple[str, bool], tuple[str, str] | None] = dict.fromkeys(
            entry.content for entry in wanted
        )
        known = _lines(folder, manifest.read_head(folder / "MANIFEST")) if trusted else []
        for entry, line in zip(entries.values(), known or repeat(""), strict=False):
            if entry.content in self._same:
                self._same[entry.content] = entry.path, line

    def equal(self, entry: Entry, *, owner: int) -> tuple[str, os.stat_result] | None:
        """Return a file whose bytes are known to equal `entry`, and its status; None where there is none.

        :param owner: the user to whom it has to belong.
        :raises OSError: it cannot be read.
        """
        same = self._same.get(entry.content)
        if same is None:
            return None
        path = f"{self._data}/{same[0]}"
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size != entry.size_bytes:
            return None
        if self._owner != owner:  # a version of another user, who may change it
            return None
        if (stat.S_IMODE(found.st_mode), found.st_uid) != (entry.mode, owner):
            _LOG.warning("%s has not the mode or owner that it was committed with: %s", path, self._means)
            return None
        is_known = same[1] == _line(found.st_ino, found.st_ctime_ns)
        if not is_known and hash_file(path) != entry.hash:
            _LOG.warning("%s is not what was committed: %s", path, self._means)
            return None
        return path, found

    def linked(self, entry: Entry, status: os.stat_result) -> None:
        """Record the status of the file that equals `entry` after one more link to it."""
        if (same := self._same[entry.content]) is not None:
            self._same[entry.content] = same[0], _line(status.st_ino, status.st_ctime_ns)


def share(folder: Path, entries: Sequence[Frozen], previous: Previous) -> list[Frozen]:
    """Hard-link the files in `folder` that equal one of `previous`; where that fails they keep their own bytes.

    :param entries: the files of `folder`, grouped by folder.
    :returns: the same entries with their present inodes and ctimes.
    """
    replaced = temporary(folder.parent)
    replaced.mkdir()
    shared: list[Frozen] = []
    for inner, files in groupby(entries, key=lambda entry: entry.path.rpartition("/")[0]):
        with held(folder, inner) as here:
            for entry in files:
                mine = f"{here}/{entry.path.rpartition('/')[2]}"
                shared.append(_shared(entry, mine, previous, spare=f"{replaced}/{len(shared)}"))
    return settled(shared)


def shared(
    layout: Layout, catalog: Catalog, draft: Draft, entries: list[Frozen], *, trusted: bool
) -> list[Frozen]:
    """Share the files of a draft with the version before; see :attr:`muster.volumes.commit.Step.frozen`.

    :param trusted: as that of :class:`Previous`.
    """
    previous = newest(catalog, layout, draft.volume, draft.partition)
    if previous is not None and layout.links:
        with suppress(Corrupt):  # fsck reports it; the new version gets bytes of its own
            return share(draft.folder, entries, Previous(previous, entries, trusted=trusted))
    return entries


def settled(entries: Sequence[Frozen]) -> list[Frozen]:
    """Give all links to one file the ctime of the last of them, which is what the file has now."""
    last = {entry.inode: entry.ctime_ns for entry in entries}
    return [
        entry if entry.ctime_ns == last[entry.inode] else replace(entry, ctime_ns=last[entry.inode])
        for entry in entries
    ]


def _shared(entry: Frozen, mine: str, previous: Previous, *, spare: str) -> Frozen:
    """Replace `mine` by a link to an equal file of the version before, if there is one.

    `spare` gets the old `mine`, to be deleted later: ext4 needs four times as long to delete a small file as
    to link one.
    """
    try:
        same = previous.equal(entry, owner=os.lstat(mine).st_uid)
    except OSError:  # it is gone or unreadable: fsck reports it, and this version keeps its own
        return entry
    if same is None or same[1].st_ino == entry.inode:
        return entry
    path, before = same
    try:
        os.link(path, spare, follow_symlinks=False)
        if _bytes_of(os.lstat(spare)) != _bytes_of(before):  # changed meanwhile
            return entry
        exchange(spare, mine)
        after = os.lstat(mine)
    except OSError as error:
        if error.errno not in KEEP_OWN_BYTES:
            raise
        return entry
    previous.linked(entry, after)
    return replace(entry, inode=after.st_ino, ctime_ns=after.st_ctime_ns)


def _bytes_of(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def render(digest: str, entries: Iterable[Frozen]) -> str:
    """Return the text of KNOWN for a version's files."""
    ordered = sorted(entries, key=lambda entry: entry.path)
    return "\n".join([digest, *(_line(entry.inode, entry.ctime_ns) for entry in ordered), ""])


@contextmanager
def kept_known(layout: Layout, doomed: Sequence[Path]) -> Iterator[None]:
    """Keep the files that survive a removal of `doomed` known: write their new ctimes after the block."""
    before: dict[str, os.stat_result] = {}
    for folder in doomed:
        with suppress(OSError):  # deleted by another collection, or unreadable: files are hashed then
            statuses = (entry.stat(follow_symlinks=False) for entry in files_of(folder))
            before |= {str(found.st_ino): found for found in statuses if found.st_nlink > 1}
    yield
    if before:
        with suppress(OSError):  # for example a full disk: files are hashed then
            for volume, number in hinted(layout):
                _refresh(layout.version(volume, number), before)


def _refresh(folder: Path, before: Mapping[str, os.stat_result]) -> None:
    """Write the new ctimes of a version's files that were known until now."""
    try:
        head = manifest.read_head(folder / "MANIFEST")
        lines = _lines(folder, head)
        if not any(line.partition(" ")[0] in before for line in lines):
            return
        entries = listing.read(folder / "MANIFEST")
    except (Corrupt, FileNotFoundError):
        return  # damaged, or never complete: its files are hashed before they are shared
    changed = False
    for number, (path, line) in enumerate(zip(entries, lines, strict=True)):
        was = before.get(line.partition(" ")[0])
        if was is None or line != _line(was.st_ino, was.st_ctime_ns):
            continue
        with suppress(FileNotFoundError):  # the version was deleted meanwhile
            now = os.lstat(f"{folder}/data/{path}")
            if _bytes_of(now) == _bytes_of(was):
                lines[number], changed = _line(now.st_ino, now.st_ctime_ns), True
    if changed:
        write_whole(folder / KNOWN, "\n".join([head.digest, *lines, ""]), durable=False, mode=0o444)


def _lines(folder: Path, head: Head) -> list[str]:
    """Return the lines of KNOWN, one for each file; none if it is missing, damaged, or of other files."""
    try:
        digest, *lines = (folder / KNOWN).read_text(errors="replace").split("\n")[:-1]
    except (OSError, ValueError):
        return []
    return lines if digest == head.digest and len(lines) == head.files else []


def _line(inode: int, ctime_ns: int) -> str:
    return f"{inode} {ctime_ns}"


def named(layout: Layout, draft: Draft) -> Draft:
    """Return a draft with the files that it takes over; it can be called again after a crash.

    :raises BadOutput: one is not in the base, or the job wrote it, too.
    :raises StoreError: the base cannot be read.
    """
    if draft.base is None:
        return draft
    noted, listed = _noted(draft), draft.folder / CARRIED
    fresh = listed.is_file() and not listed.is_symlink()
    if not fresh and not noted.is_file():
        return draft
    text = (listed if fresh else noted).read_bytes()
    # What is noted was checked: a commit that was cut off later has left files in the draft that it took over.
    checked = noted.is_file() and noted.read_bytes() == text
    base = _folder(layout, draft.base)
    try:
        carried = _listed(draft, text, listing.read(base / "MANIFEST"))
    except (Corrupt, OSError) as error:
        raise StoreError(
            f"output {draft.output!r} begins with {draft.base.address}, which cannot be read: {error}"
        ) from error
    written = {path: size for path, size in draft.files.items() if path != CARRIED}
    if not checked:
        _refuse_overlap(draft, written, carried)
        write_whole(noted, text)
    if fresh:
        listed.unlink()
    sizes = {path: entry.size_bytes for path, entry in carried.items()}
    return replace(draft, files=written | sizes, carried=carried)


def drop(draft: Draft) -> None:
    """Delete what a draft took over: its own files may go back to a job, which could change the base by a link to it."""
    noted = _noted(draft)
    if draft.base is None or not noted.is_file():
        return
    unlock(draft.folder)
    for path in noted.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]:
        with suppress(BadOutput, FileNotFoundError, NotADirectoryError):
            (draft.folder / check_path(path, output=draft.output)).unlink()


def _noted(draft: Draft) -> Path:
    return draft.folder.parent.with_name(f"carried-{draft.folder.parent.name}")


def _listed(draft: Draft, text: bytes, entries: Mapping[str, Entry]) -> dict[str, Entry]:
    assert draft.base is not None
    found = {}
    for path in text.decode("utf-8", "replace").split("\n")[:-1]:
        entry = entries.get(path)
        if entry is None:
            raise BadOutput(
                f"output {draft.output!r} takes {path!r:.200} over from {draft.base.address}, which does not hold it"
            )
        found[entry.path] = entry
    return found


def _refuse_overlap(draft: Draft, written: Iterable[str], carried: Collection[str]) -> None:
    """Refuse a path that is both written and taken over, or a file where the other has a folder."""
    own = set(written)
    for one, others in ((own, carried), (carried, own)):
        for path in one:
            above = path
            while above:
                if above in others:
                    raise BadOutput(
                        f"output {draft.output!r} holds {path!r:.200} and takes {above!r:.200} over: a path is one of the two"
                    )
                above = above.rpartition("/")[0]


def take_over(layout: Layout, draft: Draft, entries: list[Frozen], *, trusted: bool) -> list[Frozen]:
    """Link the carried files into a draft, or copy them where that cannot be; return all its files.

    :param entries: the draft's own files. :param trusted: as :class:`Previous`.
    :raises StoreError: a file of the base is not what was committed.
    """
    if draft.base is None or not draft.carried:
        return entries
    previous = Previous(_folder(layout, draft.base), draft.carried.values(), trusted=trusted)
    folders = set[str]()
    taken = []
    for path in sorted(draft.carried):
        folder = path.rpartition("/")[0]
        if folder not in folders:
            make_folders(draft.folder / folder)
            folders.add(folder)
        taken.append(_taken(layout, draft, previous, draft.carried[path]))
    return settled([*entries, *taken])


def _taken(layout: Layout, draft: Draft, previous: Previous, entry: Entry) -> Frozen:
    assert draft.base is not None
    target = f"{draft.folder}/{entry.path}"
    Path(target).unlink(missing_ok=True)  # a crash left it
    source = f"{_folder(layout, draft.base)}/data/{entry.path}"
    try:
        same = previous.equal(entry, owner=draft.folder.stat().st_uid)
    except OSError as error:
        raise _lost(draft.base, entry, f"cannot be read ({error.strerror})") from error
    if same is not None and layout.links:
        try:
            os.link(source, target, follow_symlinks=False)
            found = os.lstat(target)
            previous.linked(entry, found)
            return frozen(entry, found)
        except OSError as error:
            if error.errno not in KEEP_OWN_BYTES:
                raise
    try:
        copy_file(source, target)
    except FileNotFoundError as error:
        raise _lost(draft.base, entry, "is not what was committed") from error
    Path(target).chmod(entry.mode)
    if hash_file(target) != entry.hash:
        raise _lost(draft.base, entry, "is not what was committed")
    return frozen(entry, os.lstat(target))


def _lost(base: Pinned, entry: Entry, why: str) -> StoreError:
    return StoreError(
        f"{entry.path!r:.200} of {base.address} {why}, so no version can take it over: "
        f"`muster volumes retire {base.address}`, then run the stage again: it begins with the version before"
    )


def _folder(layout: Layout, base: Pinned) -> Path:
    address = Address.parse(base.address)
    return layout.version(address.volume, int(address.value))
