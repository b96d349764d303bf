"""Asks each part when its last answer is old, all at the same time, and tells what they answered.

However often it is scraped, a part is asked once in its interval; a part that does not answer delays a page by
:data:`MOST_SECONDS` at most, and is asked again only when that question has ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from muster import __version__
from muster.core.errors import MusterError, SpecError
from muster.core.text import one_line
from muster.ext.metrics.table import (
    BOUNDS_SECONDS,
    METRICS,
    Durations,
    Metric,
    MetricKind,
    MetricsPart,
    Sample,
)

MOST_SECONDS = 8.0  # Prometheus gives a scrape ten if it is not told otherwise
EVERY_SECONDS: Mapping[MetricsPart, float] = {
    MetricsPart.STORE: 60.0,
    MetricsPart.JOBS: 10.0,
    MetricsPart.QUEUES: 10.0,
    MetricsPart.GPUS: 30.0,
    MetricsPart.DEPLOYMENTS: 10.0,
    MetricsPart.EXTENSIONS: 60.0,
    MetricsPart.AIRFLOW: 10.0,
    MetricsPart.KEEPERS: 10.0,
}

log = logging.getLogger(__name__)

Look = Callable[[], Iterable[Sample]]


@dataclass
class _Asked:
    """What a part answered last. :ivar trouble: why it could not be read; empty where it could."""

    look: Look
    samples: Sequence[Sample] = ()
    trouble: str = ""
    took_seconds: float = 0.0
    at: float = float("-inf")
    question: Future[None] | None = None
    began: float = 0.0
    said: str = field(default="", repr=False)


class MusterCollector(Collector):
    """Every metric of :data:`muster.ext.metrics.table.METRICS`. Safe to share between threads.

    :param looks: how each part is asked; an error becomes ``muster_scrape_success 0`` and a line of :meth:`troubles`.
    :param place: ``machine`` or ``cluster``.
    :param failed: called where a part could not be read: its connection may have to be opened anew.
    """

    def __init__(
        self,
        looks: Mapping[MetricsPart, Look],
        *,
        place: str,
        failed: Callable[[MetricsPart], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        most_seconds: float = MOST_SECONDS,
    ) -> None:
        self._asked = {part: _Asked(look) for part, look in looks.items()}
        self._place = place
        self._failed = failed
        self._clock = clock
        self._most_seconds = most_seconds
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(len(self._asked), thread_name_prefix="look")

    def collect(self) -> Iterator[Family]:
        """Ask what is old, and yield every metric of the parts that could be read, in the order of the table."""
        with self._lock:
            self._refresh()
            samples = [*self._own()]
            for each in self._asked.values():
                samples += () if each.trouble else each.samples
        by_metric: dict[str, list[Sample]] = {}
        for sample in samples:
            by_metric.setdefault(sample.metric, []).append(sample)
        for metric in METRICS:
            if metric.name in by_metric:
                yield _family(metric, by_metric[metric.name])

    def troubles(self) -> dict[MetricsPart, str]:
        """Return why parts could not be read when they were asked last."""
        with self._lock:
            return {part: each.trouble for part, each in self._asked.items() if each.trouble}

    def close(self) -> None:
        """End the threads that ask, without waiting for an answer."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _refresh(self) -> None:
        now = self._clock()
        for part, each in self._asked.items():
            if each.question is None and now >= each.at + EVERY_SECONDS[part]:
                each.began, each.question = now, self._pool.submit(self._ask, part, each)
        questions = [each.question for each in self._asked.values() if each.question]
        wait(questions, timeout=self._most_seconds)
        for part, each in self._asked.items():
            if each.question is None:
                continue
            if each.question.done():
                each.question.result()  # a defect of the collector's own is raised
                each.question = None
            else:
                each.took_seconds = self._clock() - each.began
                each.trouble = f"it has not answered for {each.took_seconds:.0f} s"
            self._say(part, each)

    def _ask(self, part: MetricsPart, each: _Asked) -> None:
        began = self._clock()
        try:
            samples, trouble = tuple(each.look()), ""
        except (MusterError, OSError) as error:
            samples, trouble = (), one_line(str(error))
        except Exception as error:
            log.exception("the %s cannot be read, by a defect of muster's own", part.value)
            samples, trouble = (), one_line(f"a defect of muster's own: {error!r}")
        if trouble:
            self._failed(part)
        each.samples, each.trouble, each.at = samples, trouble, self._clock()
        each.took_seconds = each.at - began

    def _say(self, part: MetricsPart, each: _Asked) -> None:
        """Log a trouble when it begins or changes, and its end."""
        if each.trouble and not each.said:
            log.warning("the %s cannot be read: %s", part.value, each.trouble)
        elif each.said and not each.trouble:
            log.info("the %s can be read again", part.value)
        each.said = each.trouble

    def _own(self) -> Iterator[Sample]:
        labels = {"version": __version__, "place": self._place}
        yield Sample(metric="muster_build_info", value=1, labels=labels)
        for part, each in self._asked.items():
            named = {"part": part.value}
            yield Sample(metric="muster_scrape_success", value=float(not each.trouble), labels=named)
            yield Sample(metric="muster_scrape_duration_seconds", value=each.took_seconds, labels=named)


