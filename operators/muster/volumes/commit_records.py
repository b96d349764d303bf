"""Commit records: which versions are committed, by which job, and with which RECORD.json.

``commits/<job_id>.json`` holds ``{"outputs": {output: [[volume, number], …]}, "records": {"volume@number":
"b3:…"}, "at": seconds}``, and ``"kept"`` like "outputs"
with versions that were there before: the results of outputs to which the job had nothing to add. A version is committed exactly if the
outputs of a commit record name it. Its own RECORD.json
only says which commit record to read, and is checked against it. Records of the first releases lack
"records".

A number that is reserved and not yet committed has a mark beside its folder, ``.<n>``, which names its job.
The commit removes the mark last. So a version without a mark is committed, whatever its RECORD.json says,
and no list of all commit records is needed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.core.errors import Corrupt, SpecError
from muster.volumes.base import Record
from muster.volumes.durability import link_text, read_whole, write_whole
from muster.volumes.layout import Layout
from muster.volumes.manifest import digest_of

Place = tuple[str, int]  # volume, number

REPLACED = "replaced"
"""The folder with marks of commits that retire a version (:mod:`muster.volumes.commits`)."""

_CONTENT = ("RECORD.json", "MANIFEST", "data", "RETIRED")


@dataclass(frozen=True)
class CommitRecord:
    """One commit: the versions of each output, and where known the digest of each version's RECORD.json.

    :param kept: versions that were there before, and that are the results of further outputs.
    """

    outputs: Mapping[str, list[Place]]
    records: Mapping[Place, str] = field(default_factory=dict)
    at: float = 0.0
    kept: Mapping[str, list[Place]] = field(default_factory=dict)

    @property
    def results(self) -> dict[str, list[Place]]:
        """The result of each output, made or kept."""
        return {**self.outputs, **self.kept}

    @property
    def places(self) -> list[Place]:
        """All versions in it."""
        return [place for places in self.outputs.values() for place in places]


def read_commit(layout: Layout, job_id: str) -> CommitRecord | None:
    """Return a job's commit record, or None where it has not been committed. :raises Corrupt: it cannot be read."""
    path = layout.commit(job_id)
    try:
        document = json.loads(read_whole(path))
        outputs, kept = _places(document["outputs"]), _places(document.get("kept", {}))
        names = {f"{v}@{n}": (v, n) for places in outputs.values() for v, n in places}
        digests = document.get("records", {})
        records = {names[name]: str(text) for name, text in digests.items()}
        return CommitRecord(outputs, records, float(document.get("at", 0.0)), kept)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise Corrupt(f"{path} cannot be read: {flaw(error)}") from error


def flaw(error: Exception) -> str:
    """Say in words what is wrong with a document that its reader failed on."""
    return (
        "it is no JSON"
        if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError, RecursionError))
        else "a field is missing, or is not what it should be"
    )


def _places(outputs: Mapping[str, Any]) -> dict[str, list[Place]]:
    return {name: [(volume, int(number)) for volume, number in places] for name, places in outputs.items()}


def write_commit(layout: Layout, job_id: str, commit: CommitRecord, *, durable: bool = True) -> None:
    """Write a job's commit record, whole: now its versions are committed.

    :param durable: return only when it survives a power cut.
    """
    document = {
        "outputs": commit.outputs,
        "records": {f"{volume}@{number}": text for (volume, number), text in commit.records.items()},
        "at": commit.at or time.time(),
        **({"kept": commit.kept} if commit.kept else {}),
    }
    write_whole(layout.commit(job_id), json.dumps(document), durable=durable)


def committed(layout: Layout, job_id: str) -> dict[str, list[Place]] | None:
    """Return the results of a job's commit, per output, or None where it is not committed."""
    commit = read_commit(layout, job_id)
    return None if commit is None else commit.results


