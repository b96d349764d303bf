"""The plan of a run: plain data, also for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from muster.backends.forecast import Span


class Does(str, Enum):
    """What a stage would do.

    ``maybe`` runs, or is kept if the stages before it make the same as before; ``asks`` is a gate, which is always
    evaluated; ``unknown`` depends on what only the run knows.
    """

    KEPT = "kept"
    RUNS = "runs"
    MAYBE = "maybe"
    ASKS = "asks"
    DEPLOYS = "deploys"
    SERVED = "served already"
    SKIPS = "is not muster's"
    UNKNOWN = "unknown"
    REFUSED = "refused"


class When(str, Enum):
    """When a stage that runs would start, once the stages before it have ended."""

    NOW = "now"
    WAITS = "waits"
    NEVER = "never"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Starts:
    """When a stage would start. Spans are seconds from now; they count the stages before it.

    :param why: of ``never`` and ``unknown``.
    :param ahead: the jobs that wait before it in its queue, the next to start first.
    :param known: whether runs of this stage have ended; else durations are those of all jobs here.
    """

    when: When
    why: str = ""
    queue: str = ""
    ahead: tuple[str, ...] = ()
    starts: Span | None = None
    ends: Span | None = None
    known: bool = True


@dataclass(frozen=True, kw_only=True)
class Deploys:
    """What a stage would deploy. :param instead_of: the version that serves now; None if none does."""

    name: str
    model: str
    instead_of: str | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """One stage of a plan; of a mapped task one for each instance that the Dag's file shows.

    :param why: what keeps it, what differs from the version before, or what is not known.
    :param image: `image_built` says whether it is built on this machine; None where images are containers.
    :param inputs: addresses by input, or the stage that makes them.
    :param needs: of all replicas together: cores, GiB, cards.
    :param warnings: what is run otherwise than it was asked for.
    :param cpu_hours: at the median of its duration, as `gpu_hours`; None where it does not run.
    """

    task_id: str
    label: str
    does: Does
    why: str = ""
    image: str | None = None
    image_built: bool | None = None
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    needs: Mapping[str, float] = field(default_factory=dict)
    start: Starts | None = None
    warnings: tuple[str, ...] = ()
    cpu_hours: float | None = None
    gpu_hours: float | None = None
    deploys: Deploys | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run of a Dag would do now.

    :param ends: seconds from now until its last job has ended; None where that is not known.
    :param unseen: what the forecast leaves out; empty where it is whole.
    """

    dag_id: str
    params: Mapping[str, Any]
    stages: tuple[PlannedStage, ...]
    cpu_hours: float = 0.0
    gpu_hours: float = 0.0
    ends: Span | None = None
    unseen: str = ""
