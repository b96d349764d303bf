"""The store service as an ASGI application: a route for each address of the table, fsck, and the calls outside the table.

A check answers with a Checking line for each version that it checks, and at last with its Report or the
error that ended it. It runs to its end even without a client; another request meanwhile joins it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from muster.core.errors import MusterError, SpecError, StoreError
from muster.core.extensions import extensions, load
from muster.core.room import CLAIM, Room
from muster.core.wire import dumps
from muster.volumes.base import Staging
from muster.volumes.durability import translated
from muster.volumes.folder import FolderStore
from muster.volumes.protocols import Ledger, ServedStore, Upkeep, VersionStore
from muster.volumes.service import pods, reading, spooling
from muster.volumes.service.calls import LIMIT_JSON_BYTES, Bind, Call, Handler, Served, refusal, route
from muster.volumes.service.committer import Committer
from muster.volumes.service.hearing import Bells, Hearing
from muster.volumes.service.journal import Journals
from muster.volumes.service.persons import PersonTokens
from muster.volumes.service.refusals import document
from muster.volumes.service.regrouping import Regrouping
from muster.volumes.service.standby import ALIVE, TERM
from muster.volumes.service.starts import GangStarts
from muster.volumes.service.table import (
    MOST_RECORDS,
    MOST_SPECS,
    PERSONS,
    TABLE,
    Current,
    Place,
    Row,
    Starting,
)
from muster.volumes.service.tokens import job_token


def create_app(
    store: FolderStore, *, keys: Sequence[bytes], keeps_requests: bool = False, term: str = ""
) -> Starlette:
    """Build the service. At its start it resumes the commit of sealed jobs.

    A store has at most one service; see :mod:`muster.volumes.service.serve`.

    :param keeps_requests: whether model servers may keep requests here, since something commits them.
    :param term: what tells this service from another of the same store; see :mod:`muster.volumes.service.standby`.
    """
    journals, hearing = Journals(store), Hearing()
    committer = Committer(store, journals, hearing)
    starts = GangStarts(store, committer)
    served = Served(
        store=store,
        keys=keys,
        journals=journals,
        hearing=hearing,
        committer=committer,
        starts=starts,
        regrouping=Regrouping(starts, committer, Bells()),
        persons=PersonTokens(store, keys),
        keeps_requests=keeps_requests,
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        served.committer.start()
        yield
        served.committer.stop()

    async def served_term(_: Request) -> Response:  # needs no thread: all may be busy
        return PlainTextResponse(term)

    parts = [_table_routes, _check_routes, pods.routes, reading.routes, spooling.routes]
    parts += [load(each.calls) for each in extensions().values() if each.calls is not None]
    app = Starlette(
        routes=[
            Route("/healthz", _healthy),
            Route(ALIVE, _healthy),
            Route(TERM, served_term),
            ByLastPart([bind(served) for part in parts for bind in part(served)]),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: _no_such_call, Exception: _defect},
    )
    app.router.redirect_slashes = False  # a path is right as it is, or wrong
    return app


class ByLastPart(BaseRoute):
    """Many routes, found by the path's last part: trying all took a quarter of a short request's time."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = list(routes)
        self._by_last: dict[str, list[Route]] = {}
        for each in routes:
            last = each.path.rpartition("/")[2]
            self._by_last.setdefault("" if "{" in last else last, []).append(each)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return the route that matches, or one that matches but for its method."""
        found, said = Match.NONE, dict[str, Any]()
        last = scope["path"].rpartition("/")[2]
        for each in (*self._by_last.get(last, ()), *self._by_last.get("", ())):
            match, parts = each.matches(scope)
            if match is Match.FULL:
                return match, {**parts, "route": each}
            if match is Match.PARTIAL:
                found, said = match, {**parts, "route": each}
        return found, said

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the route that was found."""
        await scope["route"].handle(scope, receive, send)


