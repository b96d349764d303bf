"""How many calls of gRPC are under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_QUIET_SECONDS = 1.0
_LOOK_SECONDS = 0.05


class UnderWay:
    """Counts the calls of one listener."""

    def __init__(self) -> None:
        self._calls = 0
        self._ended = 0.0

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a call while it is answered."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            self._ended = asyncio.get_running_loop().time()

    async def quiet(self, last_passed: Callable[[], float]) -> None:
        """Return once for a second, from now on, no call has run and no byte has passed.

        A client may ask before it reads that it is to go, and a request or an answer may be long on its way.

        :param last_passed: returns when bytes passed last, by the clock of the loop.
        """
        now = asyncio.get_running_loop().time
        began = now()
        while self._calls or now() < max(began, self._ended, last_passed()) + _QUIET_SECONDS:
            await asyncio.sleep(_LOOK_SECONDS)  # the pace of looking
