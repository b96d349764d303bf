"""The commit: the sealed files of all replicas become versions, every output or none, once per job_id.

::

        staging/<job>/<attempt>/ready/<k>/     one draft: data/ MANIFEST INDEX RECORD.json KNOWN
        staging/<job>/<attempt>/ready/PLAN     written when all drafts are complete, with their numbers
        v/<volume>/.<n>                        a link that reserves the number for this job
        v/<volume>/<n>/                        the draft <k> is renamed to here
        commits/<job>.json                     renamed last: it makes all of them visible at once

Every step can be repeated, so after a crash at any point the next call completes the commit:
before PLAN it prepares again, after PLAN it only renames. Why so: docs/adr/past/0004-all-or-none.md.
"""

from __future__ import annotations

import errno
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from muster.core import wire
from muster.core.address import pinned
from muster.core.errors import Corrupt, SpecError, StoreError
from muster.core.job import JobSpec
from muster.volumes import manifest, numbers, pages, sharing
from muster.volumes.base import Record
from muster.volumes.commit_records import CommitRecord, Place, write_commit
from muster.volumes.durability import (
    TEMPORARY,
    rename,
    sync_folder,
    sync_tree,
    sync_upward,
    write_whole,
)
from muster.volumes.gather import Draft, check_path
from muster.volumes.hashing import Frozen, freeze_files
from muster.volumes.layout import Layout
from muster.volumes.manifest import Entry
from muster.volumes.tree import (
    copy_tree,
    files_of,
    folders_of,
    held_files_of,
    remove,
    runs,
    set_modes,
    unlock,
)

_MOST_SIBLINGS = 100
"""Of larger commits the records name no siblings: the commit record names all versions."""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """The place of one draft; a line of PLAN.

    :param record: the digest of its RECORD.json; empty where the PLAN lacks it.
    """

    folder: str
    output: str
    volume: str
    number: int
    partition: str | None = None
    record: str = ""


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one capability does at a commit, beside the drafts and numbers of all; each call may come again after a crash.

    :param field: the field of an output that asks for it; empty: every commit has it.
    :param drafted: completes a draft before its files are frozen. `failed`: undoes that where the commit is not prepared.
    :param frozen: may take files of a draft from other versions; returns all files of the draft.
    :param numbered: refuses a commit by the numbers of its versions.
    :param decided: is called when all versions are durable, before they are visible.
    """

    field: str = ""
    drafted: Callable[[Draft], Draft] = lambda draft: draft
    failed: Callable[[Draft], None] = lambda _: None
    frozen: Callable[[Draft, list[Frozen]], list[Frozen]] = lambda _, entries: entries
    numbered: Callable[[JobSpec, Sequence[Placed]], None] = lambda *_: None
    decided: Callable[[str, JobSpec, Sequence[Placed]], None] = lambda *_: None

    def is_of(self, spec: JobSpec) -> bool:
        """Whether the commit of a job has this step."""
        outputs = spec.outputs.values()
        return not self.field or any(getattr(each, self.field) not in (None, ()) for each in outputs)


def _check_sizes(draft: Draft, entries: Sequence[Entry]) -> None:
    for entry in entries:
        size = draft.files.get(entry.path)
        if size is None:
            raise StoreError(f"output {draft.output!r} holds {entry.path!r:.200}, which came after the seal")
        if entry.size_bytes != size:
            raise StoreError(
                f"{entry.path!r:.200} of output {draft.output!r} has {entry.size_bytes} bytes, {size} were sealed: "
                "it was written since; nothing is committed"
            )
    if len(entries) < len(draft.files):
        path = min(draft.files.keys() - {entry.path for entry in entries})
        raise StoreError(
            f"output {draft.output!r} lacks {path!r:.200}, which was sealed: nothing is committed"
        )


def freeze(draft: Draft, steps: Iterable[Step]) -> tuple[list[Frozen], list[str]]:
    """Make a draft's files read-only, hash them, take what others hold; return its files, and its empty folders."""
    if draft.folder.is_symlink():
        raise StoreError(f"output {draft.output!r} was replaced by a link: nothing is committed")
    folders = unlock(draft.folder)  # a crash may have left them 0555
    spare = str(draft.folder.parent.parent / "spare")  # beside the drafts, never in one
    entries = list(freeze_files(_own_files(draft), spare=spare, links=_links_of(draft.folder)))
    for step in steps:
        entries = step.frozen(draft, entries)
    if draft.carried:
        folders = folders_of(draft.folder)
    _check_sizes(draft, entries)
    set_modes(draft.folder, folders, 0o555)
    return sharing.settled(entries), _empty(draft, folders, entries)


