"""Counts: read from what a model server tells Prometheus, and the differences and percentiles that are judged.

Every server of ours names its series alike (``serving/muster_serving/metrics.py``), so one machine and a
cluster are read by the same code.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from muster.core.deployment import Counts
from muster.core.errors import BackendError

_REQUESTS, _BUCKET, _FAILED = "muster_requests_total", "muster_request_seconds_bucket", "failed"


def read_counts(text: str, *, name: str) -> dict[str, Counts]:
    """Read a metrics page (https://prometheus.io/docs/instrumenting/exposition_formats) into counts by revision.

    :param name: the deployment's; series of others are left out.
    :raises BackendError: the page is not in that format.
    """
    # It brings a web server along, for one function.
    from prometheus_client.parser import text_string_to_metric_families

    requests: dict[str, int] = defaultdict(int)
    failed: dict[str, int] = defaultdict(int)
    seconds: dict[str, dict[float, int]] = defaultdict(dict)
    try:
        samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
        for sample in samples:
            if sample.name not in (_REQUESTS, _BUCKET) or sample.labels.get("model") != name:
                continue
            revision, number = sample.labels["revision"], int(sample.value)
            if sample.name == _BUCKET:
                seconds[revision][float(sample.labels["le"])] = number
            else:
                requests[revision] += number
                failed[revision] += number * (sample.labels.get("outcome") == _FAILED)
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise BackendError(f"deployment {name}: its metrics cannot be read ({error!r:.200})") from error
    return {
        revision: Counts(requests=requests[revision], failed=failed[revision], seconds=seconds[revision])
        for revision in requests.keys() | seconds.keys()
    }


def added(several: Iterable[Mapping[str, Counts]]) -> dict[str, Counts]:
    """Add up what several replicas have counted, by revision."""
    total: dict[str, Counts] = {}
    for each in several:
        for revision, counts in each.items():
            total[revision] = _sum(total[revision], counts) if revision in total else counts
    return total


def since(before: Counts | None, now: Counts) -> Counts:
    """What was counted since; all of it where a counter is lower than it was: then the replica began anew."""
    if before is None or now.requests < before.requests or now.failed < before.failed:
        return now
    return Counts(
        requests=now.requests - before.requests,
        failed=now.failed - before.failed,
        seconds={bound: max(0, n - before.seconds.get(bound, 0)) for bound, n in now.seconds.items()},
    )


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


def _sum(one: Counts, other: Counts) -> Counts:
    bounds = one.seconds.keys() | other.seconds.keys()
    return Counts(
        requests=one.requests + other.requests,
        failed=one.failed + other.failed,
        seconds={bound: one.seconds.get(bound, 0) + other.seconds.get(bound, 0) for bound in bounds},
    )
