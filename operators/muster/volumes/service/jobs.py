"""The ledger: jobs, their statuses, owners and logs."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.responses import Response
from starlette.routing import Route

from muster.core.errors import Corrupt, NotFound, SpecError
from muster.core.job import JobSpec
from muster.core.status import JobStatus
from muster.volumes.service.calls import Call, route
from muster.volumes.service.journal import ONCE
from muster.volumes.service.messages import (
    CURSOR,
    LIMIT_LINES_BYTES,
    MOST_SPECS,
    Answer,
    Count,
    Names,
    NewJob,
    Ownership,
    Specs,
    Statuses,
)
from muster.volumes.service.site import Site

_JOB = "/v1/jobs/{job_id}"


def routes(site: Site) -> Iterator[Route]:
    """Every route of this module."""
    yield route("GET", "/v1/jobs", _jobs, site=site)
    yield route("POST", "/v1/statuses", _statuses, site=site)
    yield route("POST", "/v1/specs", _specs, site=site)
    yield route("PUT", _JOB, _create, site=site)
    yield route("GET", f"{_JOB}/spec", _spec, site=site)
    yield route("GET", f"{_JOB}/status", _status, site=site)
    yield route("PUT", f"{_JOB}/status", _update, site=site)
    yield route("POST", f"{_JOB}/owner", _own, site=site)
    yield route("GET", f"{_JOB}/log", _read, site=site)
    yield route("POST", f"{_JOB}/log", _append, site=site)
    yield route("GET", f"{_JOB}/log/bytes", _log_bytes, site=site)


def _jobs(call: Call) -> Names:
    return Names(names=tuple(call.site.store.ledger.jobs()))


def _statuses(call: Call) -> Statuses:
    return Statuses(statuses=tuple(_known(call, call.message(Names).names)))


def _known(call: Call, names: tuple[str, ...]) -> Iterator[JobStatus]:
    for name in names:
        try:
            yield _news(call, name)
        except (NotFound, Corrupt):
            continue  # gc took it: whoever asks for many does not want to stumble over one


def _specs(call: Call) -> Specs:
    names = call.message(Names).names
    if len(names) > MOST_SPECS:
        raise SpecError(f"{len(names)} specs are asked for: ask for {MOST_SPECS} at a time, they may be long")
    return Specs(specs=call.site.store.ledger.specs(names))


def _create(call: Call) -> Answer:
    new = call.message(NewJob)
    return Answer(yes=call.site.store.ledger.create(call.part("job_id"), new.spec, owner=new.owner))


def _spec(call: Call) -> JobSpec:
    return call.site.store.ledger.spec(call.part("job_id"))


def _status(call: Call) -> JobStatus:
    return _news(call, call.part("job_id"))


def _news(call: Call, job_id: str) -> JobStatus:
    status = call.site.store.ledger.status(job_id)
    return status if status.state.ended else call.site.hearing.with_news(status)


def _update(call: Call) -> None:
    status = call.message(JobStatus)
    if status.job_id != call.part("job_id"):
        raise SpecError(
            f"the status is that of job {status.job_id!r:.60}, not of {call.part('job_id')!r:.60}"
        )
    call.site.committer.update(status)


def _own(call: Call) -> Answer:
    wanted = call.message(Ownership)
    ledger = call.site.store.ledger
    return Answer(yes=ledger.own(call.part("job_id"), owner=wanted.owner, expected=wanted.expected))


def _read(call: Call) -> Response:
    data, cursor = call.site.store.ledger.read(
        call.part("job_id"),
        after=call.query_number("after", 0),
        limit_bytes=min(call.query_number("limit_bytes", 1 << 20), LIMIT_LINES_BYTES),
    )
    return Response(data, headers={CURSOR: str(cursor)}, media_type="application/octet-stream")


def _append(call: Call) -> Count:
    journal = call.site.journals.of(call.part("job_id"))
    data = call.text(limit_bytes=LIMIT_LINES_BYTES)
    return Count(count=journal.append(f"{ONCE}{call.query('request')}", data, offset=0))


def _log_bytes(call: Call) -> Count:
    return Count(count=call.site.store.ledger.log_bytes(call.part("job_id")))
