"""The store: versions, code snapshots and the job ledger behind one Protocol.

A folder today (:mod:`muster.volumes.folder`), the service in front of a cluster's claim next; both
run the same contract tests (``tests/contract/test_store.py``). Airflow, backends and laptops reach
volumes only through this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from muster.core.job import JobSpec, Origin, Pinned
from muster.core.replica import PartManifest
from muster.core.room import Room
from muster.core.status import JobStatus
from muster.volumes.manifest import Entry

if TYPE_CHECKING:
    from muster.volumes.fsck import Progress, Report
    from muster.volumes.retention import Collected, Plan


@dataclass(frozen=True, kw_only=True)
class Version:
    """One immutable directory: its volume, number, digest and perhaps a partition.

    :param digest: ``b3:`` and the BLAKE3 hash of its manifest: the same content, the same digest.
    :param created: when its job's last replica sealed, or when it was put; in seconds since the epoch.
    :param retired: why no selector finds it any more; None where it is live.
    """

    volume: str
    number: int
    digest: str
    size_bytes: int
    files: int
    created: float
    partition: str | None = None
    retired: str | None = None
    pins: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """Its pinned address, ``volume://flights/features@7``."""
        return f"volume://{self.volume}@{self.number}"

    @property
    def pinned(self) -> Pinned:
        """What a spec carries of it."""
        return Pinned(address=self.address, digest=self.digest, partition=self.partition)


@dataclass(frozen=True, kw_only=True)
class Record:
    """Where a version comes from, so that every prediction can be traced to its rows.

    :param output: under which name the job wrote it.
    :param siblings: the other versions of the same commit.
    :param entrypoint: what ran, or its command; of several roles each with its name.
    :param modules: the author's modules that were imported, or None where that is not known.
    :param note: for versions that no job wrote: who put it, and from where.
    """

    volume: str
    number: int
    digest: str
    created: float
    job_id: str
    output: str
    partition: str | None = None
    job_name: str = ""
    origin: Origin = field(default_factory=Origin)
    inputs: Mapping[str, tuple[Pinned, ...]] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    code: str | None = None
    image: str = ""
    image_digest: str = ""
    entrypoint: str = ""
    modules: tuple[str, ...] | None = None
    siblings: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Staging:
    """Where one attempt of a gang, and no other, may write.

    :param root: on the store's own file system. Below it ``ROLE-INDEX/OUTPUT/`` is one replica's
        folder for one output, ``sealed/ROLE-INDEX.json`` its part-manifest, and ``checkpoints/``
        what the last complete attempt left, copied, never linked.
    """

    job_id: str
    attempt: int
    root: Path

    def output(self, role: str, index: int, name: str) -> Path:
        """Where one replica writes one output."""
        return self.root / f"{role}-{index}" / name

    def sealed(self, role: str, index: int) -> Path:
        """Where one replica writes its part-manifest as its last act."""
        return self.root / "sealed" / f"{role}-{index}.json"

    @property
    def checkpoints(self) -> Path:
        """Shared by the replicas of this attempt."""
        return self.root / "checkpoints"


@dataclass(frozen=True, kw_only=True)
class Held:
    """What one job that ended still holds of the disk.

    :param ended: when, in seconds since the epoch.
    :param outputs_bytes: of outputs that no commit could take.
    """

    job_id: str
    ended: float
    outputs_bytes: int
    checkpoints_bytes: int


@dataclass(frozen=True, kw_only=True)
class Saved:
    """The checkpoints that a job left which did not succeed.

    :param job_id: whose they are: the job that was asked for, or one that it follows.
    :param newest: when the newest file was written, in seconds since the epoch.
    """

    job_id: str
    files: int
    size_bytes: int
    newest: float


class Ledger(Protocol):
    """Per job_id: spec, owner, status, log. Written by the backend, read by everybody."""

    def create(self, job_id: str, spec: JobSpec, *, owner: str | None = None) -> bool:
        """Enter a job, whole or not at all; False where it was there already with the same spec.

        :raises Conflict: the job_id is there with another spec.
        """

    def spec(self, job_id: str) -> JobSpec:
        """Return what was asked. :raises NotFound: no such job."""

    def status(self, job_id: str) -> JobStatus:
        """Return what was last recorded. :raises NotFound: no such job."""

    def update(self, status: JobStatus) -> None:
        """Record a status, whole or not at all. An ended job's status is never changed again.

        The owner is not taken from `status`: only :meth:`own` sets it.
        """

    def own(self, job_id: str, *, owner: str, expected: str | None) -> bool:
        """Set the owner if it is `expected` now; whether that was so."""

    def append(self, job_id: str, data: bytes) -> None:
        """Add whole lines to the job's log."""

    def read(self, job_id: str, *, after: int = 0, limit_bytes: int = 1 << 20) -> tuple[bytes, int]:
        """Return whole lines of the log from offset `after`, and the offset after them."""

    def log_bytes(self, job_id: str) -> int:
        """How long the job's log is now; 0 before its first line."""

    def jobs(self) -> list[str]:
        """Every job_id, oldest first."""

    def statuses(self, job_ids: Sequence[str]) -> list[JobStatus]:
        """Return what was last recorded of many jobs, at little more than the cost of one.

        Those that cannot be found or read are left out.
        """

    def specs(self, job_ids: Sequence[str]) -> dict[str, JobSpec]:
        """Return what was asked for by many jobs, as :meth:`statuses` does."""


