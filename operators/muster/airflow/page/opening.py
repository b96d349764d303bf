"""One site for all requests of a process: opened by the first, replaced after an error, closed when unused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.airflow.page.route import Site


@dataclass(eq=False)
class _Lent:
    site: Site
    readers: int = 0


class Opening:
    """Lends the site to requests. Safe to share between threads.

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
