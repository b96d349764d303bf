"""What a route of the page takes and answers: the opened store, limits of what may be asked, and JSON."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import Depends, Query, Request
from fastapi.responses import JSONResponse

from muster.backends.base import Backend
from muster.backends.capacity import Capacity

if TYPE_CHECKING:
    from muster.airflow.page.opening import Opening

MOST_ROWS = 200

Limit = Annotated[int, Query(ge=1, le=MOST_ROWS)]
Offset = Annotated[int, Query(ge=0, le=10**9)]
Text = Annotated[str, Query(max_length=200)]
Name = Annotated[str, Query(max_length=250)]
"""The id of a Dag, or of a run."""
Part = TypeVar("Part")


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


class Site:
    """An opened backend with its store, and what extensions remember of it. Safe to share between threads.

    :param parts: those that are not made by :meth:`part`.
    """

    def __init__(self, backend: Backend, *parts: object) -> None:
        self.backend = backend
        self._lock = threading.Lock()
        self._parts: dict[object, Any] = {type(each): each for each in parts}

    @property
    def capacity(self) -> Capacity:
        """Who has what, opened when it is first asked: the first screen needs none."""
        return self.backend.place.capacity

    def part(self, kind: Callable[..., Part], *made_of: object) -> Part:
        """Return the part of this type, such as what an extension has read already; it is made when it is first asked for."""
        with self._lock:
            if kind not in self._parts:
                self._parts[kind] = kind(*made_of)
            found: Part = self._parts[kind]
            return found


def site(request: Request) -> Iterator[Site]:
    """Yield the process's site for the time of a request."""
    opening: Opening = request.app.state.opening
    with opening.lent() as lent:
        request.state.site = lent
        yield lent


Here = Annotated[Site, Depends(site)]
