"""The commit: what all replicas sealed becomes versions, every output or none, once per job_id.

::

    staging/<job>/<attempt>/ready/<k>/     one version to be: data/ MANIFEST RECORD.json
    staging/<job>/<attempt>/ready/PLAN     written when all of them are whole, with their numbers
    v/<volume>/<n>/                        an empty folder reserves the number, then <k> is renamed onto it
    commits/<job>.json                     renamed last: now, and only now, they are all visible

Every step can be done again, so a crash at any point is mended by calling :func:`commit` once more:
before PLAN it prepares afresh, after PLAN it only renames. Why so: docs/adr/0002-all-or-none.md.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from muster.core import wire
from muster.core.address import pinned
from muster.core.errors import SpecError, StoreError
from muster.core.job import EVERY_PARTITION, JobSpec
from muster.core.names import check_partition
from muster.core.replica import PartManifest
from muster.volumes import manifest
from muster.volumes.base import Record, Staging
from muster.volumes.catalog import Catalog
from muster.volumes.durability import sync_all, sync_folder, sync_tree, sync_upward, write_over, write_whole
from muster.volumes.hashing import freeze_file
from muster.volumes.layout import Layout
from muster.volumes.manifest import Entry
from muster.volumes.tree import copy_file, files_of, folders_of, graft, prune

_KEEP_OWN_BYTES = frozenset({errno.ENOENT, errno.EMLINK, errno.EXDEV, errno.EPERM})


@dataclass(frozen=True, kw_only=True)
class Draft:
    """One version to be, in a folder of its own on the store's file system.

    :param source: the folder below each replica's from which it is gathered.
    :param files: the sealed size of every path.
    """

    folder: Path
    output: str
    volume: str
    partition: str | None
    source: str
    files: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Placed:
    """Where one draft goes; a line of PLAN."""

    folder: str
    output: str
    volume: str
    number: int


def union(parts: Sequence[PartManifest], spec: JobSpec) -> dict[str, dict[str, int]]:
    """Join what the replicas sealed: per output the size of every path.

    :raises StoreError: two replicas wrote the same path, an output is unknown or empty, a path leaves it.
    """
    owners: dict[tuple[str, str], str] = {}
    sizes: dict[str, dict[str, int]] = {output: {} for output in spec.outputs}
    for part in parts:
        replica = f"{part.role}-{part.index}"
        for file in part.files:
            if file.output not in sizes:
                raise StoreError(
                    f"replica {replica} sealed output {file.output!r:.80}, which the job does not have"
                )
            check_path(file.path, output=file.output)
            other = owners.setdefault((file.output, file.path), replica)
            if other != replica:
                raise StoreError(
                    f"replicas {other} and {replica} both wrote {file.path} of output {file.output!r}: "
                    "let one of them write it, or put the rank into its name"
                )
            sizes[file.output][file.path] = file.size_bytes
    for output, files in sizes.items():
        if not files:
            raise StoreError(f"output {output!r} is empty: the job wrote no file into its folder")
    return sizes


def check_path(path: str, *, output: str) -> str:
    """Return `path`, plain and below its output, as one line of a manifest can hold it.

    :raises StoreError: it leaves the folder, or holds control characters or bytes that are not UTF-8.
    """
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise StoreError(f"output {output!r} holds {path!r:.200}, which is no plain path below it")
    if any(ord(char) < 32 or 0x7F <= ord(char) <= 0x9F or 0xD800 <= ord(char) <= 0xDFFF for char in path):
        raise StoreError(
            f"output {output!r} holds {path!r:.200}: control characters and bytes that are not UTF-8 "
            "cannot be in a file's name; rename it"
        )
    return path


def plan_drafts(ready: Path, spec: JobSpec, sizes: Mapping[str, Mapping[str, int]]) -> list[Draft]:
    """Say which versions the sealed files become: one an output, or one a top-level folder of it.

    It follows from the seal alone, so that a second call after a crash says the same.
    """
    drafts: list[Draft] = []
    for output, files in sizes.items():
        target = spec.outputs[output]
        split = target.partition == EVERY_PARTITION
        for name in _partitions(output, files) if split else [target.partition]:
            below = {
                path.partition("/")[2]: size for path, size in files.items() if path.startswith(f"{name}/")
            }
            drafts.append(
                Draft(
                    folder=ready / str(len(drafts)) / "data",
                    output=output,
                    volume=target.volume,
                    partition=name,
                    source=f"{output}/{name}" if split else output,
                    files=below if split else files,
                )
            )
    return drafts


def gather(staging: Staging, drafts: Sequence[Draft], parts: Sequence[PartManifest]) -> None:
    """Move what the replicas wrote into the drafts; it can be called again after a crash."""
    replicas = [staging.root / f"{part.role}-{part.index}" for part in parts]
    sealed = {(file.output, file.path) for part in parts for file in part.files}
    for replica in replicas:
        for output in sorted({draft.output for draft in drafts}):
            _refuse_stray(replica / output, sealed, output)
    for draft in drafts:
        draft.folder.parent.mkdir(parents=True, exist_ok=True)
        for replica in replicas:
            graft(replica / draft.source, draft.folder)
        if draft.folder.is_dir():
            prune(draft.folder)


def _partitions(output: str, files: Mapping[str, int]) -> list[str]:
    for path in files:
        if "/" not in path:
            raise StoreError(
                f"output {output!r} is split by folder into partitions, but {path!r:.200} lies in none: "
                "write it into a folder that is named after its partition"
            )
    names = sorted({path.partition("/")[0] for path in files})
    for name in names:
        try:
            check_partition(name)
        except SpecError as error:
            raise StoreError(
                f"output {output!r}: folder {name!r:.80} cannot be a partition: {error}"
            ) from error
    return names


def _refuse_stray(folder: Path, sealed: Container[tuple[str, str]], output: str) -> None:
    """Nothing is committed that is no regular file, or that came after the seal."""
    if not folder.is_dir():
        return
    base = len(str(folder)) + 1
    for entry in files_of(folder):
        path = entry.path[base:]
        if not entry.is_file(follow_symlinks=False):
            raise StoreError(
                f"output {output!r} holds {path!r:.200}, which is no regular file: write files only"
            )
        if (output, path) not in sealed:
            raise StoreError(
                f"output {output!r} holds {path!r:.200}, which came after the seal: "
                "end background processes before the job ends"
            )


def _check_sizes(draft: Draft, entries: Sequence[Entry]) -> None:
    found = {entry.path: entry.size_bytes for entry in entries}
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
    folders = folders_of(draft.folder)
    for folder in folders:
        os.chmod(folder, 0o755)  # noqa: S103 - they are the store's now; a crash may have left them 0555
    base = len(str(draft.folder)) + 1
    entries = [freeze_file(entry.path, name=entry.path[base:]) for entry in files_of(draft.folder)]
    _check_sizes(draft, entries)
    if previous is not None and layout.links:
        _share(draft.folder, entries, previous)
    for folder in folders:
        os.chmod(folder, 0o555)  # noqa: S103 - readers may be other users
    return manifest.render(entries)


def _share(folder: Path, entries: Sequence[Entry], previous: Path) -> None:
    """Hard-link files that equal one of the version before; where that fails, keep one's own bytes."""
    known = {entry.hash: entry for entry in manifest.read(previous / "MANIFEST").values()}
    spare = folder.parent.parent / "link"  # beside the drafts, never in one
    for entry in entries:
        same = known.get(entry.hash)
        if same is None or same.size_bytes != entry.size_bytes:
            continue
        mine = os.path.join(folder, entry.path)
        theirs = os.path.join(previous, "data", same.path)
        try:
            _link_over(theirs, mine, str(spare), entry.size_bytes)
        except OSError as error:
            if error.errno not in _KEEP_OWN_BYTES:
                raise


