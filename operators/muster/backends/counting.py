"""Reads what a model server has counted: the metrics of ours, in the text format of Prometheus.

One reader for a server on this machine and for the replicas of a cluster
(https://prometheus.io/docs/instrumenting/exposition_formats, version 0.0.4).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping

from muster.core.deployment import Counts
from muster.core.errors import DeploymentError

_REQUESTS, _BUCKETS, _BORN = (
    "muster_requests_total",
    "muster_request_seconds_bucket",
    "process_start_time_seconds",
)
_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')

Sample = tuple[str, Mapping[str, str], float]


def read_counts(text: str) -> dict[str, Counts]:
    """Return what a server has answered, by revision, since it came up.

    :raises DeploymentError: this is no page of metrics.
    """
    asked: dict[str, int] = {}
    failed: dict[str, int] = {}
    seconds: dict[str, dict[float, int]] = {}
    for name, labels, value in _samples(text):
        revision = labels.get("revision", "")
        if name == _REQUESTS:
            asked[revision] = asked.get(revision, 0) + int(value)
            if labels.get("outcome") == "failed":
                failed[revision] = failed.get(revision, 0) + int(value)
        elif name == _BUCKETS:
            seconds.setdefault(revision, {})[float(labels.get("le", "nan"))] = int(value)
    return {
        revision: Counts(
            requests=requests, failed=failed.get(revision, 0), seconds=seconds.get(revision, {math.inf: 0})
        )
        for revision, requests in asked.items()
    }


def read_birth(text: str) -> float:
    """Return when the process that counts came up, in seconds since the epoch; 0 where it does not say."""
    return next((value for name, _, value in _samples(text) if name == _BORN), 0.0)


def added(counts: Iterable[Counts]) -> Counts:
    """Add up what several have answered."""
    requests = failed = 0
    seconds: dict[float, int] = {}
    for each in counts:
        requests, failed = requests + each.requests, failed + each.failed
        for bound, count in each.seconds.items():
            seconds[bound] = seconds.get(bound, 0) + count
    return Counts(requests=requests, failed=failed, seconds=dict(sorted(seconds.items())))


def _samples(text: str) -> Iterator[Sample]:
    for line in text.splitlines():
        if not line.startswith(("muster_", _BORN)):
            continue
        found = _SAMPLE.match(line)
        try:
            assert found is not None
            yield found["name"], dict(_LABEL.findall(found["labels"] or "")), float(found["value"])
        except (AssertionError, ValueError) as error:
            raise DeploymentError(f"the server's metrics hold {line!r:.120}, which is no sample") from error
