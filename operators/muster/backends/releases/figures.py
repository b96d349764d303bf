"""The figures of deployments: what replicas counted, read and added up, and what people are shown of it.

Every model server of muster names its series alike (``serving/muster_serving/metrics.py``), so one machine and a
cluster are read by the same code.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from operator import add
from typing import TYPE_CHECKING, TypeVar

from muster.core.deployment import ByBin, Counts, DeploymentStatus
from muster.core.errors import BackendError, NotFound, Unavailable

if TYPE_CHECKING:
    from muster.backends.releases.deployments import Deployments

_REQUESTS, _BUCKET, _UNSEEN, _ASKED, _OUTSIDE, _LOGGED = (
    "muster_requests_total",
    "muster_request_seconds_bucket",
    "muster_unseen_requests_total",
    "muster_input_requests_total",
    "muster_outside_requests_total",
    "muster_logged_requests_total",
)
_READ = (_REQUESTS, _BUCKET, _UNSEEN, _ASKED, _OUTSIDE, _LOGGED)
_FAILED, _REFUSED, _LEFT = "failed", "refused", "left"
_P95 = 0.95

T = TypeVar("T")
K = TypeVar("K", str, float)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What was answered: how many requests, how many of them failed, and within what 95 % were answered.

    :param p95_seconds: None where there were no requests.
    :param outside: by input, the answered requests with a value that no training row had; inputs with none are left out.
    """

    requests: int
    failed: int
    p95_seconds: float | None
    outside: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, counts: Counts) -> Figures:
        """Read them from counts."""
        return cls(
            requests=counts.requests,
            failed=counts.failed,
            p95_seconds=percentile(counts, _P95),
            outside={name: number for name, number in counts.outside.items() if number},
        )


@dataclass(frozen=True, kw_only=True)
class DeploymentSample:
    """One deployment at one moment.

    :param counts: what each revision has answered since its replicas came up; None where that is unknown.
    """

    status: DeploymentStatus
    counts: Mapping[str, Counts] | None = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, Figures]:
        """The figures of each revision that answered anything."""
        return {name: Figures.of(each) for name, each in (self.counts or {}).items()}

    @property
    def total(self) -> Figures | None:
        """Those of all revisions together; None where they are unknown."""
        if self.counts is None:
            return None
        together = added({"": each} for each in self.counts.values())
        return Figures.of(together.get("", Counts()))

    def after(self, before: DeploymentSample) -> DeploymentSample:
        """The same with only what was answered after an earlier look."""
        if self.counts is None or before.counts is None:
            return self
        grown = {name: since(before.counts.get(name), now) for name, now in self.counts.items()}
        return DeploymentSample(status=self.status, counts=grown)


def look(deployments: Deployments, name: str) -> DeploymentSample:
    """Look at one deployment. :raises NotFound: there is none."""
    for seen in deployments.look_at([name]):
        return seen
    known = ", ".join(deployments.names()) or "none"
    raise NotFound(f"no deployment {name!r}; known are: {known}")


def if_known(ask: Callable[[], T]) -> T | None:
    """Return what servers are asked for; None where they cannot say, which a :class:`DeploymentSample` then says."""
    with suppress(BackendError, NotFound, Unavailable):
        return ask()
    return None


