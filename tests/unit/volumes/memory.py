"""A store in memory, the proof that the protocols ask for nothing but what they say.

Versions, code, jobs, pins and leases are dicts. Files are where a job or a caller has to see files: what an attempt
stages, and the copies that ``path`` and ``code`` hand out.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from blake3 import blake3

from muster.core import wire
from muster.core.address import Address, Select, pinned
from muster.core.comparison import key_of, task_key_of
from muster.core.data import CARRIED, CHECKPOINTS
from muster.core.errors import BadOutput, Conflict, MusterError, NotFound, SpecError, StoreError
from muster.core.job import DAY_SECONDS, JobSpec
from muster.core.names import (
    check_digest,
    check_job_id,
    check_label,
    check_partition,
    check_request,
    check_volume,
)
from muster.core.origin import Origin
from muster.core.replica import PartManifest
from muster.core.room import Room
from muster.core.series import Folding, Series, segments
from muster.core.status import JobState, JobStatus
from muster.core.tally import Tally
from muster.core.text import has_control
from muster.volumes import snapshot
from muster.volumes.base import (
    MOST_CHECKPOINTS,
    Checked,
    Collected,
    CollectionPlan,
    Held,
    LogPage,
    LogTime,
    Made,
    Record,
    RunNote,
    Saved,
    Staging,
    TaskEnd,
    UpkeepKind,
    UpkeepNote,
    Version,
)
from muster.volumes.fsck import Problem, Progress, Report, summary
from muster.volumes.gather import (
    Draft,
    check_path,
    gather,
    give_back_checkpoints,
    plan_drafts,
    sources,
    union,
)
from muster.volumes.listing import Listing, parse
from muster.volumes.manifest import Entry, render
from muster.volumes.retention import RetentionRules, why_kept
from muster.volumes.selection import by_digest, no_number, no_volume, nothing, select
from muster.volumes.tree import copy_file, copy_tree, held_files_of, lengthen, remove, unlock


@dataclass
class _Job:
    """One job of the ledger, and what it staged and committed."""

    spec: JobSpec
    status: JobStatus
    owner: str | None
    log: bytes = b""
    tally: Tally = field(default_factory=Tally)
    times: list[LogTime] = field(default_factory=list)
    folding: Folding = field(default_factory=lambda: Folding(time.time()))
    staging: Staging | None = None
    gone: bool = False
    made: dict[str, tuple[str, ...]] | None = None


@dataclass
class _Kept:
    """One version; `files` is None once gc deleted them."""

    record: Record
    entries: Mapping[str, Entry]
    files: dict[str, bytes] | None
    retired: str | None = None
    replaced: float | None = None
    pins: set[str] = field(default_factory=set)
    used: float = 0.0

    def retire(self, reason: str | None, *, replaced: float | None = None) -> None:
        self.retired, self.replaced = reason, replaced

    def version(self) -> Version:
        record, entries = self.record, self.entries.values()
        return Version(
            volume=record.volume,
            number=record.number,
            digest=record.digest,
            size_bytes=sum(entry.size_bytes for entry in entries),
            files=len(entries),
            created=record.created,
            partition=record.partition,
            retired=self.retired,
            pins=tuple(sorted(self.pins)),
        )


def _bases(spec: JobSpec, *, but: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The results of outputs to which a job added nothing."""
    bases = {name: spec.base_of(name) for name in spec.outputs if name not in but}
    return {name: (base.address,) for name, base in bases.items() if base is not None}


