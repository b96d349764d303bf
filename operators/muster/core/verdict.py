"""Why a job ended: a cause, the first rank at fault, and what to do.

The exit codes are a contract between the worker and its watchers: a pod's failure policy
matches the same numbers as the supervisor on one machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, IntEnum

from muster.core.text import one_line


class ExitCode(IntEnum):
    """How a worker ends. Codes outside this list mean that the worker itself was killed."""

    SEALED = 0
    USER_ERROR = 64
    SPEC_ERROR = 65
    HANG = 66
    OUT_OF_MEMORY = 67
    RANK_LOST = 68
    SEAL_FAILED = 69
    STOPPED = 70
    GIVEN_UP = 71
    """As `RANK_LOST` or `HANG`, and the gang has started again in its pods as often as it may."""


class Cause(str, Enum):
    """Why a job ended without success, and whether it is tried again.

    ================  ====================  ===================  ==========================================
    cause             gang starts again     Airflow tries again  why
                      (free)                (costs a retry)
    ================  ====================  ===================  ==========================================
    user error        no                    no                   the same code fails the same way
    spec error        no                    no                   the request is wrong
    out of memory     no                    no                   the next try needs as much memory
    GPU out of memory no                    no                   the next try needs as much memory
    rank lost         from its checkpoint   then                 it was killed; not the author's fault
    hang              from its checkpoint   no                   it hung again at each start
    evicted           from its checkpoint   then                 the cluster's own doing
    node lost         from its checkpoint   then                 the cluster's own doing
    image unavailable no                    yes                  a registry or network may be back
    never scheduled   no                    no                   no machine is big enough
    queue timeout     no                    yes                  there may be room at another time
    idle              no                    no                   the next try would do nothing, too
    run timeout       no                    yes                  a slow or stuck machine looks like that
    timeout           no                    yes                  Airflow's limit of a task or run, likewise
    disk full         no                    yes                  there may be room by then
    commit failed     no                    yes                  a disk or network that failed may be back
    backend error     no                    yes                  not the author's fault
    cancelled         no                    no                   a person, or the end of its task, asked for it
    ================  ====================  ===================  ==========================================

    A gang starts again ``max_restarts`` times; *then* is after that.
    """

    USER_ERROR = "user error"
    SPEC_ERROR = "spec error"
    OUT_OF_MEMORY = "out of memory"
    GPU_OUT_OF_MEMORY = "GPU out of memory"
    RANK_LOST = "rank lost"
    HANG = "hang"
    EVICTED = "evicted"
    NODE_LOST = "node lost"
    IMAGE_UNAVAILABLE = "image unavailable"
    UNSCHEDULABLE = "can never be scheduled"
    QUEUE_TIMEOUT = "queue timeout"
    IDLE = "idle"
    RUN_TIMEOUT = "run timeout"
    TIMEOUT = "timeout"
    DISK_FULL = "disk full"
    COMMIT_FAILED = "commit failed"
    BACKEND_ERROR = "backend error"
    CANCELLED = "cancelled"

    @property
    def restarts_gang(self) -> bool:
        """Whether the backend starts the gang again from its checkpoint, at no cost to the author."""
        return self in _RESTARTS

    @property
    def retried(self) -> bool:
        """Whether Airflow should try the task again; that costs the author one retry."""
        return self not in _FINAL


_RESTARTS = frozenset({Cause.RANK_LOST, Cause.HANG, Cause.EVICTED, Cause.NODE_LOST})
_FINAL = frozenset(
    {
        Cause.USER_ERROR,
        Cause.SPEC_ERROR,
        Cause.OUT_OF_MEMORY,
        Cause.GPU_OUT_OF_MEMORY,
        Cause.HANG,
        Cause.IDLE,
        Cause.UNSCHEDULABLE,
        Cause.CANCELLED,
    }
)

CAUSES: Mapping[int, Cause] = {
    ExitCode.USER_ERROR: Cause.USER_ERROR,
    ExitCode.SPEC_ERROR: Cause.SPEC_ERROR,
    ExitCode.HANG: Cause.HANG,
    ExitCode.OUT_OF_MEMORY: Cause.OUT_OF_MEMORY,
    ExitCode.RANK_LOST: Cause.RANK_LOST,
    ExitCode.SEAL_FAILED: Cause.COMMIT_FAILED,
    ExitCode.GIVEN_UP: Cause.RANK_LOST,
}
"""What the exit code of a worker means where its report is missing."""

VERDICT_LINES = 4
_RUN_AGAIN = "run again"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Why a job ended, in the four lines that a task's log ends with.

    :param rank: the first rank at fault, where one is known.
    :param message: the error of that rank, one line.
    :param advice: what to do next, one line.
    """

    cause: Cause
    message: str
    advice: str
    rank: int | None = None

    def __post_init__(self) -> None:
        for field in ("message", "advice"):
            object.__setattr__(self, field, one_line(getattr(self, field)))

    def going_on(self, again: str) -> Verdict:
        """The same verdict, with the task's own next step in place of "run again".

        It is recorded at the job's end, and every place that shows the verdict shows it.

        :param again: :attr:`muster.core.origin.Origin.again`; empty changes nothing.
        """
        return replace(self, advice=self.advice.replace(_RUN_AGAIN, again)) if again else self

    def render(self, *, job_id: str) -> str:
        """Return four lines: cause and rank, message, what to do, where the full log is."""
        return "\n".join((self._where, self.message, self.advice, full_log(job_id)))

    @property
    def line(self) -> str:
        """Cause, rank and message on one line, for tables."""
        return f"{self._where}: {self.message}"

    @property
    def _where(self) -> str:
        return self.cause.value if self.rank is None else f"{self.cause.value}, rank {self.rank}"


def full_log(job_id: str) -> str:
    """Return a verdict's last line: the command that shows the full log."""
    return f"full log: muster jobs logs {job_id}"


SEEN_LATE_SECONDS = 2.0
"""How much later a kill may be seen than the complaints of its peers: by then the machine may have had no CPU for who sees it."""


def first_of(verdicts: Sequence[Verdict]) -> Verdict | None:
    """Return the gang's verdict of those on its replicas, in the order of time; None where there is none.

    Of a hang, which no rank has alone, it says where the ranks of every replica stood.
    """
    hung = [verdict for verdict in verdicts if verdict.cause is Cause.HANG]
    if len(hung) < 2 or verdicts[0].cause is not Cause.HANG:
        return verdicts[0] if verdicts else None
    silence, _, _ = hung[0].message.partition(": ")
    places = sorted(verdict.message.removeprefix(f"{silence}: ") for verdict in hung)
    return replace(hung[0], rank=None, message=f"{silence}: {', '.join(places)}")