async def _healthy(_: Request) -> Response:  # needs no thread: all may be busy
    return PlainTextResponse("ok\n")


def _no_such_call(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = SpecError(
        f"the store service knows no {request.method} {request.url.path!r:.120} ({error.detail}): "
        "is the client of the same release?"
    )
    response = refusal(said)
    response.status_code = error.status_code
    return response


def _defect(_: Request, error: Exception) -> Response:
    return refusal(StoreError(f"the store service failed ({type(error).__name__}): its log says at what"))


T = TypeVar("T")


def _table_routes(served: Served) -> Iterator[Bind]:
    """Yield the routes of the table, answered by the store or the service itself."""
    own = _own(served)
    for (verb, path), rows in groupby(TABLE, key=lambda row: (row.verb, row.path)):
        same = tuple(rows)
        limit = LIMIT_JSON_BYTES if any(row.body for row in same) else None
        yield route(
            verb,
            path,
            _handler(same, served, own),
            turns=same[0].turns,
            text=limit,
            right=same[0].right,
            person=same[0].person,
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
        given = row.arguments(parts, query, call.text)
        if call.reach is None:
            returned = method(**given)
        else:
            returned = call.reach.seen(row.method, method(**call.reach.admit(given, right=row.person)))
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
        **{each: getattr(served.persons, each.__name__) for each in PERSONS},
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


LOOK_SECONDS = 0.1

_LOG = logging.getLogger(__name__)


def _check_routes(served: Served) -> Iterator[Bind]:
    yield route("POST", "/v1/fsck", partial(_fsck, checks=Checks(served.store)))


def _fsck(call: Call, *, checks: Checks) -> Response:
    deep, protect = bool(call.query_number("deep", 0)), bool(call.query_number("protect", 0))
    check = checks.joined(deep=deep, protect=protect)
    return StreamingResponse(_told(check), media_type="application/x-ndjson")


async def _told(check: RunningCheck) -> AsyncIterator[str]:
    """Yield all lines of a check, from its first, without a thread."""
    said, last = 0, ""
    while not last:
        last = check.last  # read before the lines: no line follows it
        lines = check.lines[said:]
        said += len(lines)
        for line in lines:
            yield f"{line}\n"
        if not last:
            await anyio.sleep(LOOK_SECONDS)
    yield f"{last}\n"


@dataclass(frozen=True, kw_only=True)
class Checking:
    """Progress of a check: its present version, and the numbers of checked versions and of all."""

    address: str
    done: int
    count: int


class RunningCheck:
    """One check, in a thread of its own.

    `lines` are its progress; `last`, at its end, is its Report or the error that ended it.
    """

    def __init__(self, store: FolderStore, *, deep: bool, protect: bool) -> None:
        self.lines: list[str] = []
        self.last = ""
        self._check = partial(store.check, deep=deep, protect=protect, progress=self._tell)
        threading.Thread(target=self._run, name="fsck", daemon=True).start()

    def _run(self) -> None:
        try:
            with translated("check the store"):
                self.last = dumps(self._check())
        except MusterError as error:
            self.last = json.dumps(document(error))
        except Exception as error:
            _LOG.exception("a check failed")
            said = f"the check failed ({type(error).__name__}): the store service's log says at what"
            self.last = json.dumps(document(StoreError(said)))

    def _tell(self, address: str, done: int, count: int) -> None:
        self.lines.append(dumps(Checking(address=address, done=done, count=count)))


class Checks:
    """The running checks, at most one of a kind: a request for a running check joins it."""

    def __init__(self, store: FolderStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._running: WeakValueDictionary[tuple[bool, bool], RunningCheck] = WeakValueDictionary()

    def joined(self, *, deep: bool, protect: bool) -> RunningCheck:
        """Return the running check, or start one."""
        kind = (deep, protect)
        with self._lock:
            check = self._running.get(kind)
            if check is None or check.last:
                check = self._running[kind] = RunningCheck(self._store, deep=deep, protect=protect)
            return check
