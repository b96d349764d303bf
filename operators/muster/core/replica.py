"""The contract between a backend and the worker inside a replica, and how a gang goes on whose replicas end.

The backend writes a :class:`Replica` as JSON and runs ``python WORKER REPLICA.json`` in the image's
environment. The worker runs the ranks, seals, writes a :class:`Report` and exits with an
:class:`~muster.core.verdict.ExitCode`. Nothing else passes between them but lines on stdout. The first process of a pod and
the store service say to each other what a :class:`Gone` and an :class:`Outlook` hold.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType

from muster.core.errors import SpecError
from muster.core.job import JobSpec, Role
from muster.core.names import check_job_id
from muster.core.verdict import Cause, ExitCode, Verdict, first_of
from muster.core.wire import loads

LOOPBACK = "127.0.0.1"
HANG_WORD = "hang"
"""The file in the folder of seals that a worker leaves when it finds a hang."""
_PEERS_SECONDS, _HUNG_SECONDS = 3.0, 10.0


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One replica of a gang, with every path as this replica sees it.

    :param attempt: the number of this start of the gang, from 1; each has its own staging and checkpoints.
    :param role: name of its role; `index` counts its replicas from 0.
    :param code: the unpacked snapshot, put on the import path; None where the job carries none.
    :param inputs: per input the folders of its versions, in the order of the spec; read-only.
    :param staging: a folder for each output, made by the backend, where this replica alone writes.
    :param checkpoints: shared by all replicas of this attempt; holds what the attempt before left.
    :param scratch: for temporary files; gone when the job is.
    :param sealed: where the part-manifest is written as the last act.
    :param report: where the :class:`Report` is written.
    :param master_address: where rank 0 listens, for launchers that need a rendezvous.
    :param peers: ``host:port`` of each rank of the gang, by rank, for launchers whose ranks each listen;
        else empty.
    """

    job_id: str
    spec: JobSpec
    attempt: int
    role: str
    index: int
    code: str | None
    inputs: Mapping[str, tuple[str, ...]]
    staging: Mapping[str, str]
    checkpoints: str
    scratch: str
    sealed: str
    report: str
    master_address: str = LOOPBACK
    master_port: int = 29500
    gpus: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_job_id(self.job_id)
        for name, wanted, given in (
            ("inputs", self.spec.mounted, self.inputs),
            ("staging", self.spec.staged, self.staging),
        ):
            if set(wanted) != set(given):
                raise SpecError(f"replica's {name} are {sorted(given)}, its job's are {sorted(wanted)}")
            object.__setattr__(self, name, MappingProxyType(dict(given)))
        if not 0 <= self.index < self.job_role.replicas:
            raise SpecError(f"replica {self.index} of role {self.role}: it has {self.job_role.replicas}")

    @property
    def job_role(self) -> Role:
        """The role of this replica."""
        for role in self.spec.roles:
            if role.name == self.role:
                return role
        raise SpecError(f"no role {self.role!r} in job {self.spec.name}")

    @property
    def works(self) -> bool:
        """Whether it is a worker of a data engine, and runs nothing that the author wrote."""
        return self.spec.launcher.drives and self.index > 0

    @property
    def first_rank(self) -> int:
        """The global rank of this replica's first rank: roles in the spec's order, then replicas."""
        before = takewhile(lambda role: role.name != self.role, self.spec.roles)
        return sum(role.replicas * role.ranks for role in before) + self.index * self.job_role.ranks

    def seal_of(self, role: str, index: int) -> str:
        """Return the path of a replica's part-manifest, which is there once it has sealed: all of an attempt share the folder."""
        sealed = Path(self.sealed)
        return str(sealed.with_name(sealed.name.replace(f"{self.role}-{self.index}.", f"{role}-{index}.", 1)))

    def ending_seconds(self) -> float:
        """Return how long it has to end now that another replica has failed: its ranks cannot finish, only clean up.

        After a hang, of which a worker left word, each rank shows where it stands, on a machine that may be busy.
        """
        hangs = os.path.lexists(Path(self.sealed).parent / HANG_WORD)
        return _HUNG_SECONDS if hangs else min(self.spec.grace_seconds, _PEERS_SECONDS)


@dataclass(frozen=True, kw_only=True)
class Report:
    """How a replica ended: its exit code, and what rank 0 returned or the rank at fault said.

    :param at: seconds since the epoch at which the first rank failed, to find the gang's first.
    :param traceback: the last lines of the failing rank's traceback, for the log.
    """

    exit_code: ExitCode
    verdict: Verdict | None = None
    at: float = 0.0
    traceback: tuple[str, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    modules: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", MappingProxyType(dict(self.metrics)))


def read_report(path: str) -> Report | None:
    """Return the report that a worker has written; None where it wrote none, or not all of it.

    :raises OSError: the file is there and cannot be read.
    """
    try:
        return loads(Report, Path(path).read_bytes())
    except (FileNotFoundError, SpecError):
        return None


@dataclass(frozen=True, kw_only=True)
class PartManifest:
    """The files that one replica staged. It is written after all of them are synced: the replica has sealed.

    :param files: for each output the size in bytes of every path below its staging folder.
    :param refused: what the outputs hold that no version keeps, one sentence an output: nothing is committed then.
    """

    job_id: str
    attempt: int
    role: str
    index: int
    files: Mapping[str, Mapping[str, int]]
    refused: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sizes = {output: MappingProxyType(dict(files)) for output, files in self.files.items()}
        object.__setattr__(self, "files", MappingProxyType(sizes))


@dataclass(frozen=True, kw_only=True)
class Gone:
    """What a replica says once none of its processes is left.

    :param report: how it ended.
    :param stays: its pod waits for the gang's next attempt; else the pod ends.
    """

    report: Report
    stays: bool = False


class Going(str, Enum):
    """How an attempt of a gang goes on, as seen by its pods."""

    RUNS = "runs"
    STOPS = "stops"
    """A replica is lost: the others stop, and say when they are gone."""
    AGAIN = "starts again"
    """In the same pods, as the next attempt."""
    ENDS = "ends"
    """In these pods it does not go on: the cluster decides by how they end."""


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What the store service answers about an attempt.

    :param attempt: the next one, where it starts again.
    :param why: it ends. `given_up`: no start is left for the gang, on this cluster or another.
    """

    going: Going
    attempt: int = 0
    why: str = ""
    given_up: bool = False


def first_fault(reports: Sequence[Report]) -> Verdict | None:
    """Return why a gang stopped: what happened first, and not to one that was only told to stop."""
    told = [report for report in reports if report.verdict is not None]
    told.sort(key=lambda report: report.at)
    verdicts = [report.verdict for report in told if report.verdict is not None]
    return first_of([each for each in verdicts if each.cause is not Cause.CANCELLED])


def starts_again(verdict: Verdict) -> str:
    """Return the log's line about a lost rank.

    A job that is cancelled never starts again: of one that does, a pod was told to stop, by who deleted it or took its room.
    """
    who = "" if verdict.rank is None else f", rank {verdict.rank}"
    cause = Cause.EVICTED if verdict.cause is Cause.CANCELLED else verdict.cause
    return f"[muster] {cause.value}{who}: {verdict.message}; the whole gang starts again from its checkpoint"