class Store(Protocol):
    """Where volumes live."""

    @property
    def ledger(self) -> Ledger:
        """The job ledger of this store."""

    def resolve(self, address: str) -> tuple[Version, ...]:
        """Return what an address names now: one version, or for a selector of many all of them.

        Retired versions are found by number and digest only. Many come in the order of their
        partitions.

        :raises NotFound: nothing is there; the message says what is.
        """

    def volumes(self) -> list[str]:
        """Every volume's name, sorted."""

    def versions(self, volume: str) -> list[Version]:
        """Every version of a volume that can be read, oldest first."""

    def newest(self, volume: str, *, limit: int, before: int | None = None) -> list[Version]:
        """The newest `limit` versions of a volume (of those below number `before`), newest first.

        What it costs does not grow with the volume, so that a page of ten thousand versions is fast.
        """

    def count(self, volume: str) -> int:
        """How many versions of a volume can be read; 0 where there is no such volume."""

    def record(self, address: str) -> Record:
        """Return where one version comes from; also of one whose data was deleted by gc."""

    def manifest(self, address: str) -> Mapping[str, Entry]:
        """Return every file of one version by its path, with hash and size; also after gc."""

    def path(self, address: str) -> Path:
        """Return the folder of one version's data (or the file that the address names in it)."""

    def put(self, root: Path, files: Sequence[str], *, texts: Mapping[str, str] | None = None) -> str:
        """Keep `files` (paths below `root`) as a code snapshot; the same bytes once. Return its digest.

        :param texts: files by path that hold this text, whatever lies below `root` under that path.
        """

    def code(self, digest: str) -> Path:
        """Return the folder of a code snapshot, unpacked and read-only."""

    def stage(self, job_id: str) -> Staging:
        """Begin a new attempt of a job that the ledger holds: an empty staging of its own, with checkpoints.

        Those are a copy of what the attempt before left; for a job's first attempt, of what the job left
        that it follows. Every earlier attempt is fenced: it can no longer be committed.
        """

    def staging(self, job_id: str) -> Staging | None:
        """Return the current attempt's staging, or None before the first."""

    def saved(self, job_id: str) -> Saved | None:
        """Return the checkpoints that a job left, or a job that it follows, None where there are none.

        A job that succeeded leaves none. :raises NotFound: no such job.
        """

    def sealed(self, job_id: str) -> tuple[PartManifest, ...] | None:
        """Return the part-manifests of the current attempt if all replicas have sealed, else None."""

    def commit(
        self,
        job_id: str,
        *,
        attempt: int,
        metrics: Mapping[str, float] | None = None,
        modules: Sequence[str] | None = None,
    ) -> dict[str, tuple[Version, ...]]:
        """Make what all replicas sealed into versions: every output or none, once per job_id.

        A second call for the same job_id returns the same versions, also after a crash at any point.

        :raises Conflict: `attempt` is not the current one, or not all replicas have sealed.
        :raises StoreError: the disk is full, two replicas wrote the same file, …; nothing is visible.
        """

    def add(self, volume: str, source: Path, *, partition: str | None = None, note: str = "") -> Version:
        """Copy a folder or file into a new version, for ``muster volumes put``."""

    def pin(self, address: str, *, reason: str) -> Version:
        """Keep a version from gc under a reason, such as ``deployment/flights``; idempotent."""

    def unpin(self, address: str, *, reason: str) -> Version:
        """Take one reason away."""

    def lease(self, addresses: Iterable[str], *, holder: str) -> None:
        """Keep versions from gc while `holder` (a job_id) reads them."""

    def release(self, holder: str) -> None:
        """Give all leases of `holder` back."""

    def retire(self, address: str, *, reason: str) -> Version:
        """Hide a version from every selector; by number and digest it stays readable until gc."""

    def reinstate(self, address: str) -> Version:
        """Let selectors find a retired version again; idempotent."""

    def check(self, *, deep: bool = False, protect: bool = False, progress: Progress | None = None) -> Report:
        """Check every committed version where the store is; see :func:`muster.volumes.fsck.check`."""

    def plan(
        self,
        *,
        volumes: Collection[str] = (),
        keep_last: int = 3,
        job_days: float = 30.0,
        young_days: float = 0.0,
        checkpoint_days: float = 7.0,
    ) -> Plan:
        """Say what :meth:`collect` would take away now; see :func:`muster.volumes.retention.plan`.

        :raises Corrupt: the store is damaged, and gc takes nothing.
        """

    def collect(
        self,
        *,
        volumes: Collection[str] = (),
        keep_last: int = 3,
        job_days: float = 30.0,
        young_days: float = 0.0,
        checkpoint_days: float = 7.0,
    ) -> Collected:
        """Take away what :meth:`plan` names; see :func:`muster.volumes.retention.collect`."""

    def room(self) -> Room:
        """Say how much room is left where the versions are kept."""

    def held(self) -> tuple[Held, ...]:
        """Say what jobs that have ended still hold of the disk, oldest first."""

    def let_go(self, job_ids: Collection[str]) -> int:
        """Delete all that these ended jobs hold; return its size in bytes.

        :raises SpecError: one has not ended.
        """

    def salvage(self, job_id: str, target: Path) -> int:
        """Copy what an ended job staged, and could not be committed, to ``TARGET/REPLICA/OUTPUT/``; count files.

        :param target: a folder that is not there yet, or is empty.
        :raises NotFound: it holds nothing.
        """

    def close(self) -> None:
        """Give back the connections that are held open; the store is asked no more."""
