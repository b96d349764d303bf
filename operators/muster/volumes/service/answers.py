"""The service's side of the table: a route for each address, answered by the store or the service itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

from muster.core.errors import SpecError
from muster.core.room import CLAIM, Room
from muster.volumes.base import Staging
from muster.volumes.protocols import Ledger, ServedStore, Upkeep, VersionStore
from muster.volumes.service.calls import LIMIT_JSON_BYTES, Bind, Call, Handler, route
from muster.volumes.service.served import Served
from muster.volumes.service.table import MOST_RECORDS, MOST_SPECS, TABLE, Current, Place, Row, Starting
from muster.volumes.service.tokens import job_token

T = TypeVar("T")


def routes(served: Served) -> Iterator[Bind]:
    """Return every route of the table."""
    own = _own(served)
    for (verb, path), rows in groupby(TABLE, key=lambda row: (row.verb, row.path)):
        same = tuple(rows)
        limit = LIMIT_JSON_BYTES if any(row.body for row in same) else None
        yield route(
            verb, path, _handler(same, served, own), turns=same[0].turns, text=limit, right=same[0].right
        )


def _handler(
    rows: Sequence[Row], served: Served, own: Mapping[Callable[..., Any], Callable[..., Any]]
) -> Handler:
    asked = [(row, own.get(row.method) or _of_store(row, served)) for row in rows]

    def handle(call: Call) -> object:
        query = call.request.query_params
        fits = (each for each in asked if all(map(query.get, each[0].needed)))
        row, method = asked[0] if len(asked) == 1 else next(fits, asked[-1])
        parts = call.request.path_params
        returned = method(**row.arguments(parts, query, call.text))
        return None if row.sent is None else row.sent.pack(returned)

    return handle


def _of_store(row: Row, served: Served) -> Callable[..., Any]:
    """Return the method of the store, or of its ledger, for a row."""
    protocol, _, name = row.method.__qualname__.partition(".")
    found: Callable[..., Any] = getattr(
        served.store.ledger if protocol == Ledger.__name__ else served.store, name
    )
    return found


def _own(served: Served) -> Mapping[Callable[..., Any], Callable[..., Any]]:
    """The calls that the service answers itself, since it knows more than the folder store."""
    ledger = served.store.ledger

    def placed(staging: Staging) -> Place:
        spec = ledger.spec(staging.job_id)
        return Place(
            job_id=staging.job_id,
            attempt=staging.attempt,
            root=str(staging.root),
            replicas=staging.as_begun(spec).replicas if spec.elastic else None,
        )

    def begun(job_id: str, request: str, replicas: int | None = None) -> Place:
        return placed(served.starts.asked(job_id, request, replicas=replicas))

    def current(job_id: str) -> Current:
        staging = served.store.staging(job_id)
        if staging is None:
            return Current(place=None)
        return Current(place=placed(staging), taken=served.starts.taken(job_id, staging.attempt))

    def token(job_id: str, attempt: int, lifetime_seconds: float) -> str:
        staging = served.starts.current(job_id, attempt)
        return job_token(
            served.keys, staging.job_id, attempt=staging.attempt, lifetime_seconds=lifetime_seconds
        )

    return {
        VersionStore.records: _at_most(MOST_RECORDS, "records", served.store.records),
        Ledger.status: lambda job_id: served.with_news(ledger.status(job_id)),
        Ledger.statuses: lambda job_ids: list(map(served.with_news, ledger.statuses(job_ids))),
        Ledger.specs: _at_most(MOST_SPECS, "specs", ledger.specs),
        Starting.begun: begun,
        Starting.current: current,
        ServedStore.stop: served.regrouping.stop,
        ServedStore.token: token,
        Upkeep.room: lambda: Room.of(served.store.layout.root, disk=CLAIM),
    }


def _at_most(most: int, what: str, method: Callable[..., T]) -> Callable[..., T]:
    """Answer a call that names many, and refuse it where it names more than `most`."""

    def answer(**named: Sequence[str]) -> T:
        (asked,) = named.values()
        if len(asked) > most:
            raise SpecError(f"{len(asked)} {what} are asked for: ask for {most} at a time, they may be long")
        return method(**named)

    return answer
