"""The store in a folder: on one machine, and on the claim that a cluster's store service holds.

On disk as :mod:`muster.volumes.layout` draws it. Any number of processes may open it at once.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from muster.core import wire
from muster.core.address import Address
from muster.core.errors import Conflict, NotFound, SpecError, StoreError
from muster.core.job import JobSpec, check_digest
from muster.core.names import check_partition, check_volume
from muster.core.replica import PartManifest
from muster.volumes import commit, snapshot
from muster.volumes.base import Record, Staging, Version
from muster.volumes.catalog import Catalog, committed
from muster.volumes.durability import locked, write_whole
from muster.volumes.layout import open_layout
from muster.volumes.ledger import FolderLedger
from muster.volumes.tree import copy_tree, remove


class FolderStore:
    """Volumes, code snapshots and the job ledger below `root`, which is made if it is not there.

    :raises StoreError: `root` is something else, cannot be made, or is a newer muster's.
    """

    def __init__(self, root: Path) -> None:
        self.layout = open_layout(Path(root))
        self.catalog = Catalog(self.layout)
        self._ledger = FolderLedger(self.layout)

    @property
    def ledger(self) -> FolderLedger:
        """The job ledger of this store."""
        return self._ledger

    def resolve(self, address: str) -> tuple[Version, ...]:
        """Return what an address names now."""
        return self.catalog.resolve(address)

    def volumes(self) -> list[str]:
        """Every volume's name, sorted."""
        return sorted(name for name in self.layout.volumes() if self.catalog.numbers(name))

    def versions(self, volume: str) -> list[Version]:
        """Every version of a volume that can be read, oldest first."""
        return self.catalog.live(check_volume(volume))

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

    def put(self, root: Path, files: Sequence[str]) -> str:
        """Keep `files` as a code snapshot; the same bytes once."""
        with _disk("keep the code snapshot"):
            return snapshot.keep(self.layout, root, files)

    def code(self, digest: str) -> Path:
        """Return the folder of a code snapshot, unpacked and read-only."""
        folder = self.layout.code(check_digest("code snapshot", digest))
        if not folder.is_dir():
            raise NotFound(f"no code snapshot {digest}: it was deleted by gc, or put into another store")
        return folder

    def stage(self, job_id: str) -> Staging:
        """Begin a new attempt; every earlier one is fenced from here on."""
        with _disk(f"stage job {job_id}"), self._working(job_id):
            self._refuse_sealed(job_id)
            before = self.staging(job_id)
            attempt = 1 if before is None else before.attempt + 1
            new = Staging(job_id=job_id, attempt=attempt, root=self.layout.staging(job_id) / str(attempt))
            remove(new.root)  # left by a crash before its number was written
            (new.root / "sealed").mkdir(parents=True)
            _fill(new, before)
            write_whole(self.layout.job(job_id) / "attempt", str(attempt))
            if before is not None:
                self._discard(before.root)
            return new

    def staging(self, job_id: str) -> Staging | None:
        """Return the current attempt's staging, or None before the first."""
        try:
            attempt = int((self.layout.job(job_id) / "attempt").read_text())
        except FileNotFoundError:
            self.ledger.spec(job_id)
            return None
        return Staging(job_id=job_id, attempt=attempt, root=self.layout.staging(job_id) / str(attempt))

    def sealed(self, job_id: str) -> tuple[PartManifest, ...] | None:
        """Return the part-manifests of the current attempt if all replicas have sealed, else None."""
        staging = self.staging(job_id)
        if staging is None:
            return None
        parts = []
        for role in self.ledger.spec(job_id).roles:
            for index in range(role.replicas):
                try:
                    text = staging.sealed(role.name, index).read_bytes()
                except FileNotFoundError:
                    return None
                parts.append(_part(text, staging, role.name, index))
        return tuple(parts)

    def commit(
        self,
        job_id: str,
        *,
        attempt: int,
        metrics: Mapping[str, float] | None = None,
        modules: Sequence[str] | None = None,
    ) -> dict[str, tuple[Version, ...]]:
        """Make what all replicas sealed into versions: every output or none, once per job_id."""
        with _disk(f"commit job {job_id}"), self._working(job_id):
            done = committed(self.layout, job_id)
            if done is None:
                staging = self._current(job_id, attempt)
                record = _record(self.ledger.spec(job_id), job_id, metrics or {}, modules)
                self._commit_sealed(staging, record)
                self._clear(staging)
                done = committed(self.layout, job_id) or {}
            return {
                output: tuple(self.catalog.described(v, n) for v, n in places)
                for output, places in done.items()
            }

    def add(self, volume: str, source: Path, *, partition: str | None = None, note: str = "") -> Version:
        """Copy a folder or file into a new version."""
        check_volume(volume)
        if partition is not None:
            check_partition(partition)
        job_id = f"put-{secrets.token_hex(8)}"
        ready = self.layout.staging(job_id) / "1" / "ready"
        with _disk(f"put {source} into {volume}"), self._working(job_id, staged=False):
            draft = commit.draft_copy(ready, Path(source), volume=volume, partition=partition)
            record = Record(
                volume=volume, number=0, digest="", created=time.time(), job_id=job_id, output="", note=note
            )
            self._finish(job_id, [draft], ready, record)
            self._discard(self.layout.staging(job_id))
        ((placed,),) = (committed(self.layout, job_id) or {}).values()
        return self.catalog.described(*placed)

    def pin(self, address: str, *, reason: str) -> Version:
        """Keep a version from gc under a reason; idempotent."""
        with _disk(f"pin {address}"), self._steady():
            version = self._one(address)
            folder = self.layout.version(version.volume, version.number) / "pins"
            folder.mkdir(exist_ok=True)
            write_whole(folder / _key(reason), reason)
        return self._one(version.address)

    def unpin(self, address: str, *, reason: str) -> Version:
        """Take one reason away."""
        version = self._one(address)
        (self.layout.version(version.volume, version.number) / "pins" / _key(reason)).unlink(missing_ok=True)
        return self._one(version.address)

    def lease(self, addresses: Iterable[str], *, holder: str) -> None:
        """Keep versions from gc while `holder` reads them."""
        folder = self.layout.leases(holder)
        with _disk(f"lease for {holder}"), self._steady():
            versions = [self._one(address) for address in addresses]
            folder.mkdir(exist_ok=True)
            for version in versions:
                (folder / f"{version.volume.replace('/', ':')}@{version.number}").touch()

    def release(self, holder: str) -> None:
        """Give all leases of `holder` back."""
        remove(self.layout.leases(holder))

    def retire(self, address: str, *, reason: str) -> Version:
        """Hide a version from every selector."""
        version = self._one(address)
        with _disk(f"retire {address}"):
            write_whole(self.layout.version(version.volume, version.number) / "RETIRED", reason)
        return self._one(version.address)

    def _one(self, address: str) -> Version:
        versions = self.resolve(address)
        if len(versions) != 1 or Address.parse(address).many:
            raise SpecError(f"{address} names several versions; name one, such as {versions[-1].address}")
        return versions[0]

    def _commit_sealed(self, staging: Staging, record: Record) -> None:
        ready = staging.root / "ready"
        if commit.read_plan(ready) is None:
            parts = self.sealed(staging.job_id)
            if parts is None:
                raise Conflict(
                    f"job {staging.job_id}, attempt {staging.attempt}: not all replicas have sealed, nothing is committed"
                )
            spec = self.ledger.spec(staging.job_id)
            drafts = commit.plan_drafts(ready, spec, commit.union(parts, spec))
            ready.mkdir(exist_ok=True)
            commit.gather(staging, drafts, parts)
        else:
            drafts = []
        self._finish(staging.job_id, drafts, ready, record)

    def _finish(self, job_id: str, drafts: Sequence[commit.Draft], ready: Path, record: Record) -> None:
        plan = commit.read_plan(ready)
        if plan is None:
            plan = commit.assemble(self.layout, self.catalog, drafts, record=record)
            commit.decide(self.layout, plan, ready=ready)
        commit.publish(self.layout, plan, ready=ready, job_id=job_id)

    def _current(self, job_id: str, attempt: int) -> Staging:
        staging = self.staging(job_id)
        if staging is None or staging.attempt != attempt:
            now = "none" if staging is None else staging.attempt
            raise Conflict(
                f"job {job_id}: attempt {attempt} cannot be committed, the current one is {now}; "
                "what a fenced attempt wrote is left aside"
            )
        return staging

    def _refuse_sealed(self, job_id: str) -> None:
        if committed(self.layout, job_id) is not None or self.sealed(job_id) is not None:
            raise Conflict(f"job {job_id} has sealed: it is committed, never run again")

    def _clear(self, staging: Staging) -> None:
        """Give the disk back, but keep the seal: it says that the job must not run again."""
        for entry in list(os.scandir(staging.root)):
            if entry.name != "sealed":
                self._discard(staging.root / entry.name)

    def _discard(self, path: Path) -> None:
        taken = self.layout.discard(path)
        if taken is not None:
            remove(taken)

    @contextmanager
    def _working(self, job_id: str, *, staged: bool = True) -> Iterator[None]:
        """Only one of us stages or commits a job at a time; gc leaves it alone meanwhile."""
        if staged:
            self.ledger.spec(job_id)
        folder = self.layout.staging(job_id)
        folder.mkdir(exist_ok=True)
        with locked(folder / "lock"):
            yield

    @contextmanager
    def _steady(self) -> Iterator[None]:
        """No version is deleted meanwhile: gc takes the same lock alone for each one it deletes."""
        with locked(self.layout.root / "gc.lock", shared=True):
            yield


