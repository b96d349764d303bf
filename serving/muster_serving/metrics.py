"""Metrics of each revision for Prometheus: requests by outcome, and their latency."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from muster_serving.answer import CLIENT_LEFT, HttpAnswer
from muster_serving.column import Column
from muster_serving.histograms import Histograms

_BUCKETS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LEFT, _REFUSED = 0, 4
_OUTCOMES = {2: "answered", _REFUSED: "refused", 5: "failed", _LEFT: "left"}

_REGISTRY = CollectorRegistry()  # not the default registry: other servers register unused series there
for _collector in (ProcessCollector, PlatformCollector, GCCollector):
    _collector(registry=_REGISTRY)

REQUESTS = Counter(
    "muster_requests",
    "Prediction requests by outcome: answered, refused (the request was wrong), failed (the model failed) or left (its "
    "client did not wait for the end)",
    ["model", "revision", "outcome"],
    registry=_REGISTRY,
)
_UNSEEN = Counter(
    "muster_unseen_requests",
    "Answered requests with a value that is none of its input's categories: the fallback stood in for it",
    ["model", "revision"],
    registry=_REGISTRY,
)
_OUTSIDE = Counter(
    "muster_outside_requests",
    "Answered requests with a value that no training row had, by input, and by what was left: the range of its numbers, or its "
    "categories (category)",
    ["model", "revision", "input", "kind"],
    registry=_REGISTRY,
)
SECONDS = Histogram(
    "muster_request_seconds",
    "From a prediction request's first byte to its answer, in the server; of those that were not refused",
    ["model", "revision"],
    buckets=_BUCKETS,
    registry=_REGISTRY,
)
CLIENTS = Counter(  # no revision has them yet, so no release counts them
    "muster_client_requests",
    "Requests by client: accepted (for predictions), limited (over its rate: 429), denied (no token that counts: 401)",
    ["model", "client", "outcome"],
    registry=_REGISTRY,
)
LOGGED = Counter(
    "muster_logged_requests",
    "Answered requests that the request log took: kept (on the disk), or dropped (it had no room)",
    ["model", "revision", "outcome"],
    registry=_REGISTRY,
)


class _Inputs:  # prometheus_client 0.8.0, which Seldon's wrapper needs, has no class Collector
    """Requests by input and bin, written when they are asked for, so that a request only adds numbers."""

    def __init__(self) -> None:
        self.shown: dict[tuple[str, str], Histograms] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield the series of the revisions that count, and nothing where none does. The registry calls this."""
        if not self.shown:
            return
        family = CounterMetricFamily(
            "muster_input_requests",
            "Answered requests by input and bin, one row of each; trained: how many training rows are in that bin",
            labels=["model", "revision", "input", "bin", "trained"],  # half as many lines as two series
        )
        for which, histograms in list(self.shown.items()):
            for name, bins in histograms.inputs.items():
                for label, requests, rows in zip(bins.labels, bins.asked, bins.trained, strict=True):
                    family.add_metric([*which, name, label, str(rows)], requests)
        yield family


INPUTS = _Inputs()
_REGISTRY.register(INPUTS)  # type: ignore[arg-type]  # it only asks for collect()


def page() -> HttpAnswer:
    """Return the metrics in Prometheus's text format."""
    return HttpAnswer(
        200, generate_latest(_REGISTRY), ((b"content-type", CONTENT_TYPE_LATEST.encode("ascii")),)
    )


class RevisionMetrics:
    """The counters of one revision, bound once so that no request looks them up.

    :param histograms: by whose bins its requests are counted; None: they are not.
    :param inputs: those of its signature, of which values outside the training rows are counted.
    """

    def __init__(
        self,
        model: str,
        revision: str,
        histograms: Histograms | None = None,
        inputs: Mapping[str, Column] | None = None,
    ) -> None:
        self._labels = (model, revision)
        self._seconds = SECONDS.labels(model, revision)
        self._unseen = _UNSEEN.labels(model, revision)
        found = (inputs or {}).items()
        self._outside = {n: (*self._labels, n, c.kind_outside) for n, c in found if c.kind_outside}
        self._fallbacks = {name for name, column in found if column.fallback is not None}
        for labels in self._outside.values():
            _OUTSIDE.labels(*labels)  # a rate needs the 0 before the first
        self._counts = {kind: REQUESTS.labels(model, revision, name) for kind, name in _OUTCOMES.items()}
        if histograms:
            INPUTS.shown[self._labels] = histograms

    def count(self, status: int, seconds: float) -> None:
        """Count one request.

        :param status: HTTP status; callers pass failures that are not the model's as 4xx, and ``CLIENT_LEFT`` for a client
            that left, which is no fault of the request's or the model's.
        """
        outcome = _LEFT if status == CLIENT_LEFT else status // 100
        self._counts[outcome].inc()
        if outcome != _REFUSED:  # it takes no time, and would make a slow version look quick
            self._seconds.observe(seconds)

    def outside(self, names: tuple[str, ...]) -> None:
        """Count a request by its inputs with a value that no training row had, and once where a fallback stood in."""
        for name in names:
            _OUTSIDE.labels(*self._outside[name]).inc()
        if not self._fallbacks.isdisjoint(names):
            self._unseen.inc()

    def forget(self) -> None:
        """Remove the revision's series."""
        SECONDS.remove(*self._labels)
        _UNSEEN.remove(*self._labels)
        for labels in self._outside.values():
            _OUTSIDE.remove(*labels)
        INPUTS.shown.pop(self._labels, None)
        for outcome in _OUTCOMES.values():
            REQUESTS.remove(*self._labels, outcome)