class MemoryLedger:
    """See :class:`muster.volumes.protocols.Ledger`."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._jobs: dict[str, _Job] = {}
        self._ends: list[TaskEnd] = []  # newest first
        self._runs: list[RunNote] = []
        self.kept: dict[str, Folding] = {}  # of jobs that gc deleted, while a version of theirs has data

    def job(self, job_id: str) -> _Job:
        """Return one job. :raises NotFound: there is none."""
        found = self._jobs.get(check_job_id(job_id))
        if found is None:
            raise NotFound(f"no job {job_id} in this store: `muster jobs ls` lists what is there")
        return found

    def create(self, job_id: str, spec: JobSpec, *, owner: str | None = None, kept: str = "") -> bool:
        with self._lock:
            if check_job_id(job_id) not in self._jobs:
                status = JobStatus(job_id=job_id, state=JobState.QUEUED, submitted=time.time())
                status = replace(status, alive=not kept, reason=kept)
                self._jobs[job_id] = _Job(spec, status, owner)
                return True
            if json.loads(wire.dumps(self.spec(job_id))) != json.loads(wire.dumps(spec)):
                raise Conflict(f"job {job_id} is there already with another spec: submit under a new job_id")
            return False

    def spec(self, job_id: str) -> JobSpec:
        return self.job(job_id).spec

    def status(self, job_id: str) -> JobStatus:
        job = self.job(job_id)
        return replace(job.status, owner=job.owner)

    def update(self, status: JobStatus, *, owner: str | None = None) -> bool:
        with self._lock:
            job = self.job(status.job_id)
            if owner not in (None, job.owner):
                return False
            if not job.status.state.ended:
                job.status = status
                if status.state.ended:
                    job.tally = job.tally.ended(status.ended or time.time())
            return True

    def own(self, job_id: str, *, owner: str, expected: str | None) -> bool:
        with self._lock:
            job = self.job(job_id)
            owned = job.owner == expected
            if owned:
                job.owner = owner
            return owned

    def append(self, job_id: str, data: bytes) -> None:
        with self._lock:
            job = self.job(job_id)
            job.folding.take(data, at=time.time())
            lines = b"".join(part for part, logged in segments(data) if logged)
            if lines:
                job.times.append(LogTime(offset=len(job.log), at=time.time()))
            job.log += lines + b"\n" * (bool(lines) and not lines.endswith(b"\n"))

    def log_times(self, job_id: str, *, after: int = 0, before: int | None = None) -> list[LogTime]:
        times = self.job(job_id).times
        first = max((each.offset for each in times if each.offset <= after), default=0)
        return [each for each in times if first <= each.offset and (before is None or each.offset < before)]

    def series(self, job_id: str) -> Series:
        with self._lock:
            return (self.kept.get(job_id) or self.job(job_id).folding).series()

    def read(self, job_id: str, *, after: int = 0, limit_bytes: int = 1 << 20) -> tuple[bytes, int]:
        data = self.job(job_id).log[after : after + limit_bytes]
        end = data.rfind(b"\n") + 1 or (limit_bytes if len(data) == limit_bytes else 0)
        return data[:end], after + end

    def log_bytes(self, job_id: str) -> int:
        return len(self.job(job_id).log)

    def jobs(self) -> list[str]:
        return list(self._jobs)

    def statuses(self, job_ids: Sequence[str]) -> list[JobStatus]:
        return [self.status(job_id) for job_id in job_ids if job_id in self._jobs]

    def specs(self, job_ids: Sequence[str]) -> dict[str, JobSpec]:
        return {job_id: self._jobs[job_id].spec for job_id in job_ids if job_id in self._jobs}

    def origins(self, *, dag_id: str = "", run_id: str = "") -> dict[str, Origin]:
        found = {job_id: self._jobs[job_id].spec.origin for job_id in self.jobs()}
        return {
            job_id: origin
            for job_id, origin in found.items()
            if origin.run_id and dag_id in ("", origin.dag_id) and run_id in ("", origin.run_id)
        }

    def tally(self, job_id: str) -> Tally:
        return self.job(job_id).tally

    def note_tally(self, job_id: str, tally: Tally) -> None:
        job = self.job(job_id)
        job.tally = job.tally.longer(tally) if job.status.state.ended else job.tally.merged(tally)

    def end_task(self, end: TaskEnd) -> None:
        self._ends.insert(0, end)

    def task_ends(self, *, dag_id: str = "", run_id: str = "", runs: int = 20) -> list[TaskEnd]:
        found = [
            end
            for end in self._ends
            if dag_id in ("", end.origin.dag_id) and run_id in ("", end.origin.run_id)
        ]
        newest = list(dict.fromkeys((end.origin.dag_id, end.origin.run_id) for end in found))[:runs]
        return [end for end in found if (end.origin.dag_id, end.origin.run_id) in newest]

    def note_run(self, run: Origin, *, going: bool) -> None:
        self._runs = [note for note in self._runs if note.run != run]
        if going:
            self._runs.insert(0, RunNote(run=run, alive=True))

    def run_notes(self) -> list[RunNote]:
        return self._runs

    def forget(self, job_id: str) -> None:
        """Take a job's entry away."""
        del self._jobs[job_id]


