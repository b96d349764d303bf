"""What the routes of the page share: its sources, the form of its answers, and the limits of what may be asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.responses import JSONResponse

from muster.backends.base import Backend
from muster.backends.capacity import Capacity
from muster.ext.page.answering import Answering
from muster.ext.page.board import STATES, Board
from muster.ext.search.page import Searches
from muster.ext.search.trial_curves import TrialCurves

if TYPE_CHECKING:
    from muster.ext.page.opening import Opening

MOST_ROWS = 200

Limit = Annotated[int, Query(ge=1, le=MOST_ROWS)]
Offset = Annotated[int, Query(ge=0, le=10**9)]
Text = Annotated[str, Query(max_length=200)]
Several = Annotated[list[str] | None, Query(max_length=8)]
State = Annotated[str, Query(pattern=f"^({'|'.join(STATES)})?$")]
Number = Annotated[int | None, Query(ge=0, le=10**15)]


class Json(JSONResponse):
    """JSON in ASCII: a file's name may hold bytes that are not UTF-8, which must not fail a response.

    It is marked by its content, so a browser that has the same answer already gets 304.
    """

    def __init__(self, content: Any, status_code: int = 200) -> None:
        super().__init__(content, status_code)
        if status_code == 200:
            self.headers["etag"] = f'"{blake2b(self.body, digest_size=12).hexdigest()}"'
            self.headers["cache-control"] = "private, no-cache"

    def render(self, content: Any) -> bytes:
        """Write `content`, without spaces."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Site:
    """The page's sources: a backend with its store, the known jobs, and the deployments."""

    backend: Backend
    board: Board
    answering: Answering
    open_capacity: Callable[[], Capacity]

    @cached_property
    def capacity(self) -> Capacity:
        """Who has what, opened when it is first asked: the first screen needs none."""
        return self.open_capacity()

    @cached_property
    def searches(self) -> Searches:
        """What is known of every search."""
        return Searches(self.backend.store)

    @cached_property
    def curves(self) -> TrialCurves:
        """The curves of trials."""
        return TrialCurves(self.backend.store.ledger)


def site(request: Request) -> Iterator[Site]:
    """Yield the process's site for the time of a request."""
    opening: Opening = request.app.state.opening
    with opening.lent() as lent:
        request.state.site = lent
        yield lent


Here = Annotated[Site, Depends(site)]
