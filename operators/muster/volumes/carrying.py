"""Takes files of a new version over from the one that its output begins with, by hard links, without reading them.

The job names them in a file at the top of the output (:data:`muster.core.data.CARRIED`). The file is moved beside the draft, where a commit that
begins again after a crash finds it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from muster.core.address import Address
from muster.core.data import CARRIED, Pinned
from muster.core.errors import BadOutput, Corrupt, StoreError
from muster.volumes import listing
from muster.volumes.durability import write_whole
from muster.volumes.gather import Draft, check_path
from muster.volumes.hashing import Frozen, frozen, hash_file
from muster.volumes.layout import Layout
from muster.volumes.manifest import Entry
from muster.volumes.sharing import KEEP_OWN_BYTES, Previous, settled
from muster.volumes.tree import copy_file, make_folders, unlock


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

    :param entries: the draft's own files. :param trusted: as :class:`muster.volumes.sharing.Previous`.
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
