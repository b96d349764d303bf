"""The commit: what all replicas sealed becomes versions, every output or none, once per job_id.

::

    staging/<job>/<attempt>/ready/<k>/     one version to be: data/ MANIFEST RECORD.json
    staging/<job>/<attempt>/ready/PLAN     written when all of them are whole, with their numbers
    v/<volume>/.<n>                        a link that reserves the number for this job
    v/<volume>/<n>/                        then <k> is renamed to here
    commits/<job>.json                     renamed last: now, and only now, they are all visible

Every step can be done again, so a crash at any point is mended by asking once more:
before PLAN it prepares afresh, after PLAN it only renames. Why so: docs/adr/0004-all-or-none.md.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from muster.core import wire
from muster.core.address import pinned
from muster.core.errors import Corrupt, StoreError
from muster.volumes import manifest
from muster.volumes.base import Record
from muster.volumes.catalog import Catalog
from muster.volumes.durability import (
    TEMPORARY,
    rename,
    symlink,
    sync_all,
    sync_folder,
    sync_tree,
    sync_upward,
    temporary,
    write_whole,
)
from muster.volumes.gather import Draft
from muster.volumes.hashing import freeze_files
from muster.volumes.layout import Layout
from muster.volumes.manifest import Entry
from muster.volumes.tree import (
    copy_tree,
    files_of,
    folders_of,
    held,
    held_files_of,
    link_over,
    remove,
    set_modes,
    unlock,
)

_KEEP_OWN_BYTES = frozenset({errno.ENOENT, errno.EMLINK, errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP})


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Where one draft goes; a line of PLAN."""

    folder: str
    output: str
    volume: str
    number: int


def _check_sizes(draft: Draft, entries: Sequence[Entry]) -> None:
    found = {entry.path: entry.size_bytes for entry in entries}
    for path in found.keys() - draft.files.keys():
        raise StoreError(f"output {draft.output!r} holds {path!r:.200}, which came after the seal")
    for path, size in draft.files.items():
        if path not in found:
            raise StoreError(
                f"output {draft.output!r} lacks {path!r:.200}, which was sealed: nothing is committed"
            )
        if found[path] != size:
            raise StoreError(
                f"{path!r:.200} of output {draft.output!r} has {found[path]} bytes, {size} were sealed: "
                "it was written since; nothing is committed"
            )


def freeze(layout: Layout, draft: Draft, *, previous: Path | None) -> str:
    """Make a draft's files read-only, hash them, share those that `previous` holds; return the manifest."""
    if draft.folder.is_symlink():
        raise StoreError(f"output {draft.output!r} was replaced by a link: nothing is committed")
    folders = unlock(draft.folder)  # they are the store's now, and a crash may have left them 0555
    spare = str(draft.folder.parent.parent / "spare")  # beside the drafts, never in one
    entries = list(freeze_files(_own_files(draft), spare=spare))
    _check_sizes(draft, entries)
    if previous is not None and layout.links:
        _share(draft.folder, entries, previous)
    set_modes(draft.folder, folders, 0o555)
    return manifest.render(entries)


def _own_files(draft: Draft) -> Iterator[tuple[str, str]]:
    """Every file of a draft, without what a crash left of one that was copied in part, which goes."""
    for path, entry in held_files_of(draft.folder):
        if entry.name.startswith(TEMPORARY) and path not in draft.files:
            Path(entry.path).unlink(missing_ok=True)
        else:
            yield entry.path, path


def _share(folder: Path, entries: Sequence[Entry], previous: Path) -> None:
    """Hard-link files that equal one of the version before; where that fails, keep one's own bytes."""
    try:
        known = {entry.hash: entry for entry in manifest.read(previous / "MANIFEST").values()}
    except Corrupt:
        return  # it is damaged, which fsck says, and no reason to keep a new version out
    replaced = temporary(folder.parent)
    replaced.mkdir()
    for number, entry in enumerate(entries):
        same = known.get(entry.hash)
        if same is None or same.size_bytes != entry.size_bytes:
            continue
        try:
            inner, _, name = entry.path.rpartition("/")
            with held(folder, inner) as here:
                link_over(f"{previous}/data/{same.path}", f"{here}/{name}", spare=f"{replaced}/{number}")
        except OSError as error:
            if error.errno not in _KEEP_OWN_BYTES:
                raise


def newest(catalog: Catalog, layout: Layout, volume: str, partition: str | None) -> Path | None:
    """The folder of the version whose files a new one is likely to share; never a retired one, it may be damaged."""
    same = [v for v in catalog.live(volume) if v.partition == partition and v.retired is None]
    return layout.version(volume, same[-1].number) if same else None


def reserve(layout: Layout, volume: str, *, claim: str) -> int:
    """Take the next number of a volume for `claim`, or find the one that it took before a crash.

    A number is taken by a symbolic link ``.<n>`` that leads nowhere and names who took it: made in
    one step, by one of us only. It outlives a job that is given up, so the number is never reused.
    """
    home = layout.volume(volume)
    home.mkdir(parents=True, exist_ok=True)
    taken = layout.taken(volume)
    for number, holder in taken.items():
        if holder == claim:
            return number
    number = max([0, *taken, *layout.numbers(volume)]) + 1
    while not _take(home, number, claim):
        number += 1
    return number


