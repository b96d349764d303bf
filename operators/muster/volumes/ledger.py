"""The job ledger of a folder store: one folder per job, every file replaced whole."""

from __future__ import annotations

import json
import logging
import os
import time
import typing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from io import FileIO
from pathlib import Path

from muster.core import wire
from muster.core.data import EVERY_PARTITION
from muster.core.errors import Conflict, Corrupt, NotFound, SpecError
from muster.core.extensions import used
from muster.core.holding import write_all
from muster.core.job import JobSpec
from muster.core.names import check_new_partition
from muster.core.origin import Origin
from muster.core.series import Series, segments
from muster.core.status import JobState, JobStatus
from muster.core.tally import Tally
from muster.volumes.base import LogTime
from muster.volumes.durability import (
    TEMPORARY,
    locked,
    read_whole,
    text_of,
    translated,
    write_whole,
)
from muster.volumes.layout import Layout
from muster.volumes.series import NAME as SERIES, SeriesFile, note_time, read_series, read_times
from muster.volumes.task_notes import TaskNotes
from muster.volumes.tree import make_whole

_OPEN_SERIES = 64
_TALLY = "tally.json"

_LOG = logging.getLogger(__name__)


class FolderLedger(TaskNotes):
    """Per job_id: ``spec.json``, ``status.json``, ``owner``, ``tally.json``, ``log``, ``log.times`` and ``series``."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self._layout = layout
        self._series = lru_cache(_OPEN_SERIES)(self.series_file)
        self._origins: dict[str, Origin] = {}  # they never change
        self._unread = set[Path]()  # tallies of which that was told
        self._entered: dict[str, int] = {}  # nor does the time at which a job was entered

    def create(self, job_id: str, spec: JobSpec, *, owner: str | None = None, kept: str = "") -> bool:
        """Enter a job; see :meth:`muster.volumes.protocols.Ledger.create`."""
        folder = self._layout.job(job_id)
        if not folder.is_dir():
            for output in spec.outputs.values():
                if output.partition not in (None, EVERY_PARTITION):
                    check_new_partition(output.partition)
        with translated(f"enter job {job_id}"):
            if not folder.is_dir() and self._enter(folder, job_id, spec, owner, kept):
                return True
        if json.loads(wire.dumps(self.spec(job_id))) != json.loads(wire.dumps(spec)):
            raise Conflict(
                f"job {job_id} is there already with another spec (it was {self.spec(job_id).name}): "
                "a job_id names one job for ever, so submit under a new one"
            )
        return False

    def spec(self, job_id: str) -> JobSpec:
        """Return a job's spec."""
        path = self.check(job_id) / "spec.json"
        with _readable(path):
            return wire.loads(JobSpec, read_whole(path))

    def status(self, job_id: str) -> JobStatus:
        """Return the status that was recorded last, with the present owner."""
        folder = self.check(job_id)
        with _readable(folder / "status.json") as path:
            data = read_whole(path)
            status = _status(data) if data else None
        if status is None:  # a power cut hit while it was replaced
            submitted = (folder / "spec.json").stat().st_mtime
            status = JobStatus(job_id=job_id, state=JobState.QUEUED, submitted=submitted, alive=False)
        return replace(status, owner=_owner(folder))

    def update(self, status: JobStatus, *, owner: str | None = None) -> bool:
        """Record a status if `owner`, where given, owns the job; a status after the job's end is dropped."""
        folder = self.check(status.job_id)
        with translated(f"record the status of job {status.job_id}"), locked(folder / "lock"):
            if owner not in (None, _owner(folder)):
                return False
            if not self.status(status.job_id).state.ended:
                if status.state.ended:
                    tally = self.tally(status.job_id).ended(status.ended or time.time())
                    write_whole(folder / _TALLY, wire.dumps(tally), durable=False)
                    self._tell(status, tally, recorded=False)
                text = wire.dumps(replace(status, owner=None))
                # Only an end is synced: after a power cut nothing of an unfinished job runs any more.
                write_whole(folder / "status.json", text, durable=status.state.ended)
                if status.state.ended:
                    self._tell(status, tally, recorded=True)
            return True

    def tally(self, job_id: str) -> Tally:
        """Return for whom a job runs, and when it held its resources; one that cannot be read keeps no job from its end."""
        path = self.check(job_id) / _TALLY
        try:
            return wire.loads(Tally, read_whole(path))
        except FileNotFoundError:
            return Tally()
        except (SpecError, OSError) as error:  # a power cut hit, or a later release wrote it
            if path not in self._unread:
                self._unread.add(path)
                said = "the use of job %s is counted from now on alone: %s cannot be read (%s)"
                _LOG.warning(said, job_id, path, error)
            return Tally()

    def note_tally(self, job_id: str, tally: Tally) -> None:
        """Add to a job's tally what a writer knows."""
        folder = self.check(job_id)
        with translated(f"note the use of job {job_id}"), locked(folder / "lock"):
            status, before = self.status(job_id), self.tally(job_id)
            now = before.longer(tally) if status.state.ended else before.merged(tally)
            if now == before:
                return
            write_whole(folder / _TALLY, wire.dumps(now), durable=False)
            if status.state.ended or (now.times and not before.times):
                self._tell(status, now, recorded=not status.state.ended)

    def last_sign(self, job_id: str) -> float:
        """Return when a job's supervisor or workers wrote last: a worker tells its use every ten seconds.

        What the next try writes before they start, such as who owns the job, is no sign of it.
        """
        folder, signs = self.check(job_id), list[float]()
        for name in ("log", SERIES, "status.json"):
            with suppress(FileNotFoundError):
                signs.append((folder / name).stat().st_mtime)
        return max(signs) if signs else (folder / "spec.json").stat().st_mtime

    def _tell(self, status: JobStatus, tally: Tally, *, recorded: bool) -> None:
        """Tell the extensions that count; what one of them cannot write keeps no job from its end."""
        series = partial(self.series, status.job_id)
        for told in used(lambda each: each.tallied):
            try:
                told(self._layout.root, self.spec(status.job_id), status, tally, series, recorded)
            except Exception:
                _LOG.exception("the use of job %s is not counted", status.job_id)

    @contextmanager
    def owned(self, job_id: str, *, owner: str) -> Iterator[bool]:
        """Keep a job's owner unchanged in the block; yield whether it is `owner`."""
        folder = self.check(job_id)
        with translated(f"look who owns job {job_id}"), locked(folder / "lock"):
            yield _owner(folder) == owner

    def own(self, job_id: str, *, owner: str, expected: str | None) -> bool:
        """Set the owner if it is `expected` now."""
        folder = self.check(job_id)
        with translated(f"own job {job_id}"), locked(folder / "lock"):
            if _owner(folder) != expected:
                return False
            write_whole(folder / "owner", owner)
            return True

    def append(self, job_id: str, data: bytes) -> None:
        """Add whole lines to the log; a line that a crash cut is ended first.

        What workers say of their replicas' use gets into the series alone.
        """
        if not data:
            return
        folder = self.check(job_id)
        # Under the lock: half of another writer's line looks like one that a crash cut.
        with (
            translated(f"write the log of job {job_id}"),
            locked(folder / "lock"),
            (folder / "log").open("ab+", buffering=0) as log,
        ):
            size = log.seek(0, os.SEEK_END)
            lines = b"".join(part for part, logged in segments(data) if logged)
            if lines:
                _add_whole(log, lines, size=size)
                note_time(folder, before=size)
            self._series(job_id).take(data, before=size, after=log.seek(0, os.SEEK_END))

    def series(self, job_id: str) -> Series:
        """Return the series of a job; also of one that gc deleted, as long as one of its versions has data."""
        folder = self._layout.job(job_id)
        if not folder.is_dir() and (kept := self._layout.series(job_id)).is_file():
            return read_series(kept)
        return read_series(self.check(job_id) / SERIES)

    def series_file(self, job_id: str) -> SeriesFile:
        """Return the series of a job for the process that writes its log."""
        return SeriesFile(self.check(job_id), started=lambda: self.status(job_id).started)

    def read(self, job_id: str, *, after: int = 0, limit_bytes: int = 1 << 20) -> tuple[bytes, int]:
        """Return whole lines from offset `after`; a line longer than the limit comes in pieces."""
        try:
            with (self.check(job_id) / "log").open("rb") as log:
                log.seek(after)
                data = log.read(limit_bytes)
        except FileNotFoundError:
            return b"", after
        end = data.rfind(b"\n") + 1
        if not end and len(data) == limit_bytes:
            end = limit_bytes
        return data[:end], after + end

    def log_bytes(self, job_id: str) -> int:
        """Return the length of the log now."""
        try:
            return (self.check(job_id) / "log").stat().st_size
        except FileNotFoundError:
            return 0

    def log_times(self, job_id: str, *, after: int = 0, before: int | None = None) -> list[LogTime]:
        """Return when the lines of a log were stored."""
        return read_times(self.check(job_id), after=after, before=before)

    def jobs(self) -> list[str]:
        """Return every job_id, oldest first."""
        before, entered = self._entered, dict[str, int]()
        for name in os.listdir(self._layout.root / "jobs"):  # noqa: PTH208 - a Path for each would be most of it
            if name in before:
                entered[name] = before[name]
            elif not name.startswith(TEMPORARY):
                with suppress(FileNotFoundError, NotADirectoryError):  # gc deletes it; a stray file is no job
                    entered[name] = (self._layout.root / "jobs" / name / "spec.json").stat().st_mtime_ns
        self._entered = entered
        return sorted(entered, key=lambda name: (entered[name], name))

    def statuses(self, job_ids: Sequence[str]) -> list[JobStatus]:
        """Return the statuses of many jobs; jobs that cannot be found or read are left out."""
        found = []
        for job_id in job_ids:
            with suppress(NotFound, Corrupt):
                found.append(self.status(job_id))
        return found

    def specs(self, job_ids: Sequence[str]) -> dict[str, JobSpec]:
        """Return the specs of many jobs; jobs that cannot be found or read are left out."""
        found = {}
        for job_id in job_ids:
            with suppress(NotFound, Corrupt):
                found[job_id] = self.spec(job_id)
        return found

    def origins(self, *, dag_id: str = "", run_id: str = "") -> dict[str, Origin]:
        """Return the task of every job that a Dag submitted, by job_id, oldest first."""
        found = {}
        for job_id in self.jobs():
            with suppress(NotFound, Corrupt):
                found[job_id] = self._origins.get(job_id) or self._origin(job_id)
        self._origins = found  # without the jobs that gc deleted
        return {
            job_id: origin
            for job_id, origin in found.items()
            if origin.run_id and dag_id in ("", origin.dag_id) and run_id in ("", origin.run_id)
        }

    def _origin(self, job_id: str) -> Origin:
        path = self._layout.job(job_id) / "spec.json"
        with _readable(path):
            return typing.cast("Origin", wire.loads_field(JobSpec, "origin", read_whole(path)))

    def _enter(self, folder: Path, job_id: str, spec: JobSpec, owner: str | None, kept: str) -> bool:
        def fill(new: Path) -> None:
            write_whole(new / "spec.json", wire.dumps(spec))
            now = time.time_ns()  # finer than file times, for jobs entered within one tick
            os.utime(new / "spec.json", ns=(now, now))
            status = JobStatus(job_id=job_id, state=JobState.QUEUED, submitted=now / 1e9)
            write_whole(new / "status.json", wire.dumps(replace(status, alive=not kept, reason=kept)))
            if owner is not None:
                write_whole(new / "owner", owner)

        return make_whole(folder, fill)

    def check(self, job_id: str) -> Path:
        """Return a job's folder. :raises NotFound: no such job."""
        folder = self._layout.job(job_id)
        if not folder.is_dir():
            raise NotFound(f"no job {job_id} in this store: `muster jobs ls` lists what is there")
        return folder


def _owner(folder: Path) -> str | None:
    return text_of(folder / "owner")


def _add_whole(log: FileIO, lines: bytes, *, size: int) -> None:
    """Add all of `lines` behind the log's `size` bytes, or nothing: then the caller adds them again."""
    torn = size > 0 and os.pread(log.fileno(), 1, size - 1) != b"\n"
    try:
        write_all(log.fileno(), b"\n" * torn + lines + b"\n" * (not lines.endswith(b"\n")))
    except OSError:
        log.truncate(size)
        raise


@contextmanager
def _readable(path: Path) -> Iterator[Path]:
    """Raise Corrupt, with advice, for a document that is missing or cut."""
    try:
        yield path
    except FileNotFoundError as error:
        raise Corrupt(f"{path} is missing: take {path.parent} away, nothing else can use it") from error
    except SpecError as error:
        raise Corrupt(
            f"{path} cannot be read: {error}; put it back as it was, or take {path.parent} away: until then "
            "the inputs of the job are unknown, and gc deletes nothing"
        ) from error


@lru_cache(4096)
def _status(data: bytes) -> JobStatus:
    """Parse a status, cached by its bytes: hubs read each job every second."""
    return wire.loads(JobStatus, data)
