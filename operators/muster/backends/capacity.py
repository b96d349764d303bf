"""What there is to run on, who has it and who waits for it: the words of one machine and of a cluster alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from muster.backends.forecast import Competition
    from muster.core.job import JobSpec

NO_CLASS = "-"


@dataclass(frozen=True, kw_only=True)
class Cards:
    """GPUs of one class, node or team. :param total: 0 for a team, which owns none.

    :param why_not: why their node takes no pods; empty where it takes some.
    """

    name: str
    total: int = 0
    used: int = 0
    gpu_class: str = NO_CLASS
    why_not: str = ""

    @property
    def free(self) -> int:
        """Free cards that a job may have now: none of a node that takes no pods."""
        return 0 if self.why_not else max(0, self.total - self.used)


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a team's queue has of one flavor's cards.

    :param team: the ClusterQueue; `quota` is its own, before borrowing.
    :param used: held by what it has admitted; `borrowed` of them beyond its own quota.
    """

    team: str
    flavor: str
    gpu_class: str
    quota: int
    used: int
    borrowed: int


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """The GPUs that there are. Nodes without any are left out.

    :param by_team: whose pods hold cards; `shares` what each team may hold, where quotas say so.
    :param unseen: what these counts leave out, and what would mend it; empty where they are whole.
    """

    by_class: tuple[Cards, ...]
    by_node: tuple[Cards, ...]
    by_team: tuple[Cards, ...] = ()
    shares: tuple[Share, ...] = ()
    unseen: str = ""


@dataclass(frozen=True, kw_only=True)
class QueuePlace:
    """Where in its queue a job waits. :param number: from 1."""

    number: int
    of: int


@dataclass(frozen=True, kw_only=True)
class WaitingJob:
    """A job that waits in a queue.

    :param job_id: None where what waits is not a job of muster.
    :param name: of the object that waits: a JobSet's or Job's; on a machine the job_id.
    :param title: what its author calls it, such as ``flights.train``.
    :param needs: of all its replicas together, by resource: cores, bytes, cards.
    :param since: seconds since the epoch.
    """

    name: str
    queue: str
    priority: int
    since: float
    why: str
    needs: Mapping[str, float]
    namespace: str = ""
    title: str = ""
    job_id: str | None = None
    place: QueuePlace | None = None


@dataclass(frozen=True, kw_only=True)
class Line:
    """A queue that jobs may name.

    :param team: whose quota is behind it; empty where there is none.
    :param running: jobs that it has let in and that have not ended.
    :param stopped: why nothing leaves it now; empty where all is well.
    """

    name: str
    waiting: int
    running: int
    team: str = ""
    stopped: str = ""


@dataclass(frozen=True, kw_only=True)
class Queues:
    """Every queue, and what waits: queue by queue, the next to leave it first."""

    lines: tuple[Line, ...]
    waiting: tuple[WaitingJob, ...]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A piece of a job that runs now.

    :param name: ``rank 0``, or of a replica that is a pod ``main-0``.
    :param process: ``pid 8754`` or ``pod train-9f2c-1-main-0-abcde``; `node` where it is.
    """

    name: str
    process: str
    node: str = ""


@dataclass(frozen=True, kw_only=True)
class HeldResources:
    """What a job has of one node now. :param gpus: its cards there; `which` are their numbers, where these are known."""

    node: str
    gpus: int = 0
    which: tuple[str, ...] = ()


class Capacity(Protocol):
    """Looks at what there is; one look costs a few requests, however much is found."""

    def gpus(self) -> Gpus:
        """Return who has the GPUs now. :raises Forbidden: not even the nodes may be read."""

    def queues(self) -> Queues:
        """Return what waits now, and why. :raises Forbidden: the queues may not be read."""

    def parts(self, job_id: str) -> tuple[Part, ...]:
        """Return what of a job runs now, in the order of its ranks; nothing of one that does not run."""

    def held(self, job_ids: Collection[str]) -> Mapping[str, tuple[HeldResources, ...]]:
        """Return what each of these jobs has now, node by node; one that has nothing is left out."""

    def outlook(self, jobs: Sequence[JobSpec] = ()) -> Competition:
        """Return what jobs compete for here, which do now, and what each of `jobs` would take.

        :raises Forbidden: the queues may not be read.
        """
