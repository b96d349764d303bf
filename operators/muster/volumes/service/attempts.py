"""The attempts of a job as an operator begins, equips and commits them."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.routing import Route

from muster.core.errors import Conflict
from muster.volumes.base import Staging
from muster.volumes.durability import write_whole
from muster.volumes.service.calls import Call, route
from muster.volumes.service.messages import (
    LIMIT_WORKER_BYTES,
    Begin,
    Committed,
    Current,
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
    yield route("POST", f"{_JOB}/attempts", _begin, site=site, slow=True)
    yield route("GET", f"{_JOB}/attempts/current", _current, site=site)
    yield route("POST", f"{_JOB}/attempts/{{attempt}}/token", _token, site=site)
    yield route("PUT", f"{_JOB}/worker", _equip, site=site)
    yield route("GET", f"{_JOB}/sealed", _sealed, site=site)
    yield route("POST", f"{_JOB}/commit", _commit, site=site, slow=True)


def make_folders(site: Site, staging: Staging) -> Staging:
    """Make what the pods of an attempt mount: what a kubelet makes is its own, and no pod could write there."""
    spec = site.store.ledger.spec(staging.job_id)
    for role in spec.roles:
        for index in range(role.replicas):
            for output in spec.outputs or [""]:
                staging.output(role.name, index, output).mkdir(parents=True, exist_ok=True)
    return staging


def standing(site: Site, job_id: str, attempt: int) -> Staging:
    """The staging of an attempt. :raises Conflict: it is not the current one."""
    staging = site.store.staging(job_id)
    if staging is None or staging.attempt != attempt:
        now = "there is none yet" if staging is None else f"the current one is {staging.attempt}"
        raise Conflict(f"job {job_id}: attempt {attempt} is fenced, {now}; what it wrote is left aside")
    return staging


def _begin(call: Call) -> Place:
    job_id, request = call.part("job_id"), call.message(Begin).request
    with call.site.committer.alone(job_id):
        return _place(make_folders(call.site, call.site.starts.asked(job_id, request)))


def _current(call: Call) -> Current:
    staging = call.site.store.staging(call.part("job_id"))
    return Current(place=None if staging is None else _place(staging))


def _place(staging: Staging) -> Place:
    return Place(job_id=staging.job_id, attempt=staging.attempt, root=str(staging.root))


def _token(call: Call) -> Secret:
    staging = standing(call.site, call.part("job_id"), call.number("attempt"))
    seconds = call.message(Lifetime).seconds
    token = job_token(call.site.keys, staging.job_id, attempt=staging.attempt, lifetime_seconds=seconds)
    return Secret(token=token)


def _equip(call: Call) -> None:
    folder = call.site.store.ledger.check(call.part("job_id"))
    write_whole(folder / WORKER, call.text(limit_bytes=LIMIT_WORKER_BYTES))


def _sealed(call: Call) -> Parts:
    return Parts(parts=call.site.store.sealed(call.part("job_id")))


def _commit(call: Call) -> Committed:
    order = call.message(Order)
    made = call.site.store.commit(
        call.part("job_id"), attempt=order.attempt, metrics=order.metrics, modules=order.modules
    )
    return Committed(outputs=made)
