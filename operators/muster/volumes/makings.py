"""Notes what each commit was made from, so that a job that would make the same versions uses the existing ones.

::

    STORE/made/<job_id>.json                   the spec of a job that committed; may be deleted
    STORE/made/keys/<key>/<at>.<job_id>        the jobs of one key (:mod:`muster.core.comparison`), by their time
    STORE/made/claims/<key>                    the job that makes what several runs want

A commit writes two small files; a search lists one small folder. All of this may be deleted: then earlier versions are
made again. Only the commit record and RECORD.json decide whether a version exists and what it was made from.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from muster.core import wire
from muster.core.address import Address, pinned
from muster.core.comparison import key_of, task_key_of
from muster.core.errors import Corrupt, NotFound, SpecError
from muster.core.job import JobSpec
from muster.core.names import check_job_id
from muster.core.origin import Origin
from muster.core.status import JobState
from muster.volumes.base import Made, Record, TaskEnd, Version
from muster.volumes.catalog import Catalog
from muster.volumes.commit_records import CommitRecord, read_commit
from muster.volumes.durability import (
    locked,
    newest_first,
    prune,
    read_whole,
    text_of,
    translated,
    write_whole,
)
from muster.volumes.layout import Layout
from muster.volumes.marks import Marks
from muster.volumes.task_notes import TaskNotes

_MOST_ENTRIES = 50  # of one key; older ones go
_USED = "USED"


class FolderMakings:
    """The index of one store."""

    def __init__(self, layout: Layout, catalog: Catalog, marks: Marks) -> None:
        self._layout, self._catalog, self._marks = layout, catalog, marks

    def made(self, key: str = "", *, limit: int = 20) -> list[Made]:
        """See :meth:`muster.volumes.protocols.Makings.made`."""
        live = (self._live(job_id) for job_id in (self._jobs_of(key) if key else self._jobs()))
        return list(islice((made for made in live if made is not None), limit))

    def use(self, job_id: str, *, by: Origin) -> None:
        """See :meth:`muster.volumes.protocols.Makings.use`."""
        with translated(f"use what job {job_id} made"), self._marks.steady():
            made = self._live(job_id)
            if made is None:
                raise NotFound(f"what job {job_id} made is not live any more: it is made again")
            now = time.time()
            for wanted in map(Address.parse, made.addresses):
                path = self._layout.version(wanted.volume, int(wanted.value)) / _USED
                write_whole(path, f"{now:.3f}", durable=False)
            TaskNotes(self._layout).end_task(
                TaskEnd(
                    origin=by,
                    began=now,
                    at=now,
                    state=JobState.SUCCEEDED,
                    kept_of=job_id,
                    outputs=made.outputs,
                ),
            )

    def used(self, address: str) -> float:
        """See :meth:`muster.volumes.protocols.Makings.used`."""
        return _used(self._layout, self._catalog.one(address))

    def forget(self, job_id: str) -> bool:
        """See :meth:`muster.volumes.protocols.Makings.forget`."""
        with translated(f"forget what job {job_id} was made from"):
            path = self._spec(job_id)
            there = path.is_file()
            path.unlink(missing_ok=True)
            return there

    def claim(self, key: str, *, job_id: str, expected: str | None = None) -> str:
        """See :meth:`muster.volumes.protocols.Makings.claim`."""
        path = self._room("claims") / _hex(key)
        with translated(f"claim {key} for job {job_id}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with locked(self._room("claims.lock")):
                holder = text_of(path)
                if holder in (None, "", expected, job_id):
                    write_whole(path, check_job_id(job_id), durable=False)
                    return job_id
                return str(holder)

    def _jobs_of(self, key: str) -> Iterator[str]:
        for entry in newest_first(self._room("keys") / _hex(key)):
            yield entry.name.partition(".")[2]

    def _jobs(self) -> list[str]:
        keys = self._room("keys")
        entries = {
            path.name for folder in (keys.iterdir() if keys.is_dir() else ()) for path in newest_first(folder)
        }
        return [name.partition(".")[2] for name in sorted(entries, reverse=True)]

    def _live(self, job_id: str) -> Made | None:
        """What a job made, if all its versions exist and none is retired or damaged."""
        try:
            spec = wire.loads(JobSpec, read_whole(self._spec(job_id)))
            commit = read_commit(self._layout, job_id)
            if commit is None or not commit.places:
                return None
            if not all(map(self._is_live, commit.places)):
                return None
            record = self._catalog.record_of(*commit.places[0])
        except (OSError, SpecError, Corrupt, NotFound):  # forgotten, dropped, or of a later release
            return None
        return _made(job_id, spec, commit, record) if record.is_of(spec, job_id) else None

    def _is_live(self, place: tuple[str, int]) -> bool:
        version = self._catalog.readable(*place)
        return version is not None and version.retired is None

    def _room(self, name: str) -> Path:
        return self._layout.root / "made" / name

    def _spec(self, job_id: str) -> Path:
        return self._room(f"{check_job_id(job_id)}.json")


def remember(layout: Layout, job_id: str, spec: JobSpec, plan: Sequence[object]) -> None:
    """Note what a commit is made from, before it becomes visible. If the commit then fails, the note is ignored."""
    with suppress(OSError, Corrupt):  # without it the same is made again some time
        if plan:
            _remember(layout, job_id, spec)


def _remember(layout: Layout, job_id: str, spec: JobSpec) -> None:
    root = layout.root / "made"
    root.mkdir(exist_ok=True)
    write_whole(root / f"{check_job_id(job_id)}.json", wire.dumps(spec), durable=False)
    name = f"{int(time.time() * 1000):015d}.{job_id}"
    for key in {key_of(spec), task_key_of(spec.origin)}:
        folder = root / "keys" / key
        folder.mkdir(parents=True, exist_ok=True)
        if not any(path.name.endswith(f".{job_id}") for path in folder.iterdir()):  # before a crash
            (folder / name).touch()
        prune(folder, most=_MOST_ENTRIES)


def last_used(layout: Layout, version: Version) -> float:
    """Return when a version was made or last kept, whichever is later: gc counts its age from then."""
    return max(version.created, _used(layout, version))


def _used(layout: Layout, version: Version) -> float:
    text = text_of(layout.version(version.volume, version.number) / _USED) or ""
    with suppress(ValueError):
        return float(text)
    return 0.0


def tidy(layout: Layout) -> None:
    """Delete notes of commits that lost a version to gc, and claims older than a day whose job is gone."""
    root = layout.root / "made"
    for path in root.glob("*.json") if root.is_dir() else ():
        with suppress(OSError, Corrupt, SpecError):
            commit = read_commit(layout, path.stem)
            if commit is not None and not all(
                (layout.version(*place) / "data").is_dir() for place in commit.places
            ):
                path.unlink(missing_ok=True)
    for folder in (root / "keys").iterdir() if (root / "keys").is_dir() else ():
        for entry in folder.iterdir():
            if not (root / f"{entry.name.partition('.')[2]}.json").is_file():
                entry.unlink(missing_ok=True)
        with suppress(OSError):  # it holds entries
            folder.rmdir()
    for claim in (root / "claims").iterdir() if (root / "claims").is_dir() else ():
        with suppress(FileNotFoundError):
            job_id = text_of(claim) or ""
            if not (layout.root / "jobs" / job_id).is_dir() and claim.stat().st_mtime < time.time() - 86_400:
                claim.unlink(missing_ok=True)


def _made(job_id: str, spec: JobSpec, commit: CommitRecord, record: Record) -> Made:
    return Made(
        job_id=job_id,
        spec=spec,
        outputs={
            name: tuple(pinned(volume, number) for volume, number in places)
            for name, places in commit.outputs.items()
        },
        metrics=record.metrics,
        modules=record.modules,
        created=record.created,
    )


def _hex(key: str) -> str:
    if not key or set(key) - set("0123456789abcdef"):
        raise SpecError(f"key {key!r:.60}: expected hex digits")
    return key