def _take(home: Path, number: int, claim: str) -> bool:
    mark = home / f".{number}"
    try:
        symlink(claim, mark)
    except FileExistsError:
        return False
    if (home / str(number)).exists():  # taken, published and its mark removed since we looked
        mark.unlink(missing_ok=True)
        return False
    return True


def assemble(layout: Layout, catalog: Catalog, drafts: Sequence[Draft], *, record: Record) -> list[Placed]:
    """Give each draft its manifest, number and record; make all of it durable."""
    manifests = [
        freeze(layout, draft, previous=newest(catalog, layout, draft.volume, draft.partition))
        for draft in drafts
    ]
    numbers = [reserve(layout, draft.volume, claim=f"{record.job_id}:{k}") for k, draft in enumerate(drafts)]
    addresses = [pinned(draft.volume, number) for draft, number in zip(drafts, numbers, strict=True)]
    for draft, number, text, address in zip(drafts, numbers, manifests, addresses, strict=True):
        own = replace(
            record,
            volume=draft.volume,
            number=number,
            digest=text.partition("\n")[0],
            output=draft.output,
            partition=draft.partition,
            siblings=tuple(other for other in addresses if other != address),
        )
        write_whole(draft.folder.parent / "MANIFEST", text, durable=False)
        write_whole(draft.folder.parent / "RECORD.json", wire.dumps(own), durable=False)
    return [
        Placed(folder=draft.folder.parent.name, output=draft.output, volume=draft.volume, number=number)
        for draft, number in zip(drafts, numbers, strict=True)
    ]


def decide(layout: Layout, plan: Sequence[Placed], *, ready: Path) -> None:
    """Sync everything once and write PLAN: from here on the commit is only renames."""
    ready.mkdir(parents=True, exist_ok=True)
    if layout.syncfs:
        sync_all(layout.root)
    else:
        sync_tree(ready)
        for placed in plan:
            sync_upward(layout.volume(placed.volume), top=layout.root)
    write_whole(ready / "PLAN", json.dumps([vars(placed) for placed in plan]))


def read_plan(ready: Path) -> list[Placed] | None:
    """What was decided before a crash, or None where nothing was."""
    try:
        return [Placed(**line) for line in json.loads((ready / "PLAN").read_bytes())]
    except FileNotFoundError:
        return None


def publish(
    layout: Layout, plan: Sequence[Placed], *, ready: Path, job_id: str
) -> dict[str, list[tuple[str, int]]]:
    """Rename every version to its place and then, in one step, make them all visible; say where they are."""
    for placed in plan:
        target = layout.version(placed.volume, placed.number)
        with suppress(FileNotFoundError):
            _place(ready / placed.folder, target)
        if not (target / "MANIFEST").is_file():
            raise StoreError(f"{target} was promised to job {job_id} and its files are gone: run it again")
        sync_folder(target.parent)
    outputs: dict[str, list[tuple[str, int]]] = {}
    for placed in plan:
        outputs.setdefault(placed.output, []).append((placed.volume, placed.number))
    write_whole(layout.commit(job_id), json.dumps({"outputs": outputs, "at": time.time()}))
    with suppress(OSError):  # all is visible: a mark that stays is no reason to fail
        for placed in plan:
            _tidy(ready / placed.folder, layout.version(placed.volume, placed.number))
    return outputs


def _place(draft: Path, target: Path) -> None:
    """Move a draft to its place, or, where nothing moves from one folder into another, copy it there.

    In either case the draft is gone first, so that another machine does not prepare it any more.
    """
    if (target / "MANIFEST").is_file():
        return  # a call before a crash did it, or another machine
    if not _taken(draft).is_dir():
        try:
            rename(draft, target)
            return
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        rename(draft, _taken(draft))
    _copy(_taken(draft), target)


def _taken(draft: Path) -> Path:
    return draft.with_name(f"{draft.name}.taken")


def _copy(draft: Path, target: Path) -> None:
    """Copy a draft to a folder beside its place, and rename that."""
    new = target.with_name(f"{TEMPORARY}{target.name}-{os.urandom(8).hex()}")
    unlock(draft)  # it may be another machine's, and listed late
    try:
        copy_tree(draft, new)
        for entry in files_of(new / "data"):
            Path(entry.path).chmod(0o444)
        set_modes(new / "data", folders_of(new / "data"), 0o555)
        sync_tree(new)
        rename(new, target)
    finally:
        remove(new)


def _tidy(draft: Path, target: Path) -> None:
    """Take away what a version that is visible needs no more: its mark, and copies that a crash cut off."""
    target.with_name(f".{target.name}").unlink(missing_ok=True)
    if _taken(draft).is_dir():
        for torn in target.parent.glob(f"{TEMPORARY}{target.name}-*"):
            remove(torn)
