"""The store in a folder: on one machine, and on the claim that a cluster's store service holds.

On disk as :mod:`muster.volumes.layout` draws it. Any number of processes may open it at once.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from muster.core.address import Address
from muster.core.errors import BadOutput, Conflict, MusterError, NotFound, SpecError
from muster.core.job import check_digest
from muster.core.names import check_partition, check_volume
from muster.core.replica import PartManifest
from muster.core.room import Room
from muster.volumes import held, manifest, snapshot
from muster.volumes.attempts import Attempts
from muster.volumes.base import Collected, Held, Plan, Record, Saved, Staging, Version
from muster.volumes.catalog import Catalog
from muster.volumes.commit import assemble, decide, publish, read_plan
from muster.volumes.commit_records import committed, has_content, is_named
from muster.volumes.durability import locked, sync_folder, translated, write_whole
from muster.volumes.gather import Draft, draft_copy, gather, plan_drafts, union
from muster.volumes.layout import open_layout
from muster.volumes.ledger import FolderLedger

if TYPE_CHECKING:
    from muster.volumes.fsck import Progress, Report


class FolderStore:
    """Volumes, code snapshots and the job ledger below `root`, which is made if it is not there.

    :param compare: whether a commit reads each file of the version before that it shares, though it seems
        unchanged: against bits that flipped on the disk.
    :raises StoreError: `root` is something else, cannot be made, or is a newer muster's.
    """

    def __init__(self, root: Path, *, compare: bool = False) -> None:
        self.compare = compare
        self.layout = open_layout(Path(root))
        self.catalog = Catalog(self.layout)
        self._ledger = FolderLedger(self.layout)
        self.attempts = Attempts(self.layout, self._ledger)

    @property
    def ledger(self) -> FolderLedger:
        """The job ledger of this store."""
        return self._ledger

    def resolve(self, address: str) -> tuple[Version, ...]:
        """Return what an address names now."""
        return self.catalog.resolve(address)

    def volumes(self) -> list[str]:
        """Every volume's name, sorted."""
        return sorted(name for name in self.layout.volumes() if self.catalog.holds(name))

    def versions(self, volume: str) -> list[Version]:
        """Every version of a volume that can be read, oldest first."""
        return self.catalog.live(check_volume(volume))

    def newest(self, volume: str, *, limit: int, before: int | None = None) -> list[Version]:
        """The newest versions of a volume, newest first; no others are read."""
        return self.catalog.newest(check_volume(volume), limit=limit, before=before)

    def count(self, volume: str) -> int:
        """How many versions of a volume can be read."""
        return self.catalog.count(check_volume(volume))

    def record(self, address: str) -> Record:
        """Return where one version comes from; also of one whose data was deleted by gc."""
        wanted = Address.parse(address)
        if wanted.value.isdigit():
            return self.catalog.record(wanted.volume, int(wanted.value))
        version = self._one(address)
        return self.catalog.record(version.volume, version.number)

    def path(self, address: str) -> Path:
        """Return the folder of one version's data, or the file that the address names in it."""
        inner = Address.parse(address).path
        version = self._one(address)
        data = self.layout.version(version.volume, version.number) / "data"
        if inner and not (data / inner).exists():
            there = ", ".join(sorted(os.listdir(data))[:8])  # noqa: PTH208 - names are all that is wanted
            raise NotFound(f"{version.address} holds no {inner!r:.120}; at its top are {there}")
        return data / inner if inner else data

    def manifest(self, address: str) -> dict[str, manifest.Entry]:
        """Return every file of one version by its path, with hash and size; also after gc."""
        record = self.record(address)
        return manifest.read(self.layout.version(record.volume, record.number) / "MANIFEST")

    def put(self, root: Path, files: Sequence[str], *, texts: Mapping[str, str] | None = None) -> str:
        """Keep `files`, and `texts` in place of some or beside them, as a code snapshot; the same bytes once."""
        with translated("keep the code snapshot"):
            return snapshot.keep(self.layout, root, files, texts=texts)

    def holds(self, digest: str) -> bool:
        """Whether a code snapshot, or an image's lock, is in the store."""
        return self.layout.code(check_digest("code snapshot", digest)).is_dir()

    def code(self, digest: str) -> Path:
        """Return the folder of a code snapshot, unpacked and read-only."""
        folder = self.layout.code(check_digest("code snapshot", digest))
        if not folder.is_dir():
            raise NotFound(f"no code snapshot {digest}: it was deleted by gc, or put into another store")
        return folder

    def stage(self, job_id: str) -> Staging:
        """Begin a new attempt; every earlier one is fenced from here on."""
        self.ledger.check(job_id)
        with translated(f"stage job {job_id}"), self.attempts.alone(job_id):
            return self.attempts.begin(job_id)

    def staging(self, job_id: str) -> Staging | None:
        """Return the current attempt's staging, or None before the first."""
        return self.attempts.latest(job_id)

    def saved(self, job_id: str) -> Saved | None:
        """Return the checkpoints that a job left, or a job that it follows."""
        self.ledger.check(job_id)
        with translated(f"look at the checkpoints of job {job_id}"):
            return self.attempts.saved(job_id)

    def sealed(self, job_id: str) -> tuple[PartManifest, ...] | None:
        """Return the part-manifests of the current attempt if all replicas have sealed, else None."""
        staging = self.attempts.latest(job_id)
        return None if staging is None else self.attempts.sealed(staging)

    def commit(
        self,
        job_id: str,
        *,
        attempt: int,
        metrics: Mapping[str, float] | None = None,
        modules: Sequence[str] | None = None,
    ) -> dict[str, tuple[Version, ...]]:
        """Make what all replicas sealed into versions: every output or none, once per job_id."""
        done = committed(self.layout, job_id)
        if done is None:
            self.ledger.check(job_id)
            with translated(f"commit job {job_id}"), self.attempts.alone(job_id):
                done = committed(self.layout, job_id)
                if done is None:  # nobody did it while we waited
                    done = self._commit_once(job_id, attempt, metrics or {}, modules)
        return {
            output: tuple(self.catalog.described(volume, number) for volume, number in places)
            for output, places in done.items()
        }

    def add(self, volume: str, source: Path, *, partition: str | None = None, note: str = "") -> Version:
        """Copy a folder or file into a new version."""
        check_volume(volume)
        if partition is not None:
            check_partition(partition)
        job_id = f"put-{os.urandom(8).hex()}"
        ready = self.layout.staging(job_id) / "1" / "ready"
        record = Record(
            volume=volume, number=0, digest="", created=time.time(), job_id=job_id, output="", note=note
        )
        with translated(f"put {source} into {volume}"):
            try:
                with self.attempts.alone(job_id):
                    draft = draft_copy(ready, Path(source), volume=volume, partition=partition)
                    plan = assemble(self.layout, self.catalog, [draft], record=record, compare=self.compare)
                    decide(self.layout, plan, ready=ready)
                    publish(self.layout, plan, ready=ready, job_id=job_id)
            finally:
                self.layout.delete(self.layout.staging(job_id))
        return self.catalog.described(plan[0].volume, plan[0].number)

    def pin(self, address: str, *, reason: str) -> Version:
        """Keep a version from gc under a reason; idempotent."""
        with translated(f"pin {address}"), self.steady():
            version = self._one(address)
            folder = self.layout.version(version.volume, version.number) / "pins"
            folder.mkdir(exist_ok=True)
            write_whole(folder / _key(reason), reason)
        return self._one(version.address)

    def unpin(self, address: str, *, reason: str) -> Version:
        """Take one reason away."""
        version = self._any(address)
        (self.layout.version(version.volume, version.number) / "pins" / _key(reason)).unlink(missing_ok=True)
        return self._any(version.address)

    def lease(self, addresses: Iterable[str], *, holder: str) -> None:
        """Keep versions from gc while `holder` reads them."""
        folder = self.layout.leases(holder)
        with translated(f"lease for {holder}"), self.steady():
            versions = [self._one(address) for address in addresses]
            folder.mkdir(exist_ok=True)
            for version in versions:
                (folder / f"{version.volume.replace('/', ':')}@{version.number}").touch()

    def release(self, holder: str) -> None:
        """Give all leases of `holder` back."""
        self.layout.delete(self.layout.leases(holder))  # in one step: gc may look, or do the same

    def retire(self, address: str, *, reason: str) -> Version:
        """Hide a version from every selector; a damaged one goes with the next gc then."""
        version = self._any(address)
        with translated(f"retire {address}"):
            folder = self.layout.version(version.volume, version.number)
            folder.mkdir(parents=True, exist_ok=True)  # all of it may be gone
            write_whole(folder / "RETIRED", reason)
        return self._any(version.address)

    def reinstate(self, address: str) -> Version:
        """Let selectors find a retired version again."""
        version = self._any(address)
        with translated(f"reinstate {address}"):
            folder = self.layout.version(version.volume, version.number)
            (folder / "RETIRED").unlink(missing_ok=True)
            sync_folder(folder)
        return self._any(version.address)

    def check(self, *, deep: bool = False, protect: bool = False, progress: Progress | None = None) -> Report:
        """Check every committed version."""
        from muster.volumes import fsck  # what is done once a day need not be read by every process

        return fsck.check(self, deep=deep, protect=protect, progress=progress)

    def plan(
        self,
        *,
        volumes: Collection[str] = (),
        keep_last: int = 3,
        job_days: float = 30.0,
        young_days: float = 0.0,
        checkpoint_days: float = 7.0,
    ) -> Plan:
        """Say what :meth:`collect` would take away now."""
        from muster.volumes import damage, retention

        damage.refuse(self)
        return retention.plan(
            self,
            volumes=volumes,
            keep_last=keep_last,
            job_days=job_days,
            young_days=young_days,
            checkpoint_days=checkpoint_days,
        )

    def collect(
        self,
        *,
        volumes: Collection[str] = (),
        keep_last: int = 3,
        job_days: float = 30.0,
        young_days: float = 0.0,
        checkpoint_days: float = 7.0,
    ) -> Collected:
        """Take away what :meth:`plan` names."""
        from muster.volumes import retention

        return retention.collect(
            self,
            volumes=volumes,
            keep_last=keep_last,
            job_days=job_days,
            young_days=young_days,
            checkpoint_days=checkpoint_days,
        )

    def room(self) -> Room:
        """Say how much room is left where the versions are kept."""
        with translated(f"look at the disk of {self.layout.root}"):
            return Room.of(self.layout.root)

    def held(self) -> tuple[Held, ...]:
        """Say what jobs that have ended still hold of the disk, oldest first."""
        return held.held(self)

    def let_go(self, job_ids: Collection[str]) -> int:
        """Delete all that these ended jobs hold; return its size in bytes."""
        with translated("give back what ended jobs hold"):
            return held.let_go(self, job_ids)

    def salvage(self, job_id: str, target: Path) -> int:
        """Copy what an ended job staged, and could not be committed, below `target`."""
        with translated(f"fetch what job {job_id} staged into {target}"):
            return held.salvage(self, job_id, target)

    def close(self) -> None:
        """Do nothing: a folder holds nothing open."""

    @contextmanager
    def steady(self) -> Iterator[None]:
        """No version is deleted meanwhile: gc takes the same lock, alone."""
        with locked(self.layout.root / "gc.lock", shared=True):
            yield

    def _any(self, address: str) -> Version:
        """One version, also a damaged one where it is named by its number."""
        wanted = Address.parse(address)
        if wanted.value.isdigit():
            place = wanted.volume, int(wanted.value)
            lost = not has_content(self.layout.version(*place)) and is_named(self.layout, *place)
            if lost or self.catalog.is_damaged(*place):
                return self.catalog.remains(*place)
        return self._one(address)

    def _one(self, address: str) -> Version:
        versions = self.resolve(address)
        if len(versions) != 1 or Address.parse(address).many:
            raise SpecError(f"{address} names several versions; name one, such as {versions[-1].address}")
        return versions[0]

    def _commit_once(
        self, job_id: str, attempt: int, metrics: Mapping[str, float], modules: Sequence[str] | None
    ) -> dict[str, list[tuple[str, int]]]:
        try:
            return self._commit(job_id, attempt, metrics, modules)
        except (OSError, MusterError):
            done = committed(self.layout, job_id)
            if done is None:
                raise
            return done  # another machine did it meanwhile: locks do nothing there

    def _commit(
        self, job_id: str, attempt: int, metrics: Mapping[str, float], modules: Sequence[str] | None
    ) -> dict[str, list[tuple[str, int]]]:
        staging = self.attempts.current(job_id, attempt)
        ready = staging.root / "ready"
        plan = read_plan(ready)
        if plan is None:
            with _blaming_output():
                drafts = self._drafts(staging)
                sealed_at = self.attempts.sealed_at(staging)
                spec = self.ledger.spec(job_id)
                record = Record.of_job(spec, job_id, metrics=metrics, modules=modules, created=sealed_at)
                plan = assemble(self.layout, self.catalog, drafts, record=record, compare=self.compare)
            decide(self.layout, plan, ready=ready)
        done = publish(self.layout, plan, ready=ready, job_id=job_id)
        with suppress(OSError):  # the versions are visible: what cannot go now is gc's, and no reason to fail
            self.attempts.clear(staging)
        return done

    def _drafts(self, staging: Staging) -> list[Draft]:
        parts = self.attempts.sealed(staging)
        if parts is None:
            raise Conflict(
                f"job {staging.job_id}, attempt {staging.attempt}: not all replicas have sealed, "
                "so nothing is committed"
            )
        spec = self.ledger.spec(staging.job_id)
        drafts = plan_drafts(staging.root / "ready", spec, union(parts, spec))
        gather(staging, drafts, parts)
        return drafts


@contextmanager
def _blaming_output() -> Iterator[None]:
    """Call a name that is too long, or a file that may not be changed, what it is: no later try helps."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.EPERM):
            raise
        where = str(error.filename)[:200] if error.filename else "a file"
        hint = (
            "give it a shorter path"
            if error.errno == errno.ENAMETOOLONG
            else "it is immutable (chattr +i), or another user's"
        )
        raise BadOutput(f"an output cannot be committed: {where}: {error.strerror}: {hint}") from error


def _key(reason: str) -> str:
    """A file name for a reason, which may hold anything."""
    return blake3(reason.encode()).hexdigest()[:32]
