"""A Dag whose jobs are traced, and a collector of OpenTelemetry's (OTLP over HTTP) that keeps what it is sent."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.waiting import until

DAG = """
    from datetime import datetime

    from airflow.sdk import dag

    from muster.airflow import JobOperator, Resources

    SMALL = Resources(cpus=0.2, memory_gib=0.5)

    @dag(schedule=None, start_date=datetime(2024, 1, 1))
    def traced():
        JobOperator(task_id="epochs", image="train", entrypoint="traced.steps:fit", ranks=2, resources=SMALL,
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


def named(collector: Collector, name: str) -> Span:
    assert until(lambda: any(span.name == name for span in collector.spans)), name
    # An exporter that heard no answer in time has sent it again.
    (span,) = {span.span_id: span for span in collector.spans if span.name == name}.values()
    return span


def below(collector: Collector, parent: Span) -> dict[str, Span]:
    return {span.name: span for span in collector.spans if span.parent_span_id == parent.span_id}