def _link_over(theirs: str, mine: str, spare: str, size: int) -> None:
    before = os.lstat(theirs)
    if before.st_size != size or os.path.samefile(theirs, mine):
        return
    Path(spare).unlink(missing_ok=True)
    os.link(theirs, spare, follow_symlinks=False)
    os.replace(spare, mine)


def newest(catalog: Catalog, layout: Layout, volume: str, partition: str | None) -> Path | None:
    """The folder of the version whose files a new one is likely to share."""
    same = [version for version in catalog.live(volume) if version.partition == partition]
    return layout.version(volume, same[-1].number) if same else None


def reserve(layout: Layout, volume: str) -> int:
    """Take the next number of a volume by making its folder; nobody else gets it, now or later."""
    home = layout.volume(volume)
    home.mkdir(parents=True, exist_ok=True)
    number = max(layout.numbers(volume), default=0) + 1
    while True:
        try:
            (home / str(number)).mkdir()
            return number
        except FileExistsError:
            number += 1


def assemble(layout: Layout, catalog: Catalog, drafts: Sequence[Draft], *, record: Record) -> list[Placed]:
    """Give each draft its manifest, number and record; make all of it durable."""
    manifests = [
        freeze(layout, draft, previous=newest(catalog, layout, draft.volume, draft.partition))
        for draft in drafts
    ]
    numbers = [reserve(layout, draft.volume) for draft in drafts]
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
        write_over(draft.folder.parent / "MANIFEST", text)
        write_over(draft.folder.parent / "RECORD.json", wire.dumps(own))
    return [
        Placed(folder=draft.folder.parent.name, output=draft.output, volume=draft.volume, number=number)
        for draft, number in zip(drafts, numbers, strict=True)
    ]


