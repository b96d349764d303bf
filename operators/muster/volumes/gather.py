"""Gathers the sealed files of replicas into drafts: the folders that a commit makes versions of.

Everything here follows from the seals alone, so a second call after a crash has the same result.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from muster.core.advice import one_replica
from muster.core.data import CHECKPOINTS, EVERY_PARTITION, Pinned
from muster.core.errors import BadOutput, EmptyOutput, SpecError, StoreError
from muster.core.job import JobSpec
from muster.core.kept import Odd, follow, look, refusal
from muster.core.names import check_new_partition
from muster.core.replica import PartManifest
from muster.core.text import has_control
from muster.volumes.base import Staging
from muster.volumes.durability import rename
from muster.volumes.manifest import Entry
from muster.volumes.tree import (
    copy_file,
    graft,
    held_files_of,
    make_folders,
    own_bytes,
    remove,
    unlock,
)

_NOT_PLAIN = re.compile(r"(?:\A|/)\.{0,2}(?:/|\Z)")


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A version before its commit, in a folder of its own on the store's file system.

    :param source: the folder below each replica's folder from which it is gathered.
    :param files: the size of every path.
    :param base: the version that it begins with. `carried`: the files that it takes over from there.
    """

    folder: Path
    output: str
    volume: str
    partition: str | None
    source: str
    files: Mapping[str, int]
    base: Pinned | None = None
    carried: Mapping[str, Entry] = field(default_factory=dict)


def union(parts: Sequence[PartManifest], spec: JobSpec) -> dict[str, dict[str, int]]:
    """Join the seals of all replicas: per output the size of every path.

    :raises StoreError: two replicas wrote the same path, an output is unknown or empty, a path leaves it, or an output holds
        what no version keeps.
    """
    _refuse_odd(parts)
    sizes: dict[str, dict[str, int]] = {output: {} for output in spec.staged}
    owners: dict[tuple[str, str], str] = {}
    for part in parts:
        replica = f"{part.role}-{part.index}"
        for output, files in part.files.items():
            if output not in sizes:
                raise StoreError(f"replica {replica} sealed {output!r:.80}, an output the job does not have")
            for path in files:
                check_path(path, output=output)
            # of one replica all files are its own: of a million the names would fill the memory
            for path in files if len(parts) > 1 else ():
                other = owners.setdefault((output, path), replica)
                if other != replica:
                    raise BadOutput(f"{_both(other, replica, path, output)}; {one_replica(spec)}")
            sizes[output].update(files)
    for output, files in sizes.items():
        if not files and spec.base_of(output) is None:
            raise EmptyOutput(f"output {output!r} is empty: the job wrote no file into its folder")
        if len(parts) > 1:
            _refuse_file_in_folders_place(output, files, owners)
    return sizes


def _refuse_odd(parts: Sequence[PartManifest]) -> None:
    if refused := [each for part in parts for each in part.refused]:
        raise BadOutput("; ".join(refused))


def _refuse_file_in_folders_place(
    output: str, files: Mapping[str, int], owners: Mapping[tuple[str, str], str]
) -> None:
    for path, replica in ((path, owners[output, path]) for path in files):
        folder = path
        while folder := folder.rpartition("/")[0]:
            if folder in files:
                raise BadOutput(_both(owners[output, folder], replica, folder, output))


def _both(first: str, second: str, path: str, output: str) -> str:
    return (
        f"replicas {first} and {second} both wrote {path!r:.200} of output {output!r}: "
        "let one of them write it, or put the rank into its name"
    )


def check_path(path: str, *, output: str) -> str:
    """Return `path`, plain and below its output, as one line of a manifest can hold it.

    :raises StoreError: it leaves the folder, or holds control characters or bytes that are not UTF-8.
    """
    if _NOT_PLAIN.search(path):
        raise BadOutput(f"output {output!r} holds {path!r:.200}, which is no plain path below it")
    if has_control(path):
        raise BadOutput(
            f"output {output!r} holds {path!r:.200}: control characters and bytes that are not UTF-8 "
            "cannot be in a file's name; rename it"
        )
    return path


