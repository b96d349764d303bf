"""The addresses that searches had at a store service before event logs had any: clients of earlier builds ask them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from muster.ext.search.spec import Event, EventPage, Search
from muster.ext.search.stored import KIND, begin_search, event_pages, stored_search, tell_search
from muster.volumes.protocols import EventLogs
from muster.volumes.service.calls import LIMIT_JSON_BYTES, Bind, Call, Count, Served, route
from muster.volumes.service.table import ROWS

_ONE = f"/v1/{KIND}/{{search_id}}"


@dataclass(frozen=True, kw_only=True)
class NewSearch:
    """A search that begins."""

    search: Search


@dataclass(frozen=True, kw_only=True)
class News:
    """Events that happened. :param after: where those before them end."""

    events: tuple[Event, ...]
    after: int


def routes(served: Served) -> Iterator[Bind]:
    """Yield these calls."""
    store, limit = served.store, LIMIT_JSON_BYTES
    answer, names = (ROWS[method].sent.pack for method in (EventLogs.begin_log, EventLogs.logs))  # type: ignore[union-attr]

    def begin(call: Call) -> object:
        return answer(begin_search(store, call.part("search_id"), call.message(NewSearch).search))

    def page(call: Call) -> EventPage:
        after = call.query_number("after", 0)
        return next(event_pages(store, call.part("search_id"), after=after), EventPage(events=(), end=after))

    def tell(call: Call) -> Count:
        news = call.message(News)
        return Count(count=tell_search(store, call.part("search_id"), news.events, after=news.after))

    yield route("PUT", _ONE, begin, text=limit)
    yield route("GET", _ONE, lambda call: stored_search(store, call.part("search_id")))
    yield route("GET", f"/v1/{KIND}", lambda _: names(store.logs(KIND)))
    yield route("GET", f"{_ONE}/events", page)
    yield route("POST", f"{_ONE}/events", tell, text=limit, right="clicks")
