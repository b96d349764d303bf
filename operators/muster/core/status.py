"""The status of a job: its state, progress, result and events."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from muster.core.errors import SpecError
from muster.core.progress import Progress
from muster.core.verdict import Verdict


class JobState(str, Enum):
    """The state of a job. It moves down this list.

    A restart leads from RUNNING to PREPARING, a preemption to QUEUED.
    """

    QUEUED = "queued"
    PREPARING = "preparing"
    RUNNING = "running"
    COMMITTING = "committing"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether the job has ended: nothing of it runs, and its result is final."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """The result of a job that succeeded.

    :param outputs: per output the pinned addresses of its versions: one, or for an output with
        ``partition="*"`` one for each folder that was written.
    :param metrics: what rank 0's entrypoint returned: finite numbers by name.
    :param modules: the author's modules that rank 0 had imported, relative to the snapshot;
        None for a command, where they are unknown.
    :param links: links that user code printed, by title.
    """

    outputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    modules: tuple[str, ...] | None = None
    links: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("outputs", "metrics", "links"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """The state of a job now. Times are seconds since the epoch.

    :param reason: one line for people: why it waits, or what is prepared; of a job that succeeded, which workers of a data
        engine it lost on the way.
    :param restarts: how often the gang was restarted.
    :param alive: whether a process works on it; False on a job that has not ended means that its
        supervisor is gone, and submitting the same job_id again resumes it.
    :param progress: the newest numbers that user code printed (:mod:`muster.core.progress`), a few
        seconds old at most; `links` are its links, by title.
    """

    job_id: str
    state: JobState
    submitted: float
    started: float | None = None
    ended: float | None = None
    reason: str = ""
    restarts: int = 0
    alive: bool = True
    owner: str | None = None
    verdict: Verdict | None = None
    result: JobResult | None = None
    progress: Mapping[str, Progress] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("progress", "links"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def addresses(self) -> tuple[str, ...]:
        """The versions that it made; none before it succeeded."""
        made = () if self.result is None else self.result.outputs.values()
        return tuple(address for addresses in made for address in addresses)


@dataclass(frozen=True, kw_only=True)
class JobEvent:
    """A change of state, or lines of the job's log.

    :param offset: in the log; pass it as ``after=`` to continue from here after a disconnect.
    """

    offset: int
    status: JobStatus | None = None
    lines: tuple[str, ...] = ()


_MOST_METRICS = 2000


def check_metrics(metrics: object) -> dict[str, float]:
    """Return an entrypoint's return value as metrics.

    :raises SpecError: not a mapping of names to finite numbers; the message holds the wrong name.
    """
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise SpecError(
            f"the entrypoint returned {type(metrics).__name__}: return None or a dict of metrics "
            "such as {'auc': 0.72}"
        )
    if len(metrics) > _MOST_METRICS:
        raise SpecError(
            f"there are {len(metrics)} metrics: need {_MOST_METRICS} or fewer; put what is more into an output"
        )
    checked: dict[str, float] = {}
    for name, value in metrics.items():
        if not isinstance(name, str) or not name or len(name) > 128 or not name.isprintable():
            raise SpecError(f"metric {name!r:.60}: its name must be text of 1 to 128 printable characters")
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise SpecError(f"metric {name!r} is {value!r:.60}: need a number") from error
        if not math.isfinite(number):
            raise SpecError(
                f"metric {name!r} is {number}: need a finite number; check the loss for divergence"
            )
        checked[name] = number
    return checked