class MemoryStore:
    """See :class:`muster.volumes.protocols.LocalStore`.

    :param folder: for what jobs stage, and copies of versions and code.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.RLock()
        self._ledger = MemoryLedger(self._lock)
        self._kept: dict[str, list[_Kept]] = {}
        self._code: dict[str, dict[str, tuple[bytes, bool]]] = {}
        self._leases: dict[str, set[str]] = {}
        self._makers: dict[str, _Job] = {}
        self._claims: dict[str, str] = {}
        self._logs: dict[tuple[str, str], tuple[str, list[Mapping[str, Any]]]] = {}
        self._notes: dict[UpkeepKind, UpkeepNote] = {}

    @property
    def ledger(self) -> MemoryLedger:
        return self._ledger

    def close(self) -> None:
        """Do nothing."""

    # Versions

    def resolve(self, address: str) -> tuple[Version, ...]:
        wanted = Address.parse(address)
        live = self.versions(wanted.volume)
        if wanted.select is Select.NUMBER:
            number, numbers = int(wanted.value), [version.number for version in live]
            if number in numbers:
                return (self._find(wanted.volume, number).version(),)
            if live:
                deleted = 0 < number <= len(self._kept[wanted.volume])
                raise NotFound(no_number(wanted.volume, number, numbers, deleted=deleted))
        if not live:
            raise NotFound(no_volume(wanted.volume, self.volumes(), where="in memory"))
        by_number = {version.number: version for version in live}
        partitions = {version.number: version.partition for version in live}
        if wanted.select is Select.DIGEST:
            digests = {version.number: version.digest for version in live}
            found = by_digest(wanted, digests, by_number.get)
        else:
            found = select(wanted, partitions, by_number.get)
        if not found:
            raise NotFound(nothing(wanted, partitions, by_number.get, newest=live[-1]))
        return found

    def volumes(self) -> list[str]:
        return sorted(self._kept)

    def versions(self, volume: str) -> list[Version]:
        return [kept.version() for kept in self._kept.get(check_volume(volume), ()) if kept.files is not None]

    def newest(
        self, volume: str, *, limit: int, before: int | None = None, partition: str | None = None
    ) -> list[Version]:
        found = [version for version in self.versions(volume) if before is None or version.number < before]
        return [version for version in found[::-1] if partition in (None, version.partition)][:limit]

    def last(self, volume: str, partition: str | None = None) -> int:
        records = [each.record for each in self._kept.get(check_volume(volume), ())]
        return max((record.number for record in records if record.partition == partition), default=0)

    def count(self, volume: str) -> int:
        return len(self.versions(volume))

    def record(self, address: str) -> Record:
        return self._any(address).record

    def records(self, addresses: Sequence[str]) -> list[Record]:
        return [self.record(address) for address in addresses]

    def manifest(self, address: str) -> Listing:
        return parse(render(self._any(address).entries.values()), where=address)

    def path(self, address: str) -> Path:
        version, inner = self._one(address), Address.parse(address).path
        data = self._folder / "versions" / version.volume / str(version.number)
        with self._lock:
            if not data.is_dir():
                files = self._find(version.volume, version.number).files or {}
                _write(data, {path: (content, False) for path, content in files.items()}, mode=0o444)
        if inner and not (data / inner).exists():
            there = ", ".join(sorted(path.name for path in data.iterdir())[:8])
            raise NotFound(f"{version.address} holds no {inner!r:.120}; at its top are {there}")
        return data / inner if inner else data

    def add(
        self,
        volume: str,
        source: Path,
        *,
        partition: str | None = None,
        note: str = "",
        request: str | None = None,
        checkpoints: Mapping[str, str] | None = None,
    ) -> Version:
        check_volume(volume)
        if partition is not None:
            check_partition(partition)
        files = {path: file.read_bytes() for path, file in sources(source, volume=volume).items()}
        job_id = f"put-{check_request(request or os.urandom(8).hex())}"
        if (found := self._made_by(job_id)) is not None:
            return found.version()
        if len(checkpoints or {}) > MOST_CHECKPOINTS:
            raise SpecError(f"a version takes in the checkpoints of {MOST_CHECKPOINTS} jobs at most")
        for folder, wanted in (checkpoints or {}).items():
            files |= self._checkpoints_of(check_path(folder, output=volume), wanted, files)
        record = Record(
            volume=volume, number=0, digest="", created=time.time(), job_id=job_id, output="", note=note
        )
        return self._keep([replace(record, partition=partition)], [files])[0].version()

    def copy(
        self, address: str, volume: str, *, request: str, partition: str | None = None, note: str = ""
    ) -> Version:
        job_id = f"copy-{check_request(request)}"
        with self._lock:
            if (found := self._made_by(job_id)) is not None:
                return found.version()
            version = self._one(address)
            kept = self._find(version.volume, version.number)
            own = replace(kept.record, volume=check_volume(volume), job_id=job_id, siblings=(), note=note)
            return self._keep([replace(own, partition=partition, created=time.time())], [kept.files])[
                0
            ].version()

    def pin(self, address: str, *, reason: str) -> Version:
        return self._change(address, lambda kept: kept.pins.add(reason))

    def unpin(self, address: str, *, reason: str) -> Version:
        return self._change(address, lambda kept: kept.pins.discard(reason))

    def retire(self, address: str, *, reason: str) -> Version:
        return self._change(address, lambda kept: kept.retire(reason))

    def reinstate(self, address: str) -> Version:
        return self._change(address, lambda kept: kept.retire(None))

    def lease(self, addresses: Iterable[str], *, holder: str) -> None:
        with self._lock:
            leased = {self._one(address).address for address in addresses}
            self._leases[check_job_id(holder)] = self._leases.get(holder, set()) | leased

    def release(self, holder: str) -> None:
        self._leases.pop(check_job_id(holder), None)

    # Event logs

    def begin_log(self, kind: str, name: str, head: str) -> bool:
        with self._lock:
            begun = (check_label("kind", kind), check_job_id(name)) not in self._logs
            self._logs.setdefault((kind, name), (head, []))
            return begun

    def log_head(self, kind: str, name: str) -> str:
        return self._log(kind, name)[0]

    def logs(self, kind: str) -> list[str]:
        return [name for each, name in reversed(self._logs) if each == kind]

    def log_events(self, kind: str, name: str, *, after: int = 0) -> LogPage:
        events = self._log(kind, name)[1]
        return LogPage(events=tuple(events[after:]), end=len(events))

    def append_events(self, kind: str, name: str, events: Sequence[Mapping[str, Any]], *, after: int) -> int:
        with self._lock:
            there = self._log(kind, name)[1]
            if len(there) != after:
                raise Conflict(
                    f"{name} of {kind} has gone on: its events end at {len(there)}, not at {after}"
                )
            there += json.loads(json.dumps(list(events)))
            return len(there)

    def _log(self, kind: str, name: str) -> tuple[str, list[Mapping[str, Any]]]:
        found = self._logs.get((kind, check_job_id(name)))
        if found is None:
            raise NotFound(f"no {name} among the {kind} of this store")
        return found

    # Snapshots

    def put(self, root: Path, files: Sequence[str], *, texts: Mapping[str, str] | None = None) -> str:
        snapshot.check(root, texts or ())
        said = {path: (text.encode(), False) for path, text in (texts or {}).items()}
        snapshot.digest(root, [path for path in files if path not in said])  # refuses what leaves the folder
        read = {
            path: ((root / path).read_bytes(), os.access(root / path, os.X_OK))
            for path in files
            if path not in said
        }
        held = dict(sorted((said | read).items()))
        lines = [
            f"{blake3(data).hexdigest()} {'x' if runs else '-'} {path}\n"
            for path, (data, runs) in held.items()
        ]
        digest = f"b3:{blake3(''.join(lines).encode()).hexdigest()}"
        self._code[digest] = held
        return digest

    def holds(self, digest: str) -> bool:
        return check_digest("code snapshot", digest) in self._code

    def code(self, digest: str) -> Path:
        if not self.holds(digest):
            raise NotFound(f"no code snapshot {digest}: it was deleted by gc, or put into another store")
        folder = self._folder / "code" / digest.removeprefix("b3:")
        with self._lock:
            if not folder.is_dir():
                _write(folder, self._code[digest], mode=0o444)
        return folder

    # Attempts

    def stage(self, job_id: str) -> Staging:
        with self._lock:
            job = self.ledger.job(job_id)
            if job.made is not None or self.sealed(job_id) is not None:
                raise Conflict(f"job {job_id} has sealed: it is committed, never run again")
            if job.status.state.ended:
                raise Conflict(f"job {job_id} has ended: submit it under a new job_id")
            before = job.staging
            saved = before or self._saved_by(job.spec.follows)
            given = job.spec.inputs.get(CHECKPOINTS)
            first = self.path(given.versions[0].address) / given.path if given else None
            source = saved.checkpoints if saved else first
            attempt = 1 if before is None else before.attempt + 1
            root = self._folder / "staging" / job_id / str(attempt)
            new = Staging(job_id=job_id, attempt=attempt, root=root)
            (root / "sealed").mkdir(parents=True)
            if source is None or not source.is_dir():
                new.checkpoints.mkdir()
            elif saved and self.ledger.job(saved.job_id).gone and (before or self._has_ended(saved.job_id)):
                source.rename(new.checkpoints)
            else:
                copy_tree(source, new.checkpoints)
            if before is not None:
                remove(before.root)
            elif saved is not None and self._has_ended(saved.job_id):
                remove(saved.checkpoints)
            job.staging, job.gone = new, False
            return new

    def note_gone(self, job_id: str, *, attempt: int) -> None:
        with self._lock:
            job = self.ledger.job(job_id)
            job.gone |= job.staging is not None and job.staging.attempt == attempt

    def staging(self, job_id: str) -> Staging | None:
        return self.ledger.job(job_id).staging

    def saved(self, job_id: str) -> Saved | None:
        self.ledger.job(job_id)
        staging = self._saved_by(job_id)
        if staging is None:
            return None
        found = [entry.stat(follow_symlinks=False) for _, entry in held_files_of(staging.checkpoints)]
        return Saved(
            job_id=staging.job_id,
            files=len(found),
            size_bytes=sum(stat.st_size for stat in found),
            newest=max(stat.st_mtime for stat in found),
        )

    def sealed(self, job_id: str) -> tuple[PartManifest, ...] | None:
        job = self.ledger.job(job_id)
        if job.staging is None:
            return None
        seals = [job.staging.sealed(role.name, n) for role in job.spec.roles for n in range(role.replicas)]
        if not all(seal.is_file() for seal in seals):
            return None
        return tuple(wire.loads(PartManifest, seal.read_bytes()) for seal in seals)

    def commit(
        self,
        job_id: str,
        *,
        attempt: int,
        metrics: Mapping[str, float] | None = None,
        modules: Sequence[str] | None = None,
    ) -> dict[str, tuple[Version, ...]]:
        with self._lock:
            job = self.ledger.job(job_id)
            if job.made is None:
                record = Record.of_job(
                    job.spec, job_id, metrics=metrics or {}, modules=modules, created=time.time()
                )
                job.made = self._commit(job, record, attempt)
                self._makers[job_id] = job
            return {
                output: tuple(self._any(address).version() for address in addresses)
                for output, addresses in job.made.items()
            }

    # Makings

    def made(self, key: str = "", *, limit: int = 20) -> list[Made]:
        found = (self._made(job_id) for job_id in reversed(self._makers))
        return [
            made
            for made in found
            if made is not None and key in ("", key_of(made.spec), task_key_of(made.spec.origin))
        ][:limit]

    def use(self, job_id: str, *, by: Origin) -> None:
        with self._lock:
            made = self._made(job_id)
            if made is None:
                raise NotFound(f"what job {job_id} made is not live any more: it is made again")
            for address in made.addresses:
                self._any(address).used = time.time()
            end = TaskEnd(
                origin=by,
                began=time.time(),
                at=time.time(),
                state=JobState.SUCCEEDED,
                kept_of=job_id,
                outputs=made.outputs,
            )
            self.ledger.end_task(end)

    def used(self, address: str) -> float:
        return self._any(address).used

    def forget(self, job_id: str) -> bool:
        return self._makers.pop(job_id, None) is not None

    def claim(self, key: str, *, job_id: str, expected: str | None = None) -> str:
        with self._lock:
            if self._claims.get(key) in (None, expected):
                self._claims[key] = check_job_id(job_id)
            return self._claims[key]

    def held(self) -> tuple[Held, ...]:
        return tuple(
            Held(
                job_id=job_id,
                ended=status.ended or status.submitted,
                outputs_bytes=sum(_size(folder) for folder in self._outputs(job_id)),
                checkpoints_bytes=_size(staging.checkpoints),
            )
            for job_id in self.ledger.jobs()
            if (status := self.ledger.status(job_id)).state.ended
            and (staging := self.staging(job_id)) is not None
            and _size(staging.root)
        )

    def let_go(self, job_ids: Collection[str]) -> int:
        for job_id in job_ids:
            self._check_ended(job_id)
        freed = 0
        for staging in filter(None, map(self.staging, job_ids)):
            freed += _size(staging.root)
            remove(staging.root)
        return freed

    def salvage(self, job_id: str, target: Path) -> int:
        self._check_ended(job_id)
        count = 0
        for folder in self._outputs(job_id):
            for path, entry in held_files_of(folder):
                if entry.is_file(follow_symlinks=False):
                    (target / folder.name / path).parent.mkdir(parents=True, exist_ok=True)
                    copy_file(entry.path, str(target / folder.name / path))
                    count += 1
        if not count:
            raise NotFound(f"job {job_id} holds no output any more")
        return count

    def follow(self, job_id: str, target: Path, *, begins: str) -> int:
        self.ledger.spec(job_id)
        count = 0
        for folder in self._outputs(job_id):
            for path, entry in held_files_of(folder):
                if entry.name.startswith(begins) and entry.is_file(follow_symlinks=False):
                    with Path(entry.path).open("rb") as file:
                        lengthen(target / folder.name / path, file)
                    count += 1
        return count

    # Upkeep

    def check(self, *, deep: bool = False, protect: bool = False, progress: Progress | None = None) -> Report:
        kept = [each for volume in self.volumes() for each in self._kept[volume]]
        problems, files = list[Problem](), 0
        for done, each in enumerate(kept):
            address = pinned(each.record.volume, each.record.number)
            if progress is not None:
                progress(address, done, len(kept))
            files += len(each.files or {})
            if deep and each.files is not None and _entries(each.files) != each.entries:
                problems.append(Problem(where=address, what="its bytes were changed", advice="retire it"))
        size_bytes = sum(each.version().size_bytes for each in kept if each.files is not None)
        report = Report(versions=len(kept), files=files, size_bytes=size_bytes, problems=tuple(problems))
        self._note(UpkeepKind.FSCK_DEEP if deep else UpkeepKind.FSCK, checked=summary(report))
        return report

    def plan(
        self,
        *,
        volumes: Collection[str] = (),
        keep_last: int = 3,
        keep_partitions: int | None = None,
        partition_days: float | None = None,
        job_days: float = 30.0,
        young_days: float = 0.0,
        checkpoint_days: float = 7.0,
    ) -> CollectionPlan:
        rules = RetentionRules(
            volumes=volumes,
            keep_last=keep_last,
            keep_partitions=keep_partitions,
            partition_days=partition_days,
            job_days=job_days,
            young_days=young_days,
            checkpoint_days=checkpoint_days,
        )
        for name in volumes:
            if name not in self._kept:
                raise NotFound(f"no volume {name!r:.120}: name a whole volume, without @ and version")
        now = time.time()
        ended = {
            status.job_id: status for status in self.ledger.statuses(self.ledger.jobs()) if status.state.ended
        }
        live = {version.address: version for volume in self.volumes() for version in self.versions(volume)}
        kept = why_kept(
            live,
            rules,
            used={a: max(version.created, self._any(a).used) for a, version in live.items()},
            replaced={a: at for a in live if (at := self._any(a).replaced) is not None},
            leased={a: holder for holder, many in self._leases.items() if holder not in ended for a in many},
            awaited={
                each.address: job_id
                for job_id, spec in self.ledger.specs(self.ledger.jobs()).items()
                if job_id not in ended
                for given in spec.inputs.values()
                for each in given.versions
            },
            inputs=lambda address: [
                each.address for many in self.record(address).inputs.values() for each in many
            ],
        )
        gone = tuple(version for address, version in live.items() if address not in kept)
        if volumes:
            return CollectionPlan(
                versions=gone, kept={a: why for a, why in kept.items() if live[a].volume in volumes}
            )
        old = [
            job_id
            for job_id, status in ended.items()
            if (status.ended or status.submitted) < now - job_days * DAY_SECONDS
        ]
        used = {self.record(address).code for address in kept}
        used |= {code for job_id in self.ledger.jobs() if job_id not in old for code in self._codes(job_id)}
        return CollectionPlan(
            versions=gone,
            kept=kept,
            staging=tuple(self._left(ended, now - checkpoint_days * DAY_SECONDS)),
            code=tuple(sorted(self._code.keys() - used)),
            jobs=tuple(old),
        )

    def collect(
        self,
        *,
        volumes: Collection[str] = (),
        keep_last: int = 3,
        keep_partitions: int | None = None,
        partition_days: float | None = None,
        job_days: float = 30.0,
        young_days: float = 0.0,
        checkpoint_days: float = 7.0,
        now: bool = False,
    ) -> Collected:
        with self._lock:
            plan = self.plan(
                volumes=volumes,
                keep_last=keep_last,
                keep_partitions=keep_partitions,
                partition_days=partition_days,
                job_days=job_days,
                young_days=young_days,
                checkpoint_days=checkpoint_days,
            )
            for version in plan.versions:
                self._find(version.volume, version.number).files = None
            freed_bytes = plan.size_bytes + self.let_go(plan.staging)
            for digest in plan.code:
                del self._code[digest]
            for job_id in plan.jobs:
                self.ledger.kept[job_id] = self.ledger.job(job_id).folding
                self.ledger.forget(job_id)
            for job_id in [*self.ledger.kept]:
                made = (each for many in self._kept.values() for each in many if each.record.job_id == job_id)
                if all(each.files is None for each in made):
                    del self.ledger.kept[job_id]
            self._note(UpkeepKind.GC)
            return Collected(plan=plan, freed_bytes=freed_bytes)

    def room(self) -> Room:
        return Room.of(self._folder)

    def upkept(self) -> list[UpkeepNote]:
        return list(self._notes.values())

    def note_sweep(self) -> None:
        self._note(UpkeepKind.SWEEP)

    def _note(self, work: UpkeepKind, *, checked: Checked | None = None) -> None:
        self._notes[work] = UpkeepNote(work=work, at=time.time(), checked=checked)

    # What they share

    def _made(self, job_id: str) -> Made | None:
        """What a job made, if all of it is live."""
        job = self._makers.get(job_id)
        if job is None or not job.made:
            return None
        versions = [self._any(address) for addresses in job.made.values() for address in addresses]
        if any(each.files is None or each.retired is not None for each in versions):
            return None
        record = versions[0].record
        return Made(
            job_id=job_id,
            spec=job.spec,
            outputs=job.made,
            metrics=record.metrics,
            modules=record.modules,
            created=record.created,
        )

    def _find(self, volume: str, number: int) -> _Kept:
        return self._kept[volume][number - 1]

    def _any(self, address: str) -> _Kept:
        """One version, also a deleted one where it is named by its number."""
        wanted = Address.parse(address)
        with suppress(ValueError, KeyError, IndexError):
            return self._find(wanted.volume, int(wanted.value))
        version = self._one(address)
        return self._find(version.volume, version.number)

    def _one(self, address: str) -> Version:
        versions = self.resolve(address)
        if Address.parse(address).many:
            raise SpecError(f"{address} names several versions; name one, such as {versions[-1].address}")
        return versions[0]

    def _made_by(self, job_id: str) -> _Kept | None:
        return next(
            (kept for each in self._kept.values() for kept in each if kept.record.job_id == job_id), None
        )

    def _change(self, address: str, change: Callable[[_Kept], object]) -> Version:
        with self._lock:
            version = self._one(address)
            kept = self._find(version.volume, version.number)
            change(kept)
            return kept.version()

    def _keep(self, records: Sequence[Record], files: Sequence[dict[str, bytes]]) -> list[_Kept]:
        """Give each its number, and make all of them visible at once."""
        with self._lock:
            new, taken = list[_Kept](), dict[str, int]()
            for record, content in zip(records, files, strict=True):
                number = taken.get(record.volume, len(self._kept.get(record.volume, ()))) + 1
                taken[record.volume] = number
                entries = _entries(content)
                digest = render(entries.values()).partition(b"\n")[0].decode()
                new.append(_Kept(replace(record, number=number, digest=digest), entries, content))
            addresses = [each.version().address for each in new]
            for each, address in zip(new, addresses, strict=True):
                siblings = tuple(other for other in addresses if other != address)
                each.record = replace(each.record, siblings=siblings)
                self._kept.setdefault(each.record.volume, []).append(each)
            return new

    def _commit(self, job: _Job, record: Record, attempt: int) -> dict[str, tuple[str, ...]]:
        job_id, staging = record.job_id, job.staging
        if staging is None or staging.attempt != attempt:
            now = "there is none" if staging is None else f"the current one is {staging.attempt}"
            raise Conflict(f"job {job_id}: attempt {attempt} cannot be committed, {now}")
        if job.status.state.ended:
            raise Conflict(f"job {job_id} has ended: its outputs are not committed any more")
        parts = self.sealed(job_id)
        if parts is None:
            raise Conflict(f"job {job_id}, attempt {attempt}: not all replicas have sealed")
        planned = plan_drafts(staging.root / "ready", job.spec, union(parts, job.spec))
        try:
            drafts = gather(staging, planned, parts)
            files = [
                {path: Path(entry.path).read_bytes() for path, entry in held_files_of(draft.folder)}
                for draft in drafts
            ]
            self._refuse_overtaken(job.spec)
            replaced = self._replaced(job.spec, drafts)
            for draft, content in zip(drafts, files, strict=True):
                if {path: len(data) for path, data in content.items()} != dict(draft.files):
                    raise StoreError(f"output {draft.output!r} is not what was sealed: nothing is committed")
                self._take_over(draft, content)
        except MusterError:
            give_back_checkpoints(staging, planned)
            raise
        records = [
            replace(record, volume=draft.volume, partition=draft.partition, output=draft.output)
            for draft in drafts
        ]
        made = _bases(job.spec, but={draft.output for draft in drafts})
        for each in self._keep(records, files):
            made[each.record.output] = (*made.get(each.record.output, ()), each.version().address)
        self._retire(replaced, made)
        kept = {"sealed", "checkpoints"} if job.spec.origin.is_trial else {"sealed"}
        for entry in staging.root.iterdir():
            if entry.name not in kept:
                remove(entry)
        return made

    def _replaced(self, spec: JobSpec, drafts: Sequence[Draft]) -> list[tuple[_Kept, str]]:
        """The versions that a commit retires, each with the output that replaces it."""
        found = []
        for draft in drafts:
            for number in spec.outputs[draft.output].retires:
                try:
                    kept = self._any(pinned(draft.volume, number))
                except NotFound as error:
                    raise BadOutput(str(error)) from error
                if kept.record.partition != draft.partition:
                    raise BadOutput(f"@{number} is in another partition")
                if kept.pins:
                    raise Conflict(f"@{number} is pinned")
                found.append((kept, draft.output))
        return found

    def _retire(self, replaced: Sequence[tuple[_Kept, str]], made: Mapping[str, Sequence[str]]) -> None:
        for kept, by in replaced:
            if kept.retired is None:
                kept.retire(f"replaced by {made[by][0].removeprefix('volume://')}", replaced=time.time())

    def _refuse_overtaken(self, spec: JobSpec) -> None:
        for output in spec.outputs.values():
            if output.after is not None and self.last(output.volume, output.partition) > output.after:
                raise Conflict(f"{output.volume} has a version after @{output.after}")

    def _take_over(self, draft: Draft, content: dict[str, bytes]) -> None:
        """Add to a draft's files what it takes over from its base."""
        listed = content.pop(CARRIED, b"").decode().split("\n")[:-1] if draft.base else []
        for path in listed:
            files = self._any(draft.base.address).files
            above = [path.rsplit("/", n)[0] for n in range(path.count("/") + 1)]
            clash = any(each in content for each in above) or any(
                each.startswith(f"{path}/") for each in draft.files
            )
            if path not in files or clash:
                raise BadOutput(f"{path} is not in the base, or was written, too")
            content[path] = files[path]

    def _checkpoints_of(self, folder: str, job_id: str, others: Collection[str]) -> dict[str, bytes]:
        """What a version takes in below a folder."""
        self._check_ended(job_id)
        if any(path == folder or path.startswith(f"{folder}/") for path in others):
            raise SpecError(f"{folder!r:.120} is there already")
        staging = self._saved_by(job_id, done=True)
        if staging is None:
            return {}
        found = [
            Path(top, name)
            for top, _, names in os.walk(staging.checkpoints, followlinks=True)
            for name in names
        ]
        return {
            f"{folder}/{path.relative_to(staging.checkpoints)}": path.read_bytes()
            for path in found
            if path.is_file() and not has_control(str(path))
        }

    def _saved_by(self, job_id: str | None, *, done: bool = False) -> Staging | None:
        """The staging whose checkpoints a job goes on from: its own, or that of one it follows; or what a trial left."""
        while job_id is not None and job_id in self.ledger.jobs():
            job = self.ledger.job(job_id)
            if job.status.state is JobState.SUCCEEDED and not (done and job.spec.origin.is_trial):
                return None
            if job.staging is not None and _size(job.staging.checkpoints):
                return job.staging
            job_id = job.spec.follows
        return None

    def _has_ended(self, job_id: str) -> bool:
        return self.ledger.status(job_id).state.ended

    def _check_ended(self, job_id: str) -> None:
        state = self.ledger.status(job_id).state
        if not state.ended:
            raise SpecError(f"job {job_id} is {state.value}: wait for its end")

    def _outputs(self, job_id: str) -> list[Path]:
        staging, roles = self.staging(job_id), self.ledger.spec(job_id).roles
        if staging is None:
            return []
        folders = [staging.root / f"{role.name}-{n}" for role in roles for n in range(role.replicas)]
        return [folder for folder in folders if folder.is_dir()]

    def _left(self, ended: Mapping[str, JobStatus], since: float) -> Iterator[str]:
        """The ended jobs whose staging goes: nothing can be fetched of them, and no task goes on from them."""
        for job_id, status in ended.items():
            staging = self.staging(job_id)
            fetchable = status.state is JobState.FAILED and self.sealed(job_id) is not None
            resumes = self._saved_by(job_id, done=True) is not None and (status.ended or 0.0) >= since
            if staging is not None and staging.root.is_dir() and not (fetchable or resumes):
                yield job_id

    def _codes(self, job_id: str) -> tuple[str | None, str]:
        spec = self.ledger.spec(job_id)
        return spec.code, spec.image_digest


def _entries(files: Mapping[str, bytes]) -> dict[str, Entry]:
    return {path: Entry(path, blake3(data).hexdigest(), len(data)) for path, data in sorted(files.items())}


def _size(folder: Path) -> int:
    """All bytes below a folder but those of seals, which say what was written and are none of it."""
    if not folder.is_dir():
        return 0
    unlock(folder)
    return sum(
        entry.stat(follow_symlinks=False).st_size
        for path, entry in held_files_of(folder)
        if not path.startswith("sealed/") and entry.is_file(follow_symlinks=False)
    )


def _write(folder: Path, files: Mapping[str, tuple[bytes, bool]], *, mode: int) -> None:
    """Write a read-only folder."""
    for path, (data, runs) in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(mode | (0o111 if runs else 0))
    for inner in sorted((each for each in folder.rglob("*") if each.is_dir()), reverse=True):
        inner.chmod(0o555)
    folder.chmod(0o555)