def plan_drafts(ready: Path, spec: JobSpec, sizes: Mapping[str, Mapping[str, int]]) -> list[Draft]:
    """Return the drafts of the sealed files: one per output, or one per top-level folder of it; and one of the checkpoints.

    They follow from the seals alone, so a second call after a crash returns the same. An output with a base of which the job wrote nothing
    has none.
    """
    wanted: list[tuple[str, str, str | None, Mapping[str, int]]] = []
    for output, files in sizes.items():
        partition = spec.outputs[output].partition
        if files and partition == EVERY_PARTITION:
            below = _by_partition(output, files)
            wanted += [(output, f"{output}/{name}", name, inner) for name, inner in below.items()]
        elif files:
            wanted.append((output, output, partition, files))
    if CHECKPOINTS in spec.outputs:
        wanted.append((CHECKPOINTS, CHECKPOINTS, spec.outputs[CHECKPOINTS].partition, {}))
    return [
        Draft(
            folder=ready / str(k) / "data",
            output=output,
            volume=spec.outputs[output].volume,
            partition=partition,
            source=source,
            base=spec.base_of(output),
            files=files,
        )
        for k, (output, source, partition, files) in enumerate(wanted)
    ]


def give_back_checkpoints(staging: Staging, drafts: Sequence[Draft]) -> None:
    """Move the checkpoints back from the draft of a commit that failed: the task's next job may go on from them."""
    for draft in drafts:
        if draft.output == CHECKPOINTS and draft.folder.is_dir():
            unlock(draft.folder)
            _break_links(draft.folder)
            graft(draft.folder, staging.checkpoints)


def _break_links(folder: Path) -> None:
    """Give files bytes of their own: the commit may have shared them with a version, which the next job could change by that link."""
    for _, entry in held_files_of(folder):
        if entry.stat(follow_symlinks=False).st_nlink > 1:
            try:
                own_bytes(entry.path, spare=str(folder.parent / "spare"))
            except OSError:  # a full disk: better a checkpoint less
                Path(entry.path).unlink()


def gather(staging: Staging, drafts: Sequence[Draft], parts: Sequence[PartManifest]) -> list[Draft]:
    """Move the replicas' files, and the checkpoints, into the drafts, and return these; it can be called again after a crash."""
    _gather_outputs(staging, [draft for draft in drafts if draft.output != CHECKPOINTS], parts)
    gathered = [
        _gather_checkpoints(staging, draft) if draft.output == CHECKPOINTS else draft for draft in drafts
    ]
    return [draft for draft in gathered if draft is not None]


def _gather_outputs(staging: Staging, drafts: Sequence[Draft], parts: Sequence[PartManifest]) -> None:
    replicas = [(staging.root / f"{part.role}-{part.index}", part.files) for part in parts]
    for output in sorted({draft.output for draft in drafts}):
        for replica, files in replicas:
            _refuse_link(replica / output)
            # a copy of an input has read-only folders, which could be neither moved nor emptied
            if unlock(replica / output):
                _refuse_stray(replica / output, files.get(output, {}), output)
    for draft in drafts:
        draft.folder.parent.mkdir(parents=True, exist_ok=True)
        for replica, _ in replicas:
            graft(replica / draft.source, draft.folder)


def _gather_checkpoints(staging: Staging, draft: Draft) -> Draft | None:
    """Move the checkpoints into their draft, and return it with the files that are there; it can be called again.

    None where there is none, and the output has a base.

    Replicas share the folder, so none of them seals it: it is complete once all have sealed.

    :raises BadOutput: there is no checkpoint, or something that no version keeps.
    """
    draft.folder.parent.mkdir(parents=True, exist_ok=True)
    _refuse_link(staging.checkpoints)
    # before they move: where a rename is a copy, no link can be moved
    if unlock(staging.checkpoints) and (odd := follow(str(staging.checkpoints), rename=rename)):
        raise BadOutput(refusal("output 'checkpoints'", odd))
    graft(staging.checkpoints, draft.folder)
    files = {
        check_path(path, output=CHECKPOINTS): entry.stat(follow_symlinks=False).st_size
        for path, entry in held_files_of(draft.folder)
    }
    if not files and draft.base is not None:
        return None
    if not files:
        raise EmptyOutput(
            "output 'checkpoints' is empty: the job wrote no file into its folder of checkpoints"
        )
    return replace(draft, files=files)


