"""Has a job join the trace of its task, and tells the job's life there as spans, where ``[traces] otel_on`` is set.

Airflow configures OpenTelemetry's SDK and exports what it has when the task's process ends. Where tracing is off,
OpenTelemetry is not imported here.

https://www.w3.org/TR/trace-context/ says what ``TRACEPARENT`` holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from muster.core.errors import MusterError
from muster.core.job import TRACEPARENT, JobSpec
from muster.core.status import JobState, JobStatus

if TYPE_CHECKING:
    from muster.volumes.protocols import Store

_HEADER = TRACEPARENT.lower()


def traced(spec: JobSpec) -> JobSpec:
    """Return the job with the span of this process's task in its environment, unless its author set one."""
    if not _is_on() or TRACEPARENT in spec.env:
        return spec
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return replace(spec, env={**spec.env, TRACEPARENT: carrier[_HEADER]}) if carrier else spec


def tell_life(store: Store, status: JobStatus, warn: Callable[[str], None]) -> None:
    """Tell the life of a job that has ended as a span of its task, and what it consisted of as spans of that.

    :param warn: hears why there are no spans, where the store does not answer: the task does not fail by that.
    """
    if not _is_on():
        return
    made = status.addresses
    try:
        spec = store.ledger.spec(status.job_id)
        sealed = store.record(made[0]).created if made else None
    except MusterError as error:
        warn(f"the trace lacks the job's spans: {error}")
        return
    if TRACEPARENT in spec.env:
        _export(spec, status, sealed)


def _export(spec: JobSpec, status: JobStatus, sealed: float | None) -> None:
    from opentelemetry import trace
    from opentelemetry.trace import Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    tracer = trace.get_tracer("muster")
    task = TraceContextTextMapPropagator().extract({_HEADER: spec.env[TRACEPARENT]})
    job = tracer.start_span(
        f"job {spec.name}",
        context=task,
        attributes={
            "muster.job_id": status.job_id,
            "muster.image": spec.image,
            "muster.ranks": spec.world_size,
            "muster.state": status.state.value,
            "muster.restarts": status.restarts,
        },
        start_time=_nanoseconds(status.submitted),
    )
    if status.verdict is not None:
        job.set_status(Status(StatusCode.ERROR, status.verdict.line))
    for name, begin, end in phases(status, sealed=sealed):
        span = tracer.start_span(name, context=trace.set_span_in_context(job), start_time=_nanoseconds(begin))
        span.end(_nanoseconds(end))
    job.end(None if status.ended is None else _nanoseconds(status.ended))


def phases(status: JobStatus, *, sealed: float | None) -> Iterator[tuple[str, float, float]]:
    """Yield the name, begin and end of each phase of an ended job: waiting (with the image's preparation), running, sealing.

    :param sealed: when its last replica sealed, in seconds since the epoch; None where it committed nothing.
    """
    assert status.ended is not None
    if status.started is None:
        yield "waiting", status.submitted, status.ended
        return
    committed = status.state is JobState.SUCCEEDED and sealed is not None
    ran_until = min(max(sealed or 0.0, status.started), status.ended) if committed else status.ended
    yield "waiting", status.submitted, status.started
    yield "running", status.started, ran_until
    if committed:
        yield "sealing", ran_until, status.ended


def _is_on() -> bool:
    from airflow.sdk import conf

    return bool(conf.getboolean("traces", "otel_on", fallback=False))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
