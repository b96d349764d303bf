"""The attempts of a job as an operator begins, equips and commits them."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.routing import Route

from muster.volumes.base import Staging
from muster.volumes.durability import write_whole
from muster.volumes.service.calls import Call, route
from muster.volumes.service.messages import (
    LIMIT_WORKER_BYTES,
    Begin,
    Committed,
    Current,
    Left,
    Lifetime,
    Order,
    Parts,
    Place,
    Secret,
)
from muster.volumes.service.site import Site
from muster.volumes.service.tokens import job_token

WORKER = "worker.pyz"

_JOB = "/v1/jobs/{job_id}"


def routes(site: Site) -> Iterator[Route]:
    """Every route of this module."""
    yield route("POST", f"{_JOB}/attempts", _begin, site=site, threads=site.starting)
    yield route("GET", f"{_JOB}/attempts/current", _current, site=site)
    yield route("POST", f"{_JOB}/attempts/{{attempt}}/token", _token, site=site)
    yield route("PUT", f"{_JOB}/worker", _equip, site=site)
    yield route("GET", f"{_JOB}/sealed", _sealed, site=site)
    yield route("GET", f"{_JOB}/saved", _saved, site=site)
    yield route("POST", f"{_JOB}/commit", _commit, site=site, threads=site.working)


def _begin(call: Call) -> Place:
    return _place(call.site.starts.asked(call.part("job_id"), call.message(Begin).request))


def _current(call: Call) -> Current:
    job_id = call.part("job_id")
    staging = call.site.store.staging(job_id)
    if staging is None:
        return Current(place=None)
    return Current(place=_place(staging), taken=call.site.starts.taken(job_id, staging.attempt))


def _place(staging: Staging) -> Place:
    return Place(job_id=staging.job_id, attempt=staging.attempt, root=str(staging.root))


def _token(call: Call) -> Secret:
    staging = call.site.starts.current(call.part("job_id"), call.number("attempt"))
    seconds = call.message(Lifetime).seconds
    token = job_token(call.site.keys, staging.job_id, attempt=staging.attempt, lifetime_seconds=seconds)
    return Secret(token=token)


def _equip(call: Call) -> None:
    folder = call.site.store.ledger.check(call.part("job_id"))
    write_whole(folder / WORKER, call.text(limit_bytes=LIMIT_WORKER_BYTES))


def _sealed(call: Call) -> Parts:
    return Parts(parts=call.site.store.sealed(call.part("job_id")))


def _saved(call: Call) -> Left:
    return Left(saved=call.site.store.saved(call.part("job_id")))


def _commit(call: Call) -> Committed:
    order = call.message(Order)
    made = call.site.store.commit(
        call.part("job_id"), attempt=order.attempt, metrics=order.metrics, modules=order.modules
    )
    return Committed(outputs=made)
