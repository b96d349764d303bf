"""The plan of a release: its steps, how long each is held, and what must hold meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from muster.core.deployment import SmokeRequest
from muster.core.errors import SpecError
from muster.core.names import check_whole

_JUDGED_FROM = 50
METRICS = ("accuracy", "auc", "mae", "rmse")


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What must hold as long as a revision has a share of the traffic.

    :param max_error_share: of its requests, those that the model is to blame for, 0 to 1.
    :param max_p95_ratio: how many times the champion's 95th percentile of seconds, over the same time, its
        own may be; None judges no latency. `p95_slack_seconds` comes on top: buckets are coarse.
    :param fewest_requests: how many requests a revision must have answered, or failed at, at a step before its share widens,
        and before its latency and drift are judged; an error share is computed over this number at least. None widens also
        after fewer, and judges from 50 on.
    :param max_refused_share: of its requests, those that it refuses (4xx): a null, a value outside its signature's categories
        or ranges, an input that is missing, 0 to 1; None takes the champion's share over the same time, where both were asked
        often enough. A client that leaves is not refused. Refused requests count for no other rule.
    :param max_unseen_share: of its requests, those with a value that is none of an input's categories, for which the
        signature's fallback stood in, 0 to 1; None judges none.
    :param max_psi: how far its requests may be from the rows that it was trained on, in each input: the population stability
        index, less what chance explains; None judges none. The version needs a ``histograms.json``.
    """

    max_error_share: float = 0.01
    max_p95_ratio: float | None = 2.0
    p95_slack_seconds: float = 0.02
    fewest_requests: int | None = None
    max_refused_share: float | None = field(default=None, metadata={"later": True})
    max_unseen_share: float | None = field(default=None, metadata={"later": True})
    max_psi: float | None = field(default=None, metadata={"later": True})

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            optional = each.name not in ("max_error_share", "p95_slack_seconds")
            if type(value) not in (int, float) and not (optional and value is None):
                raise SpecError(f"{each.name} is {value!r:.60}: need a number")
            if each.name.endswith("_share") and value is not None and not 0 <= value <= 1:
                raise SpecError(f"{each.name} is {value!r}: need a share, 0 to 1")
        if self.max_p95_ratio is not None and not self.max_p95_ratio >= 1:
            raise SpecError(f"max_p95_ratio is {self.max_p95_ratio!r}: need 1 or more times the champion's")
        if not self.p95_slack_seconds >= 0:
            raise SpecError(f"p95_slack_seconds is {self.p95_slack_seconds!r}: need 0 or more")
        if self.max_psi is not None and not self.max_psi > 0:
            raise SpecError(f"max_psi is {self.max_psi!r}: need more than 0, such as 0.2")
        if self.fewest_requests is not None:
            check_whole("fewest_requests", self.fewest_requests, 1)

    @property
    def judged_from(self) -> int:
        """Of how many requests at least an error share is one, and from how many on latency and drift are judged."""
        return _JUDGED_FROM if self.fewest_requests is None else self.fewest_requests


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What candidate and champion are both asked before the first share, and how they must compare.

    :param requests: as of a smoke test, of one row or more each.
    :param output: the output that is looked at: one number a row.
    :param agreement: the least share of rows in which both say the same, but for `tolerance`; None asks no such.
    :param metric: one of accuracy, auc, mae and rmse, on `labels`; None takes no measure.
    :param labels: what is true of each row, in one list a request.
    :param worse_by: by how much the candidate may be worse than the champion in that metric.
    """

    requests: tuple[SmokeRequest, ...]
    output: str
    agreement: float | None = None
    tolerance: float = 0.0
    metric: str | None = None
    labels: tuple[tuple[float, ...], ...] = ()
    worse_by: float = 0.0

    def __post_init__(self) -> None:
        if not self.requests or (self.agreement is None and self.metric is None):
            raise SpecError("a comparison needs requests, and an agreement or a metric that must hold")
        if self.agreement is not None and not 0 <= self.agreement <= 1:
            raise SpecError(f"agreement is {self.agreement!r}: need a share, 0 to 1")
        if self.metric is None:
            return
        if self.metric not in METRICS:
            raise SpecError(f"metric {self.metric!r:.40} is unknown; known are {', '.join(METRICS)}")
        rows = [len(next(iter(request.inputs.values()))) for request in self.requests]
        if rows != [len(column) for column in self.labels]:
            raise SpecError(f"labels: {self.metric} needs as many as there are rows, {rows} by request")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a revision comes to have all traffic.

    :param steps: its share in percent at each step, rising. Where the last is below 100, the release stays
        there when it was held, and waits for a promotion or another release.
    :param hold_seconds: how long each step lasts, or one for all of them. Where that of 100 is 0, the release
        ends with the write that gives it everything.
    :param comparison: what it must be beside the champion before the first step; None asks nothing.
    """

    steps: tuple[int, ...] = (100,)
    hold_seconds: tuple[float, ...] = (0.0,)
    rules: Rules = field(default_factory=Rules)
    comparison: Comparison | None = None

    def __post_init__(self) -> None:
        steps = self.steps
        if not all(type(step) is int and 1 <= step <= 100 for step in steps) or not steps:
            raise SpecError(f"steps is {list(steps)!r:.60}: need percents, whole numbers from 1 to 100")
        if list(steps) != sorted({*steps}):
            raise SpecError(f"steps is {list(steps)!r:.60}: need percents that rise")
        if len(self.hold_seconds) not in (1, len(steps)):
            raise SpecError(f"hold_seconds is {list(self.hold_seconds)!r:.60}: need one, or {len(steps)}")
        if not all(0 <= seconds < float("inf") for seconds in self.hold_seconds):
            raise SpecError(f"hold_seconds is {list(self.hold_seconds)!r:.60}: need seconds, 0 or more")

    @property
    def whole(self) -> bool:
        """Whether it moves the traffic only as a whole."""
        return self.steps == (100,)

    def after(self, percent: int) -> int:
        """The step that comes after a share; the last one where none does."""
        return next((step for step in self.steps if step > percent), self.steps[-1])

    def hold(self, percent: int) -> float:
        """How many seconds a share is held."""
        if len(self.hold_seconds) == 1:
            return self.hold_seconds[0]
        holds = zip(self.steps, self.hold_seconds, strict=True)
        return next((seconds for step, seconds in holds if step >= percent), self.hold_seconds[-1])

    @property
    def longest_seconds(self) -> float:
        """How long its steps last in all, where the longest of them is begun anew once: a driver was killed."""
        holds = [self.hold(step) for step in self.steps]
        return sum(holds) + max(holds)
