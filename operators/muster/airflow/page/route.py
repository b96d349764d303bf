"""What a route of the page takes and answers: the opened store, limits of what may be asked, JSON, and the name of a task."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from fastapi import Depends, Query, Request
from fastapi.responses import JSONResponse

from muster.backends.base import Backend
from muster.backends.capacity import Capacity
from muster.core.origin import Origin

MOST_ROWS = 200
UNREADABLE = "unreadable"
"""The state on the page of a job or search whose documents cannot be read."""

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


@dataclass(eq=False)
class _Lent:
    site: Site
    readers: int = 0


class Opening:
    """One site for all requests: opened by the first, replaced after an error, closed when unused. Safe to share between threads.

    :param open_site: opens one; other requests wait for it.
    """

    def __init__(self, open_site: Callable[[], Site]) -> None:
        self._open = open_site
        self._lock = threading.Lock()
        self._now: _Lent | None = None

    @contextmanager
    def lent(self) -> Iterator[Site]:
        """Lend the site to one request, until it is answered."""
        with self._lock:
            if self._now is None:
                self._now = _Lent(self._open())
            lent = self._now
            lent.readers += 1
        try:
            yield lent.site
        finally:
            with self._lock:
                lent.readers -= 1
                over = lent is not self._now and not lent.readers
            if over:
                lent.site.backend.close()

    def replace(self, site: Site) -> None:
        """Let the next request open a new site; this one is closed when its last request is answered."""
        with self._lock:
            if self._now is None or self._now.site is not site:
                return  # another request has done it
            lent, self._now = self._now, None
            over = not lent.readers
        if over:
            lent.site.backend.close()


def site(request: Request) -> Iterator[Site]:
    """Yield the process's site for the time of a request."""
    with request.app.state.opening.lent() as lent:
        request.state.site = lent
        yield lent


Here = Annotated[Site, Depends(site)]


def task(origin: Origin) -> dict[str, Any]:
    """Return the task's name as ``task`` and its address, relative to the page, as ``task_url``.

    The address is None if this Airflow does not know the task: ``muster run`` has a database of its own.
    The name is empty if no Airflow submitted the job.
    """
    if not origin.dag_id:
        return {"task": "", "task_url": None}
    if origin.by_muster_run:
        return {"task": f"{origin.dag_id}.{origin.stage} by muster run", "task_url": None}
    dag, run, name = (quote(part, safe="") for part in (origin.dag_id, origin.run_id, origin.task_id))
    where = f"../dags/{dag}/runs/{run}/tasks/{name}" + (
        f"/mapped/{origin.map_index}" if origin.map_index >= 0 else ""
    )
    return {"task": f"{origin.dag_id} · {origin.stage}", "task_url": where}