@contextmanager
def _disk(what: str) -> Iterator[None]:
    """Translate what the file system says, once, at the edge."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"could not {what}: {error.strerror or error}"
            + (f" ({error.filename})" if error.filename else "")
            + "; nothing half-done is visible, and the same again is safe"
        ) from error


def _fill(new: Staging, before: Staging | None) -> None:
    """Checkpoints of the attempt before, copied so that what it still writes changes nothing here."""
    if before is None or not before.checkpoints.is_dir():
        new.checkpoints.mkdir()
        return
    part = new.root / ".checkpoints"
    copy_tree(before.checkpoints, part)
    part.rename(new.checkpoints)


def _part(text: bytes, staging: Staging, role: str, index: int) -> PartManifest:
    try:
        part = wire.loads(PartManifest, text)
    except SpecError as error:
        raise StoreError(f"the seal of replica {role}-{index} cannot be read: {error}") from error
    if (part.job_id, part.attempt, part.role, part.index) != (staging.job_id, staging.attempt, role, index):
        raise StoreError(
            f"the seal of replica {role}-{index} is that of {part.role}-{part.index}, "
            f"job {part.job_id}, attempt {part.attempt}"
        )
    return part


def _record(
    spec: JobSpec, job_id: str, metrics: Mapping[str, float], modules: Sequence[str] | None
) -> Record:
    roles = [role.entrypoint or " ".join(role.command or ()) for role in spec.roles]
    return Record(
        volume="",
        number=0,
        digest="",
        created=time.time(),
        job_id=job_id,
        output="",
        job_name=spec.name,
        origin=spec.origin,
        inputs={name: given.versions for name, given in spec.inputs.items()},
        params=spec.params,
        metrics=dict(metrics),
        code=spec.code,
        image=spec.image,
        image_digest=spec.image_digest,
        entrypoint=roles[0],
        modules=None if modules is None else tuple(modules),
    )


def _key(reason: str) -> str:
    """A file name for a reason, which may hold anything."""
    from blake3 import blake3

    return blake3(reason.encode()).hexdigest()[:32]
