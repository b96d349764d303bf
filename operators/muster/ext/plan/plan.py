"""``muster plan``: what a run of a Dag would do, as plain data, also for JSON. Nothing is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from muster.backends.forecast import Span


class Does(str, Enum):
    """What a stage would do.

    ``maybe``: it is kept if the stages before it make the same as before, and runs otherwise. ``asks``: a gate, which is
    always evaluated. ``unknown``: it depends on something that only the run knows.
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

    :param why: the reason of ``never`` and ``unknown``.
    :param ahead: the jobs that wait before it in its queue, the next to start first.
    :param ends: None where no run of this stage has ended here, so its duration is not known.
    """

    when: When
    why: str = ""
    queue: str = ""
    ahead: tuple[str, ...] = ()
    starts: Span | None = None
    ends: Span | None = None


@dataclass(frozen=True, kw_only=True)
class Deploys:
    """What a stage would deploy. :param instead_of: the version that serves now; None if none does."""

    name: str
    model: str
    instead_of: str | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedStage:
    """One stage of a plan; a mapped task has one for each instance that the Dag's file shows.

    :param why: why it is kept, how it differs from the version before, or what is unknown.
    :param image: its image; `image_built` says whether it is built on this machine, None if images are containers.
    :param inputs: addresses by input, or the stage that makes them.
    :param needs: cores, GiB and cards of all replicas together; of a search, of one trial.
    :param warnings: where the run differs from what was asked for.
    :param cpu_hours: at its median duration, like `gpu_hours`; None if it does not run, or that is not known.
    :param search: what a search costs, as its operator says; None of other stages.
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
    search: Any = None


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What a run of a Dag would do now.

    :param ends: seconds from now until its last job ends; None if unknown.
    :param unseen: what the forecast leaves out; empty if it is complete.
    :param warnings: what extensions say of the run, such as that it goes beyond a budget.
    """

    dag_id: str
    params: Mapping[str, Any]
    stages: tuple[PlannedStage, ...]
    cpu_hours: float = 0.0
    gpu_hours: float = 0.0
    ends: Span | None = None
    unseen: str = ""
    warnings: tuple[str, ...] = ()
