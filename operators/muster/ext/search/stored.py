"""The searches of a store: each is an event log of it, whose head is the search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from muster.core import wire
from muster.core.errors import Conflict, Corrupt, NotFound, SpecError
from muster.ext.search.spec import Event, EventPage, Search

if TYPE_CHECKING:
    from muster.volumes.protocols import EventLogs

KIND = "searches"


def begin_search(store: EventLogs, search_id: str, search: Search) -> bool:
    """Enter a search; False where it is there already.

    :raises Conflict: it is there with another space, or other rules.
    """
    head = wire.dumps(search)
    if store.begin_log(KIND, search_id, head):
        return True
    if stored_search(store, search_id).spec != wire.loads(Search, head).spec:  # as it is read back, 1 is 1.0
        raise Conflict(f"search {search_id} is there already with another space or other rules")
    return False


def stored_search(store: EventLogs, search_id: str) -> Search:
    """Return a search. :raises NotFound: no such search. :raises Corrupt: it cannot be read."""
    try:
        return wire.loads(Search, store.log_head(KIND, search_id))
    except NotFound as error:
        raise NotFound(
            f"no search {search_id} in this store: `muster search ls` lists what is there"
        ) from error
    except SpecError as error:
        raise Corrupt(
            f"search {search_id} cannot be read ({error}): take {KIND}/{search_id} in the store away, nothing else uses it"
        ) from error


def event_pages(store: EventLogs, search_id: str, *, after: int = 0) -> Iterator[EventPage]:
    """Yield the events from there on, some at a time. :raises Corrupt: they cannot be read."""
    while (found := store.log_events(KIND, search_id, after=after)).events:
        try:
            yield wire.build(EventPage, {"events": list(found.events), "end": found.end})
        except SpecError as error:
            raise Corrupt(f"the events of search {search_id} cannot be read: {error}") from error
        after = found.end


def tell_search(store: EventLogs, search_id: str, events: Sequence[Event], *, after: int) -> int:
    """Add events, as :meth:`muster.volumes.protocols.EventLogs.append_events` does."""
    return store.append_events(KIND, search_id, [wire.written(event) for event in events], after=after)