def decide(layout: Layout, plan: Sequence[Placed], *, ready: Path) -> None:
    """Sync everything once and write PLAN: from here on the commit is only renames."""
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


def publish(layout: Layout, plan: Sequence[Placed], *, ready: Path, job_id: str) -> None:
    """Rename every version to its place and then, in one step, make them all visible."""
    for placed in plan:
        target = layout.version(placed.volume, placed.number)
        try:
            (ready / placed.folder).rename(target)
        except FileNotFoundError:  # it is there since before a crash
            if not (target / "MANIFEST").is_file():
                raise StoreError(
                    f"{target} was promised to job {job_id} and its files are gone: run it again"
                ) from None
        sync_folder(target.parent)
    outputs: dict[str, list[tuple[str, int]]] = {}
    for placed in plan:
        outputs.setdefault(placed.output, []).append((placed.volume, placed.number))
    write_whole(layout.commit(job_id), json.dumps({"outputs": outputs, "at": time.time()}))


def draft_copy(ready: Path, source: Path, *, volume: str, partition: str | None) -> Draft:
    """Copy a folder or file of somebody's into a draft, sharing blocks where the file system can.

    :raises StoreError: it is not there, is empty, or holds links or devices.
    """
    data = ready / "0" / "data"
    data.mkdir(parents=True)
    if source.is_file():
        copy_file(str(source.resolve()), str(data / check_path(source.name, output=source.name)))
    elif source.is_dir():
        for entry in files_of(source):
            path = check_path(os.path.relpath(entry.path, source), output=str(source))
            if not entry.is_file(follow_symlinks=False):
                raise StoreError(
                    f"{entry.path} is a link or a device: a version holds regular files only; copy it there"
                )
            (data / path).parent.mkdir(parents=True, exist_ok=True)
            copy_file(entry.path, str(data / path))
    else:
        raise StoreError(f"{source} is no folder and no file: name what is to be put into {volume}")
    base = len(str(data)) + 1
    files = {entry.path[base:]: entry.stat(follow_symlinks=False).st_size for entry in files_of(data)}
    if not files:
        raise StoreError(f"{source} holds no file: a version holds one or more")
    return Draft(folder=data, output="data", volume=volume, partition=partition, source="", files=files)
