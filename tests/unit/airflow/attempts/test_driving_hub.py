"""All releases of a triggerer share one backend and a few threads, and leave it time for others."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from muster.airflow.attempts import hub
from muster.airflow.attempts.hub import IDLE_SHARE, LOOK_SECONDS, DrivingHub
from muster.core.errors import BackendError


class Opened:
    """Opens backends and counts them."""

    def __init__(self) -> None:
        self.backends: list[Any] = []
        self.closed: list[Any] = []

    def __call__(self) -> Any:
        backend = SimpleNamespace()
        backend.close = lambda: self.closed.append(backend)
        self.backends.append(backend)
        return backend


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = asyncio.sleep
    monkeypatch.setattr(hub, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": lambda _: turn(0)}))


@pytest.mark.usefixtures("no_pause")
def test_they_share_one_backend_which_the_last_one_closes() -> None:
    opened = Opened()

    async def release(ours: DrivingHub, looks: int) -> list[int]:
        async with ours.joined() as backend:
            assert backend is opened.backends[0]
            return [await ours.look(lambda n=n: n) for n in range(looks)]

    async def run() -> None:
        ours = DrivingHub(opened, "release")
        assert await asyncio.gather(release(ours, 3), release(ours, 5)) == [[0, 1, 2], [0, 1, 2, 3, 4]]
        assert opened.closed == opened.backends

    asyncio.run(run())
    assert len(opened.backends) == 1


@pytest.mark.usefixtures("no_pause")
def test_after_one_that_failed_the_next_opens_another() -> None:
    opened = Opened()

    async def run() -> None:
        ours = DrivingHub(opened, "release")
        async with ours.joined():
            with pytest.raises(BackendError):
                async with ours.joined():
                    raise BackendError("the token has run out")
            assert opened.closed == []
            async with ours.joined() as backend:
                assert backend is opened.backends[1]
        assert sorted(map(id, opened.closed)) == sorted(map(id, opened.backends))

    asyncio.run(run())


def test_the_more_there_are_and_the_longer_they_look_the_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = DrivingHub(Opened(), "release")
    assert ours.pause == LOOK_SECONDS
    monkeypatch.setattr("time.thread_time", count(0.0, 0.04).__next__)

    async def run() -> float:
        async with AsyncExitStack() as members:
            for _ in range(40):
                await members.enter_async_context(ours.joined())
            await ours.look(lambda: None)
            return ours.pause

    assert asyncio.run(run()) == pytest.approx(40 * (0.04 / 8) * IDLE_SHARE)
