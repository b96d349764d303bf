"""The traces of tasks and their jobs, under a real Airflow that exports to a collector of the test's own (OTLP over HTTP)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.site import Site
from tests.waiting import until

from muster.volumes.folder import FolderStore

DAG = """
    from datetime import datetime

    from airflow.sdk import dag

    from muster.airflow import JobOperator, Resources

    SMALL = Resources(cpus=0.2, memory_gib=0.5)

    @dag(schedule=None, start_date=datetime(2024, 1, 1))
    def traced():
        JobOperator(task_id="fit", image="train", entrypoint="traced.steps:fit", ranks=2, resources=SMALL,
                    outputs={"out": "traced/out"}, cache=True)
        JobOperator(task_id="breaks", image="python", entrypoint="traced.steps:breaks", resources=SMALL, retries=0)

    traced()
"""
# The author's own span, as OpenTelemetry's documentation writes it.
STEPS = """
    import os
    from pathlib import Path

    def fit(out: Path) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        parent = TraceContextTextMapPropagator().extract({"traceparent": os.environ["TRACEPARENT"]})
        with TracerProvider().get_tracer("fit").start_as_current_span("epoch", context=parent) as span:
            told = f"{span.context.trace_id:032x} {span.parent.span_id:016x}"
        (out / os.environ["MUSTER_RANK"]).write_text(told)

    def breaks() -> None:
        raise ValueError("broken")
"""


class Collector(ThreadingHTTPServer):
    """Keeps every span that it is sent."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        super().__init__(("127.0.0.1", 0), Receiver)
        self.url = f"http://127.0.0.1:{self.server_port}"


class Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        sent = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
        for scope in (scope for each in sent.resource_spans for scope in each.scope_spans):
            self.server.spans += scope.spans
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Site]:
    told = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_TRACES_EXPORTER": "otlp_proto_http"}
    with Site(tmp_path_factory.mktemp("site"), **told) as site:
        site.write("traced", DAG, steps=STEPS)
        site.set("traces", otel_on=True)
        site.up()
        yield site


@pytest.fixture(scope="module")
def run_id(site: Site) -> str:
    run_id = site.trigger("traced")
    site.wait("traced", run_id)
    expected = {"fit": "success", "breaks": "failed"}
    assert site.states("traced", run_id) == expected, site.task_log("traced", run_id, "fit")
    return run_id


def named(collector: Collector, name: str) -> Span:
    assert until(lambda: any(span.name == name for span in collector.spans)), name
    (span,) = (span for span in collector.spans if span.name == name)
    return span


def below(collector: Collector, parent: Span) -> dict[str, Span]:
    return {span.name: span for span in collector.spans if span.parent_span_id == parent.span_id}


def test_a_jobs_life_is_told_below_its_task(site: Site, run_id: str, collector: Collector) -> None:
    task, job = named(collector, "worker.fit"), named(collector, "job traced.fit")
    assert (job.trace_id, job.parent_span_id) == (task.trace_id, task.span_id)
    parts = below(collector, job)
    assert set(parts) == {"waiting", "running", "sealing"}
    status = FolderStore(site.home / "store").ledger.status(site.xcom("traced", run_id, "fit")["job_id"])
    assert status.started is not None
    assert parts["running"].start_time_unix_nano == int(status.started * 1e9)
    times = [
        (parts[name].start_time_unix_nano, parts[name].end_time_unix_nano)
        for name in ("waiting", "running", "sealing")
    ]
    assert times[0][1] == times[1][0]
    assert times[1][1] == times[2][0]
    assert (job.start_time_unix_nano, job.end_time_unix_nano) == (times[0][0], times[2][1])


def test_what_ranks_trace_joins_their_task(site: Site, run_id: str, collector: Collector) -> None:
    task = named(collector, "worker.fit")
    out = FolderStore(site.home / "store").path("volume://traced/out@1")
    assert {path.read_text() for path in out.iterdir()} == {f"{task.trace_id.hex()} {task.span_id.hex()}"}
    assert sorted(path.name for path in out.iterdir()) == ["0", "1"]


def test_the_span_of_a_failed_job_says_why(site: Site, run_id: str, collector: Collector) -> None:
    job = named(collector, "job traced.breaks")
    assert job.status.code == job.status.STATUS_CODE_ERROR
    assert job.status.message == "user error, rank 0: ValueError: broken"
    assert set(below(collector, job)) == {"waiting", "running"}


def test_another_trace_makes_nothing_anew(site: Site, run_id: str) -> None:
    second = site.trigger("traced")
    site.wait("traced", second)
    assert site.xcom("traced", second, "fit") == site.xcom("traced", run_id, "fit")
