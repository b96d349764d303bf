"""The data that a store returns of its versions, records and attempts, the same for every store.

The calls of a store are in :mod:`muster.volumes.protocols`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from muster.core.data import Pinned
from muster.core.job import Interpreter, JobSpec
from muster.core.origin import Origin
from muster.core.status import JobState


@dataclass(frozen=True, kw_only=True)
class Version:
    """One immutable directory: its volume, number, digest and perhaps a partition.

    :param digest: ``b3:`` and the BLAKE3 hash of its manifest: the same content, the same digest.
    :param created: the time when its job's last replica sealed, or when it was put, in seconds since the
        epoch.
    :param retired: why it was hidden from selectors; None where it is live.
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
        """The version as a spec holds it."""
        return Pinned(address=self.address, digest=self.digest, partition=self.partition)


@dataclass(frozen=True, kw_only=True)
class Record:
    """The origin of a version, so that every prediction can be traced to its rows.

    :param output: the name of the job's output.
    :param siblings: the other versions of the same commit; empty where it has more than 100.
    :param entrypoint: the entrypoint or command; of several roles each with its name.
    :param modules: the author's modules that were imported, or None where they are unknown.
    :param note: for versions that no job wrote: the user who put it, and the source.
    :param interpreter: what ran the job in place of the image's lock; `image_digest` says what the Dag asked for.
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
    interpreter: Interpreter | None = None

    @classmethod
    def of_job(
        cls,
        spec: JobSpec,
        job_id: str,
        *,
        metrics: Mapping[str, float],
        modules: Sequence[str] | None,
        created: float,
    ) -> Record:
        """Make a record with the fields that all versions of a job share, the same on every machine."""
        runs = [(role.name, role.entrypoint or " ".join(role.command or ())) for role in spec.roles]
        entrypoint = runs[0][1] if len(runs) == 1 else ", ".join(f"{name}: {what}" for name, what in runs)
        return cls(
            volume="",
            number=0,
            digest="",
            created=created,
            job_id=job_id,
            output="",
            job_name=spec.name,
            origin=spec.origin,
            inputs={name: given.versions for name, given in spec.origins.items()},
            params=spec.params,
            metrics=dict(metrics),
            code=spec.code,
            image=spec.image,
            image_digest=spec.image_digest,
            entrypoint=entrypoint,
            modules=None if modules is None else tuple(modules),
            interpreter=spec.interpreter,
        )

    def is_of(self, spec: JobSpec, job_id: str) -> bool:
        """Whether a job of this spec made the version, as far as the record tells."""
        told = Record.of_job(spec, job_id, metrics={}, modules=None, created=0.0)
        same = (
            "job_id",
            "job_name",
            "origin",
            "inputs",
            "params",
            "code",
            "image",
            "image_digest",
            "entrypoint",
            "interpreter",
        )
        return all(getattr(self, name) == getattr(told, name) for name in same)


@dataclass(frozen=True, kw_only=True)
class Made:
    """What one job made, all of it live, and what it was made from.

    :param outputs: the addresses of its versions, by output.
    :param modules: the author's files that it imported or read, or None where every file of its code counts.
    :param created: when its last replica sealed, in seconds since the epoch.
    """

    job_id: str
    spec: JobSpec
    outputs: Mapping[str, tuple[str, ...]]
    metrics: Mapping[str, float] = field(default_factory=dict)
    modules: tuple[str, ...] | None = None
    created: float = 0.0

    @property
    def addresses(self) -> tuple[str, ...]:
        """All of its versions."""
        return tuple(address for addresses in self.outputs.values() for address in addresses)


@dataclass(frozen=True, kw_only=True)
class TaskEnd:
    """The end of a task that no job records: it kept versions, judged, released, or failed before it had a job.

    :param origin: the task. :param began: when its process began, and `at` when it ended, in seconds since the epoch.
    :param state: succeeded or failed. :param line: what it says of itself, or why it failed.
    :param kept_of: the job whose versions it kept; empty where it kept none. :param outputs: what it kept, or a search made, by output.
    """

    origin: Origin
    began: float
    at: float
    state: JobState
    line: str = ""
    kept_of: str = ""
    outputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunNote:
    """What is noted of a run that has not come to its end. :param run: an origin without a task.

    :param alive: whether it was noted in the last three minutes; if not, the process that runs it has died, or is away.
    """

    run: Origin
    alive: bool


@dataclass(frozen=True, kw_only=True)
class Staging:
    """The folder in which one attempt of a gang, and no other, may write.

    :param root: on the store's own file system. Below it ``ROLE-INDEX/OUTPUT/`` is one replica's
        folder for one output, ``sealed/ROLE-INDEX.json`` its part-manifest, and ``checkpoints/``
        those of the attempt before, of which no process can write them any more: a copy (never links),
        or the very folder.
    """

    job_id: str
    attempt: int
    root: Path

    def output(self, role: str, index: int, name: str) -> Path:
        """The folder of one output of one replica."""
        return self.root / f"{role}-{index}" / name

    def sealed(self, role: str, index: int) -> Path:
        """The file of one replica's part-manifest, which it writes last."""
        return self.root / "sealed" / f"{role}-{index}.json"

    def seals(self, spec: JobSpec) -> list[Path]:
        """The files of the part-manifests of all replicas that this attempt of the job has."""
        roles = self.as_begun(spec).roles
        return [self.sealed(role.name, index) for role in roles for index in range(role.replicas)]

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints, shared by all replicas of this attempt."""
        return self.root / "checkpoints"

    @property
    def replicas(self) -> Path:
        """The file with the number of replicas of an elastic gang in this attempt, written before the attempt counts.

        Without it, the gang has all that the spec names.
        """
        return self.root / "replicas"

    def as_begun(self, spec: JobSpec) -> JobSpec:
        """Return the job with the replicas that this attempt of it has: a gang that shrinks or grows begins another."""
        if not spec.elastic:
            return spec
        with suppress(FileNotFoundError):
            return spec.sized(int(self.replicas.read_text(encoding="ascii")))
        return spec.sized(spec.replicas)

    @property
    def gone(self) -> Path:
        """The folder that says which processes of this attempt are gone (:mod:`muster.volumes.handing_over`)."""
        return self.root / "gone" / str(self.attempt)


@dataclass(frozen=True, kw_only=True)
class LogTime:
    """When a part of a log was stored: from byte `offset` on, up to the next part.

    :param at: seconds since the epoch.
    """

    offset: int
    at: float


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What a check of a store found.

    :param damaged: the number of problems that are damage; `damage` says the first of them, one line each.
    :param harmless: the number of other findings.
    """

    versions: int
    files: int
    size_bytes: int
    damaged: int = 0
    damage: tuple[str, ...] = ()
    harmless: int = 0


