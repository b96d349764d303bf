"""However many people watch a deployment, it is looked at once a second."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.backends.releases.world import NAME, World, spec

from muster.backends.releases.manual import promote
from muster.core.errors import NotFound
from muster.ext.page import answering
from muster.ext.page.answering import Answering


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(answering, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.fixture
def world() -> World:
    world = World()
    world.prepare(spec(1), by="task")
    world.come_up("r1")
    promote(world, NAME, "r1", by="task")
    return world


def looks(world: World) -> list[int]:
    """Count the looks from here on."""
    counted, asked = itertools.count(), [0]
    look_at = world.look_at

    def look(names: Any = None) -> Any:
        if names:
            asked[0] = next(counted) + 1
        return look_at(names)

    world.look_at = look  # type: ignore[method-assign]
    return asked


def test_many_who_look_within_a_second_cost_one_look(world: World, clock: Any) -> None:
    board, asked = Answering(world), looks(world)  # type: ignore[arg-type]
    for _ in range(20):
        board.all()
        board.one(NAME)
    assert asked == [1]
    clock.now += 2
    board.one(NAME)
    assert asked == [2]


def test_what_was_answered_lately_stands_beside_all_of_it(world: World, clock: Any) -> None:
    world.pass_time(1, requests=100)
    board = Answering(world)  # type: ignore[arg-type]
    assert (board.one(NAME)["figures"]["r1"]["requests"], board.one(NAME)["lately"]) == (100, {})
    for second in range(30):
        clock.now += 2
        world.pass_time(1, requests=10)
        found = board.one(NAME)
        assert found["figures"]["r1"]["requests"] == 110 + 10 * second
    assert (found["lately"]["r1"]["requests"], found["lately_seconds"]) == (70, 14.0)


def test_one_that_comes_while_all_are_listed_is_shown(world: World, clock: Any) -> None:
    board = Answering(world)  # type: ignore[arg-type]
    look_at = world.look_at

    def meanwhile(names: Any = None) -> Any:
        world.look_at = look_at  # type: ignore[method-assign]
        world.names = list  # type: ignore[assignment,method-assign]
        assert board.all() == []  # of a list that was made before there was any
        return look_at(names)

    world.look_at = meanwhile  # type: ignore[method-assign]
    assert board.one(NAME)["name"] == NAME


def test_what_cannot_be_counted_and_what_is_not_there(world: World, clock: Any) -> None:
    world.silent.add("r1")
    board = Answering(world)  # type: ignore[arg-type]
    assert board.one(NAME)["figures"] is None
    with pytest.raises(NotFound):
        board.one("other")
    assert [each["name"] for each in board.all()] == [NAME]