def _links_of(folder: Path) -> Callable[[int], int]:
    """Return what tells the number of an inode's links where all of them are in a folder; the folder is read when it is first asked."""

    @cache
    def inside() -> dict[int, int]:
        statuses = (entry.stat(follow_symlinks=False) for _, entry in held_files_of(folder))
        found = Counter((status.st_ino, status.st_nlink) for status in statuses if status.st_nlink > 1)
        return {inode: links for (inode, links), names in found.items() if names == links}

    return lambda inode: inside().get(inode, 0)


def _empty(draft: Draft, folders: Iterable[str], entries: Iterable[Entry]) -> list[str]:
    """Return the folders that hold neither a file nor a folder."""
    above = {entry.path.rpartition("/")[0] for entry in entries} | {
        folder.rpartition("/")[0] for folder in folders if folder
    }
    return [check_path(folder, output=draft.output) for folder in folders if folder and folder not in above]


def _own_files(draft: Draft) -> Iterator[tuple[str, str]]:
    """Yield every file of a draft; delete partial copies that a crash left."""
    for path, entry in held_files_of(draft.folder):
        if path in draft.carried:
            continue  # a crash left it: it is the base's
        if entry.name.startswith(TEMPORARY) and path not in draft.files:
            Path(entry.path).unlink(missing_ok=True)
        else:
            yield entry.path, path


def assemble(
    layout: Layout, drafts: Sequence[Draft], steps: Sequence[Step], *, record: Record
) -> list[Placed]:
    """Give each draft its manifest, number and record; :func:`decide` makes all of it durable."""
    frozen = [freeze(draft, steps) for draft in drafts]
    taken = [
        numbers.reserve(
            layout,
            draft.volume,
            claim=f"{record.job_id}:{k}",
            note=draft.folder.parent.with_name(f"number-{k}"),
        )
        for k, draft in enumerate(drafts)
    ]
    addresses = [pinned(draft.volume, number) for draft, number in zip(drafts, taken, strict=True)]
    return [
        _describe(draft, number, *content, record=record, addresses=addresses)
        for draft, number, content in zip(drafts, taken, frozen, strict=True)
    ]


def _describe(
    draft: Draft,
    number: int,
    entries: Sequence[Frozen],
    empty: Sequence[str],
    *,
    record: Record,
    addresses: Sequence[str],
) -> Placed:
    """Write a draft's MANIFEST, with the INDEX of a large one, KNOWN and RECORD.json."""
    folder, text = draft.folder.parent, manifest.render(entries, folders=empty)
    digest = text[: text.index(b"\n")].decode()
    own = replace(
        record,
        volume=draft.volume,
        number=number,
        digest=digest,
        output=draft.output,
        partition=draft.partition,
        siblings=_siblings(addresses, pinned(draft.volume, number)),
    )
    said = wire.dumps(own).encode()
    texts = {"MANIFEST": text, **pages.beside(text), "RECORD.json": said}
    texts[sharing.KNOWN] = sharing.render(digest, entries).encode()
    for name, data in texts.items():
        write_whole(folder / name, data, durable=False, mode=0o444)
    return Placed(
        folder=folder.name,
        output=draft.output,
        volume=draft.volume,
        number=number,
        partition=draft.partition,
        record=manifest.digest_of(said),
    )