def check_record(text: bytes, record: Record, place: Place, commit: CommitRecord | None) -> None:
    """Check a version's RECORD.json against the commit record of the job that it names.

    :raises Corrupt: they differ, or the commit record does not name the version.
    """
    if commit is None or place not in commit.places:
        raise Corrupt(f"its RECORD.json names job {record.job_id}, which did not commit it")
    if digest_of(text) != commit.records.get(place, digest_of(text)):
        raise Corrupt("its RECORD.json was changed after the commit: the commit record has another digest")
    if (record.volume, record.number) != place:
        raise Corrupt(f"its RECORD.json is that of {record.volume}@{record.number}")


def holder(folder: Path) -> str | None:
    """Return the job that reserved a version's number; None where it is committed, or was never reserved."""
    claim = link_text(folder.with_name(f".{folder.name}"))
    return claim.rpartition(":")[0] if claim else None


def is_committed(layout: Layout, volume: str, number: int) -> bool:
    """Whether a version without a usable RECORD.json was committed; reads one commit record at most."""
    folder = layout.version(volume, number)
    if not has_content(folder):
        return False
    job_id = holder(folder)
    if job_id is None:
        return True
    try:
        commit = read_commit(layout, job_id)
    except (Corrupt, SpecError):
        return True  # unknown: nothing is deleted while fsck reports it
    return commit is not None and (volume, number) in commit.places


def has_content(folder: Path) -> bool:
    """Whether a number's folder holds anything of a version."""
    return any((folder / name).exists() for name in _CONTENT)


def retired(layout: Layout, folder: Path) -> str | None:
    """Return why the version in a folder is retired; None where it is live."""
    for place in (folder / "RETIRED", *committed_marks(layout, folder)):
        with suppress(FileNotFoundError):  # a mark may be taken away meanwhile
            return read_whole(place).decode()
    return None


def replaced_at(layout: Layout, folder: Path) -> float | None:
    """Return when a commit retired the version in a folder, in seconds since the epoch.

    None where it is live, or was retired by its address, which RETIRED says.
    """
    if (folder / "RETIRED").is_file():
        return None
    with suppress(FileNotFoundError):  # a mark was taken away meanwhile
        return min((mark.stat().st_mtime for mark in committed_marks(layout, folder)), default=None)
    return None


def committed_marks(layout: Layout, folder: Path) -> list[Path]:
    """Return the marks on a version of commits that are done, which retire it."""
    try:
        marks = list((folder / REPLACED).iterdir())
    except FileNotFoundError:
        return []
    return [mark for mark in marks if not mark.name.startswith(".") and layout.commit(mark.name).is_file()]


def all_commits(layout: Layout) -> Iterator[tuple[str, CommitRecord | Corrupt]]:
    """Yield every job that committed, with its commit record or the error in reading it."""
    for path in sorted((layout.root / "commits").glob("*.json")):
        try:
            commit = read_commit(layout, path.stem)
        except Corrupt as error:
            yield path.stem, error
        except (OSError, SpecError) as error:  # it cannot be read, or its name is no job_id
            yield path.stem, Corrupt(f"{path} cannot be read ({getattr(error, 'strerror', None) or error})")
        else:
            if commit is not None:
                yield path.stem, commit


def named(layout: Layout, volume: str) -> Iterator[int]:
    """Yield the numbers of a volume that commit records name, of whose versions nothing may be left; all records are read."""
    for _, commit in all_commits(layout):
        if not isinstance(commit, Corrupt):
            yield from (number for name, number in commit.places if name == volume)


def is_buried(folder: Path) -> bool:
    """Whether gc deleted the version's data."""
    return (folder / "TOMBSTONE").is_file() and not (folder / "data").is_dir()


def uncommitted(layout: Layout) -> Iterator[tuple[Path, str]]:
    """Yield the folders of interrupted commits, each with the job that reserved its number."""
    for volume in layout.volumes():
        for number in sorted(layout.taken(volume)):
            folder = layout.version(volume, number)
            job_id = holder(folder)
            if job_id is not None and has_content(folder) and not is_committed(layout, volume, number):
                yield folder, job_id