def _family(metric: Metric, samples: Iterable[Sample]) -> Family:
    if metric.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(metric.name, metric.means, labels=metric.labels)
        for sample in samples:
            assert isinstance(sample.value, Durations)
            histogram.add_metric(_values(metric, sample), _buckets(sample.value), sample.value.sum_seconds)
        return histogram
    kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    family = kind(metric.name, metric.means, labels=metric.labels)
    for sample in samples:
        assert not isinstance(sample.value, Durations)
        family.add_metric(_values(metric, sample), float(sample.value))
    return family


def _values(metric: Metric, sample: Sample) -> list[str]:
    return [sample.labels[label] for label in metric.labels]


def _buckets(durations: Durations) -> list[tuple[str, float]]:
    """Return how many took at most each bound, as the exposition format has them."""
    found, total = list[tuple[str, float]](), 0
    for bound, count in zip((*map(str, BOUNDS_SECONDS), "+Inf"), durations.counts, strict=True):
        total += count
        found.append((bound, total))
    return found


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TIMEOUT_SECONDS = 15.0  # of a client that sends or takes nothing


def page(collector: MusterCollector) -> bytes:
    """Return one page of metrics. A comment names each part that could not be read, and the reason.

    (https://prometheus.io/docs/instrumenting/exposition_formats: a line that begins with # and is neither HELP nor TYPE is
    a comment.)
    """
    text = generate_latest(collector)
    troubles = collector.troubles().items()
    return (
        "".join(f"# muster: the {part.value} cannot be read: {why}\n" for part, why in troubles).encode()
        + text
    )


def listening(collector: MusterCollector, *, host: str, port: int) -> ThreadingHTTPServer:
    """Return a server that listens already; ``serve_forever`` answers.

    :raises SpecError: the port cannot be had.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_SECONDS
        server_version, sys_version = "muster", ""

        def do_GET(self) -> None:
            where = self.path.partition("?")[0]
            if where == "/metrics":
                self._answer(HTTPStatus.OK, page(collector), CONTENT_TYPE)
            elif where == "/healthz":
                self._answer(HTTPStatus.OK, b"ok\n")
            else:
                self._answer(HTTPStatus.NOT_FOUND, b"metrics are at /metrics\n")

        def log_message(self, *_: object) -> None:
            """Log no request: there is one every few seconds."""

        def _answer(self, status: HTTPStatus, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise SpecError(
            f"metrics cannot be served on port {port} of {host} ({error.strerror}): end what listens there, or name "
            "another port"
        ) from error
    server.daemon_threads = True
    return server