def read_counts(text: str, *, name: str) -> dict[str, Counts]:
    """Read a metrics page (https://prometheus.io/docs/instrumenting/exposition_formats) into counts by revision.

    :param name: the deployment's; series of others are left out.
    :raises BackendError: the page is not in that format.
    """
    # It brings a web server along, for one function.
    from prometheus_client.parser import text_string_to_metric_families

    requests: dict[str, int] = defaultdict(int)
    by_outcome: dict[tuple[str, str], int] = defaultdict(int)
    unseen: dict[str, int] = defaultdict(int)
    binned: dict[str, list[tuple[str, str, int, int]]] = defaultdict(list)
    outside: dict[str, dict[str, int]] = defaultdict(dict)
    dropped: dict[str, int] = defaultdict(int)
    seconds: dict[str, dict[float, int]] = defaultdict(dict)
    try:
        samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
        for sample in samples:
            if sample.name not in _READ or sample.labels.get("model") != name:
                continue
            revision, number = sample.labels["revision"], int(sample.value)
            if sample.name == _BUCKET:
                seconds[revision][float(sample.labels["le"])] = number
            elif sample.name == _UNSEEN:
                unseen[revision] = number
            elif sample.name == _ASKED:
                of, bin_, trained = (sample.labels[word] for word in ("input", "bin", "trained"))
                binned[revision].append((of, bin_, number, int(trained)))
            elif sample.name == _OUTSIDE:
                outside[revision][sample.labels["input"]] = number
            elif sample.name == _LOGGED:
                dropped[revision] += number * (sample.labels["outcome"] == "dropped")
            elif sample.name == _REQUESTS:
                requests[revision] += number
                by_outcome[revision, sample.labels.get("outcome", "")] += number
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise BackendError(f"deployment {name}: its metrics cannot be read ({error!r:.200})") from error
    return {
        revision: Counts(
            requests=requests[revision],
            failed=by_outcome[revision, _FAILED],
            seconds=seconds[revision],
            refused=by_outcome[revision, _REFUSED],
            left=by_outcome[revision, _LEFT],
            unseen=unseen[revision],
            asked=_by_bin((i, b, n) for i, b, n, _ in binned[revision]) if revision in binned else None,
            trained=_by_bin((i, b, n) for i, b, _, n in binned.get(revision, ())),
            outside=outside.get(revision, {}),
            dropped=dropped[revision],
        )
        for revision in requests.keys() | seconds.keys()
    }


def added(several: Iterable[Mapping[str, Counts]]) -> dict[str, Counts]:
    """Add up what several replicas have counted, by revision."""
    total: dict[str, Counts] = {}
    for each in several:
        for revision, counts in each.items():
            total[revision] = _combined(total[revision], counts, add) if revision in total else counts
    return total


def since(before: Counts | None, now: Counts) -> Counts:
    """What was counted since; all of it where a counter is lower than it was: then the replica began anew."""
    if before is None or now.requests < before.requests or now.failed < before.failed:
        return now
    return _combined(now, before, lambda n, old: max(0, n - old))


def percentile(counts: Counts, share: float) -> float | None:
    """The seconds within which a share of the requests was answered; None where there were none.

    Linear within a bucket, and never above the last finite bound, as Prometheus's histogram_quantile
    (https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile).
    """
    bounds = sorted(counts.seconds)
    total = counts.seconds[bounds[-1]] if bounds else 0
    if not total:
        return None
    rank, low, below = share * total, 0.0, 0
    for bound in bounds:
        upto = counts.seconds[bound]
        if upto >= rank and upto > below:
            return low if math.isinf(bound) else low + (bound - low) * (rank - below) / (upto - below)
        low, below = (low if math.isinf(bound) else bound), upto
    return low


def shown(seconds: float) -> str:
    """Write a time of requests for people: ``0.411 ms``, ``12 ms``, ``3.0 s``."""
    if seconds >= 0.9995:  # what would be 1e+03 ms
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.3g} ms"


def _combined(one: Counts, other: Counts, do: Callable[[int, int], int]) -> Counts:
    """Put the numbers of two counts together, one by one; both have the bins of one version."""

    def each(ours: Mapping[K, int], theirs: Mapping[K, int]) -> dict[K, int]:
        return {key: do(ours.get(key, 0), theirs.get(key, 0)) for key in {**ours, **theirs}}

    asked = one.asked or {}, other.asked or {}
    return Counts(
        requests=do(one.requests, other.requests),
        failed=do(one.failed, other.failed),
        seconds=each(one.seconds, other.seconds),
        refused=do(one.refused, other.refused),
        left=do(one.left, other.left),
        unseen=do(one.unseen, other.unseen),
        asked={name: each(*(side.get(name, {}) for side in asked)) for name in {**asked[0], **asked[1]}}
        if one.asked is not None or other.asked is not None
        else None,
        trained=one.trained or other.trained,
        outside=each(one.outside, other.outside),
        dropped=do(one.dropped, other.dropped),
    )


def _by_bin(rows: Iterable[tuple[str, str, int]]) -> ByBin:
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for name, bin_, number in rows:
        found[name][bin_] = number
    return dict(found)
