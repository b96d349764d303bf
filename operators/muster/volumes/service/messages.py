"""What the store service and its clients say to each other, as :mod:`muster.core.wire` writes it.

Jobs, statuses, versions and records cross as the dataclasses that they are; here is the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from muster.core.job import JobSpec
from muster.core.replica import PartManifest
from muster.core.status import JobStatus
from muster.volumes.base import Held, Saved, Version

MIB = 1 << 20
LIMIT_JSON_BYTES = 16 * MIB
LIMIT_LINES_BYTES = 4 * MIB
LIMIT_LOG_BYTES = 1024 * MIB
"""How long a job's log gets by what its ranks print."""
LIMIT_SEAL_BYTES = 32 * MIB  # some 400,000 files of one replica
LIMIT_WORKER_BYTES = 16 * MIB
MOST_SPECS = 200

CURSOR = "muster-cursor"
"""The header that says after which offset of a log the next line begins."""

ATTEMPT = "muster-attempt"
"""The header that says which attempt a start of a gang became."""


@dataclass(frozen=True, kw_only=True)
class Names:
    """Volumes or jobs."""

    names: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Count:
    """How many, or how long."""

    count: int


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Yes or no."""

    yes: bool


@dataclass(frozen=True, kw_only=True)
class Versions:
    """Some versions, in the order that was asked for."""

    versions: tuple[Version, ...]


@dataclass(frozen=True, kw_only=True)
class Statuses:
    """What is recorded of some jobs."""

    statuses: tuple[JobStatus, ...]


@dataclass(frozen=True, kw_only=True)
class Specs:
    """What some jobs are, by their id."""

    specs: Mapping[str, JobSpec]


@dataclass(frozen=True, kw_only=True)
class Why:
    """A version and the reason to keep, release, retire or reinstate it."""

    address: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a holder reads."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A job to be entered into the ledger."""

    spec: JobSpec
    owner: str | None = None


@dataclass(frozen=True, kw_only=True)
class Ownership:
    """Who wants to own a job, and who must own it now for that."""

    owner: str
    expected: str | None = None


@dataclass(frozen=True, kw_only=True)
class Begin:
    """A new attempt is wanted. The same request, sent again, is the same attempt."""

    request: str


@dataclass(frozen=True, kw_only=True)
class Place:
    """The staging of one attempt; `root` is its folder as the service sees it."""

    job_id: str
    attempt: int
    root: str


@dataclass(frozen=True, kw_only=True)
class Current:
    """The staging of the current attempt, or None before the first. `taken`: a pod has asked for it."""

    place: Place | None
    taken: bool = False


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The part-manifests of an attempt, or None where one is missing."""

    parts: tuple[PartManifest, ...] | None


@dataclass(frozen=True, kw_only=True)
class Left:
    """The checkpoints that a job left, or None."""

    saved: Saved | None


@dataclass(frozen=True, kw_only=True)
class Order:
    """A commit of one attempt."""

    attempt: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    modules: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Committed:
    """The versions of one commit by output."""

    outputs: Mapping[str, tuple[Version, ...]]


@dataclass(frozen=True, kw_only=True)
class Lifetime:
    """For how long a token is wanted."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class Secret:
    """A token."""

    token: str


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What gc keeps; see :func:`muster.volumes.retention.plan`."""

    volumes: tuple[str, ...] = ()
    keep_last: int = 3
    job_days: float = 30.0
    young_days: float = 0.0
    checkpoint_days: float = 7.0


@dataclass(frozen=True, kw_only=True)
class Swept:
    """A :class:`muster.volumes.retention.Plan`, and what was freed by it."""

    versions: tuple[Version, ...]
    kept: Mapping[str, str]
    staging: tuple[str, ...]
    torn: tuple[str, ...]
    code: tuple[str, ...]
    jobs: tuple[str, ...]
    resumable: tuple[str, ...] = ()
    freed_bytes: int = 0
    at_once: bool = False


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What ended jobs hold."""

    held: tuple[Held, ...]


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """Jobs by their ids."""

    job_ids: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Checking:
    """How far a check is: the version it looks at now, and how many of how many it has done."""

    address: str
    done: int
    count: int
