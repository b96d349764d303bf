"""How many calls of gRPC are under way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

QUIET_SECONDS = 1.0
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

    async def quiet(self) -> None:
        """Return when none has been under way for a second from now on: who was told to go may have asked before it heard so."""
        now = asyncio.get_running_loop().time
        began = now()
        while self._calls or now() < max(began, self._ended) + QUIET_SECONDS:
            await asyncio.sleep(_LOOK_SECONDS)