@dataclass(frozen=True, kw_only=True)
class Held:
    """The disk space that one ended job still uses.

    :param ended: when it ended, in seconds since the epoch.
    :param outputs_bytes: of outputs that could not be committed.
    """

    job_id: str
    ended: float
    outputs_bytes: int
    checkpoints_bytes: int


MOST_CHECKPOINTS = 500
"""Of so many jobs at most one version takes in the checkpoints."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """The checkpoints of a job that did not succeed.

    :param job_id: the job that wrote them: the given one, or one that it follows.
    :param newest: time of the newest file, in seconds since the epoch.
    """

    job_id: str
    files: int
    size_bytes: int
    newest: float


@dataclass(frozen=True, kw_only=True)
class CollectionPlan:
    """What garbage collection would delete, and why the other versions stay.

    :param versions: versions to delete; `kept` gives for every other one the reason it stays.
    :param staging: job ids whose staged files to delete. `torn`: folders of abandoned commits.
    :param resumable: job ids whose checkpoints stay, since their task may continue from them; their other
        staged files are deleted.
    :param code: digests of snapshots that nothing uses. `jobs`: ledger entries past their age.
    """

    versions: tuple[Version, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    staging: tuple[str, ...] = ()
    torn: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()
    resumable: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The size of its versions; less is freed where they share files with others."""
        return sum(version.size_bytes for version in self.versions)


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What garbage collection deleted.

    :param freed_bytes: bytes of unlinked files, without those that wait in the trash.
    :param at_once: whether the disk was nearly full, so that deleted versions did not wait in the trash.
    """

    plan: CollectionPlan
    freed_bytes: int
    at_once: bool = False


@dataclass(frozen=True, kw_only=True)
class LogPage:
    """Some events of an event log, in their order. :param end: where the next ones begin, to be asked for."""

    events: tuple[Mapping[str, Any], ...]
    end: int


class UpkeepKind(str, Enum):
    """What is done for a store now and then."""

    FSCK = "fsck"
    FSCK_DEEP = "fsck-deep"
    GC = "gc"
    SWEEP = "sweep"


@dataclass(frozen=True, kw_only=True)
class UpkeepNote:
    """When upkeep of one kind last ended well.

    :param work: the kind.
    :param at: in seconds since the epoch.
    :param checked: what that check found; None of gc and a sweep.
    """

    work: UpkeepKind
    at: float
    checked: Checked | None = None
