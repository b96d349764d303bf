"""What a store tells of its versions, records and attempts: plain data, the same for every store.

What a store does is in :mod:`muster.volumes.protocols`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.core.job import JobSpec, Origin, Pinned


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
        """What the records of all versions of a job say alike, on each machine that commits it."""
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
            inputs={name: given.versions for name, given in spec.inputs.items()},
            params=spec.params,
            metrics=dict(metrics),
            code=spec.code,
            image=spec.image,
            image_digest=spec.image_digest,
            entrypoint=entrypoint,
            modules=None if modules is None else tuple(modules),
        )


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

    :param job_id: the job that left them: the one that was asked for, or one that it follows.
    :param newest: when the newest file was written, in seconds since the epoch.
    """

    job_id: str
    files: int
    size_bytes: int
    newest: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a collection would take away, and why the other versions stay.

    :param versions: they go; `kept` says of every other one why it stays.
    :param staging: job ids whose leftovers go. `torn`: folders of commits that were given up.
    :param resumable: job ids whose checkpoints stay, since their task may go on from them; what else they staged goes.
    :param code: digests of snapshots that nothing refers to. `jobs`: ledger entries past their age.
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
        """What its versions hold; less is freed where they share files with others."""
        return sum(version.size_bytes for version in self.versions)


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What a collection took away.

    :param freed_bytes: counts what was unlinked, not what waits in the trash.
    :param at_once: whether the disk is nearly full, so that the files of its versions did not wait there.
    """

    plan: Plan
    freed_bytes: int
    at_once: bool = False