def _by_partition(output: str, files: Mapping[str, int]) -> dict[str | None, Mapping[str, int]]:
    """Return the files of each partition, in one pass: there may be thousands of each."""
    found: dict[str | None, dict[str, int]] = {name: {} for name in _partitions(output, files)}
    for path, size in files.items():
        name, _, inner = path.partition("/")
        found[name][inner] = size
    return dict(found)


def _partitions(output: str, files: Mapping[str, int]) -> list[str]:
    for path in files:
        if "/" not in path:
            raise BadOutput(
                f"output {output!r} is split by folder into partitions, but {path!r:.200} lies in none: "
                "write it into a folder that is named after its partition"
            )
    names = sorted({path.partition("/")[0] for path in files})
    for name in names:
        try:
            check_new_partition(name)
        except SpecError as error:
            raise BadOutput(
                f"output {output!r}: folder {name!r:.80} cannot be a partition: {error}"
            ) from error
    return names


def _refuse_link(folder: Path) -> None:
    for link in (folder, folder.parent):
        if link.is_symlink():
            raise StoreError(f"{link} was replaced by a link to {link.readlink()}: nothing is committed")


def _refuse_stray(folder: Path, sealed: Container[str], output: str) -> None:
    """Refuse anything but regular files, and files written after the replica's seal."""
    for path, entry in held_files_of(folder):
        if not entry.is_file(follow_symlinks=False):
            raise StoreError(
                f"output {output!r} holds {path!r:.200}, which is no regular file: write files only"
            )
        if path not in sealed:
            raise StoreError(
                f"output {output!r} holds {path!r:.200}, which came after the seal: "
                "end background processes before the job ends"
            )


def draft_copy(ready: Path, source: Path, *, volume: str, partition: str | None) -> Draft:
    """Copy a user's folder or file into a draft, sharing blocks where the file system can.

    :raises StoreError: there is no `source`, is empty, or holds what no version keeps.
    """
    data = ready / "0" / "data"
    remove(data)  # a kill may have left a part of it
    data.mkdir(parents=True)
    sizes = {}
    for name, path in sources(source, volume=volume).items():
        make_folders((data / name).parent)
        if path.is_dir():
            make_folders(data / name)
        else:
            copy_file(str(path), str(data / name))
            sizes[name] = (data / name).stat().st_size
    return Draft(folder=data, output="data", volume=volume, partition=partition, source="", files=sizes)


def sources(source: Path, *, volume: str) -> dict[str, Path]:
    """Return every file and every empty folder of a user's folder, or the one file, by its path in a version of `volume`.

    A link within the folder is the file or folder that it names.

    :raises StoreError: there is no `source`, it holds no file, or something that no version keeps.
    """
    if source.is_file():
        return {check_path(source.name, output=source.name): source.resolve()}
    if not source.is_dir():
        raise StoreError(f"{source} is no folder and no file: name what is to be put into {volume}")
    top = source.resolve()
    if odd := sorted(look(str(top))):
        raise StoreError(refusal(str(source), odd))
    found = dict(_sources(source, str(top)))
    if not any(path.is_file() for path in found.values()):
        raise StoreError(f"{source} holds no file: a version holds one or more")
    return found


def _sources(source: Path, top: str) -> Iterator[tuple[str, Path]]:
    waiting: list[tuple[str, str, tuple[str, ...]]] = [("", top, ())]
    while waiting:
        inner, folder, came_from = waiting.pop()
        names = sorted(os.listdir(folder))  # noqa: PTH208 - names are all that is wanted
        if inner and not names:
            yield inner, Path(folder)
        for name in names:
            path, below = f"{folder}/{name}", f"{inner}/{name}" if inner else name
            real = os.path.realpath(path) if os.path.islink(path) else path  # noqa: PTH114 - text
            route = came_from if real == path else (*came_from, folder)
            if not os.path.isdir(real):  # noqa: PTH112 - text
                yield below, Path(real)
            elif real != path and any(f"{each}/".startswith(f"{real}/") for each in route):
                raise StoreError(refusal(str(source), [Odd(below, "a link in a circle")]))
            else:
                waiting.append((below, real, route))