def _siblings(addresses: Sequence[str], own: str) -> tuple[str, ...]:
    """Return the other versions of a commit; of thousands none: each record would hold all of them."""
    return tuple(other for other in addresses if other != own) if len(addresses) <= _MOST_SIBLINGS else ()


def decide(layout: Layout, plan: Sequence[Placed], *, ready: Path) -> None:
    """Sync everything once and write PLAN: after it, the commit only renames."""
    ready.mkdir(parents=True, exist_ok=True)
    layout.sync(ready)
    if not layout.syncfs:
        for placed in plan:
            sync_upward(layout.volume(placed.volume), top=layout.root)
    write_whole(ready / "PLAN", json.dumps([wire.written(placed) for placed in plan]))


def read_plan(ready: Path) -> list[Placed] | None:
    """Return the plan that was written before a crash, or None. :raises Corrupt: another release wrote it."""
    path = ready / "PLAN"
    try:
        return [wire.build(Placed, line) for line in json.loads(path.read_bytes())]
    except FileNotFoundError:
        return None
    except SpecError as error:
        raise Corrupt(f"{path}: {error}; run the release of muster that began this commit") from error


def publish(
    layout: Layout,
    plan: Sequence[Placed],
    *,
    ready: Path,
    job_id: str,
    kept: Mapping[str, list[Place]] | None = None,
) -> dict[str, list[Place]]:
    """Rename every version to its place, then make all visible in one step; return their places.

    :param kept: the results of further outputs, which were there before.
    """
    for placed in plan:
        target = layout.version(placed.volume, placed.number)
        with suppress(FileNotFoundError):
            place(ready / placed.folder, target)
        if not (target / "MANIFEST").is_file():
            raise StoreError(f"{target} was promised to job {job_id} and its files are gone: run it again")
    for volume in sorted({placed.volume for placed in plan}):
        sync_folder(layout.volume(volume))
    outputs: dict[str, list[Place]] = {}
    for placed in plan:
        outputs.setdefault(placed.output, []).append((placed.volume, placed.number))
    records = {
        (placed.volume, placed.number): placed.record or _digest_now(layout, placed) for placed in plan
    }
    commit = CommitRecord(outputs, records, kept=kept or {})
    write_commit(layout, job_id, commit)
    with suppress(OSError):  # all is visible: a mark that stays must not fail the commit
        for placed in plan:
            numbers.remember(layout, placed.volume, placed.partition, placed.number)
            _tidy(ready / placed.folder, layout.version(placed.volume, placed.number))
    return commit.results


def _digest_now(layout: Layout, placed: Placed) -> str:
    return manifest.digest_of((layout.version(placed.volume, placed.number) / "RECORD.json").read_bytes())


def place(draft: Path, target: Path) -> None:
    """Move a draft to its place, or copy it where the file system cannot rename between folders.

    Either way the draft is renamed first, so that no other machine prepares it again.
    """
    if (target / "MANIFEST").is_file():
        return  # done before a crash, or by another machine
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
    unlock(draft)  # another machine may have made it, and NFS may list it late
    try:
        copy_tree(draft, new)
        for entry in files_of(new / "data"):
            Path(entry.path).chmod(0o555 if runs(entry.stat()) else 0o444)
        set_modes(new / "data", folders_of(new / "data"), 0o555)
        sync_tree(new)
        rename(new, target)
    finally:
        remove(new)


def _tidy(draft: Path, target: Path) -> None:
    """Delete leftovers of a visible version: its mark, and partial copies of a crash."""
    target.with_name(f".{target.name}").unlink(missing_ok=True)
    if _taken(draft).is_dir():
        for torn in target.parent.glob(f"{TEMPORARY}{target.name}-*"):
            remove(torn)
