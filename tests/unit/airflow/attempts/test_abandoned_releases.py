"""Which releases no task watches any more, and what becomes of their share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.backends.releases.world import NAME, World, spec

from muster.airflow.attempts.orphans import YOUNG_SECONDS, TakenBack, take_back
from muster.airflow.attempts.task_state import GONE
from muster.backends.releases.driver import begin
from muster.backends.releases.plan import Plan
from muster.core.deployment import Release, RevisionState
from muster.core.errors import BackendError, Conflict
from muster.core.origin import Origin

TASK = Origin(instance="i", dag_id="flights", run_id="r", task_id="deploy")
BY = "flights.deploy, r"


def canary(*, age: float = 2 * YOUNG_SECONDS, **changes: Any) -> World:
    """A world whose second version has 20 % since so many seconds, by a task whose driver is gone."""
    world = World()
    for number, percents in ((1, (100,)), (2, (20, 100))):
        plan = Plan(steps=percents, hold_seconds=tuple(600.0 * (each < 100) for each in percents))
        driver = begin(world, spec(number), plan, by=BY, origin=TASK)
        world.come_up(driver.revision)
        while world.called(driver.revision).percent != percents[0]:
            driver.step()
    assert world.release is not None
    world.release = replace(world.release, since=time.time() - age, **changes)
    return world


def taken(world: World, state: str | None = "failed", *, instance: str = "i") -> list[TakenBack]:
    return take_back(world, instance, lambda _: state)


@pytest.mark.parametrize("state", ["failed", "skipped", "removed", "upstream_failed", GONE])
def test_a_release_whose_task_is_over_is_taken_back_and_says_why(state: str) -> None:
    world = canary()
    reason = f"its task is {state}, and no task watches it any more"
    assert taken(world, state) == [TakenBack(deployment=NAME, revision="r2", by=BY, reason=reason)]
    assert world.deployment(NAME).shares == {"r1": 100}
    assert (world.called("r2").state, world.called("r2").reason) == (RevisionState.REFUSED, reason)
    assert world.release is None
    assert taken(world, state) == []


@pytest.mark.parametrize(
    "state", ["success", "running", "deferred", "restarting", "up_for_retry", "queued", "scheduled", None]
)
def test_one_whose_task_goes_on_or_did_what_it_was_told_is_left_alone(state: str | None) -> None:
    world = canary()
    before = world.history[:]
    assert taken(world, state) == []
    assert world.history == before


@pytest.mark.parametrize(
    "make",
    [
        lambda: canary(held=True),
        lambda: canary(origin=None),
        lambda: canary(origin=replace(TASK, instance="another")),
        lambda: canary(age=YOUNG_SECONDS - 10),
    ],
)
def test_nobody_asks_about_what_is_held_or_young_or_of_others(make: Callable[[], World]) -> None:
    def never(origin: Origin) -> str:
        raise AssertionError(origin)

    world = make()
    assert take_back(world, "i", never) == []
    assert world.deployment(NAME).shares == {"r2": 20, "r1": 80}


def test_one_without_a_share_yet_goes_too() -> None:
    world = World()
    begin(world, spec(1), Plan(), by=BY, origin=TASK)
    world.release = replace(world.release or Release(revision="", champion="", by="", since=0), since=0.0)
    assert [each.revision for each in taken(world)] == ["r1"]
    assert (world.called("r1").state, world.release) == (RevisionState.REFUSED, None)


def test_what_was_taken_back_by_half_is_ended_with_the_reason_that_it_has() -> None:
    world = canary(failed="too many errors")
    assert [each.reason for each in taken(world)] == ["too many errors"]
    assert (world.called("r2").reason, world.release) == ("too many errors", None)


def test_of_a_release_that_somebody_goes_on_with_at_this_moment_nothing_is_taken() -> None:
    world = canary()

    def cleared_just_now(_: Origin) -> str:
        begin(world, spec(2), Plan(), by="a person")
        return "failed"

    assert take_back(world, "i", cleared_just_now) == []
    assert world.release is not None
    assert (world.release.by, world.release.origin, world.release.failed) == ("a person", None, "")
    assert world.deployment(NAME).shares == {"r2": 20, "r1": 80}


def test_one_that_cannot_be_looked_at_keeps_no_other(caplog: pytest.LogCaptureFixture) -> None:
    world = canary()

    class Two:
        """The world, and a deployment before it that is away."""

        def names(self) -> list[str]:
            return ["away", NAME]

        def deployment(self, name: str) -> Any:
            if name == "away":
                raise BackendError("the API server is away")
            return world.deployment(name)

        def __getattr__(self, name: str) -> Any:
            return getattr(world, name)

    assert [each.deployment for each in take_back(Two(), "i", lambda _: "failed")] == [NAME]  # type: ignore[arg-type]
    assert "away" in caplog.text


def test_a_write_that_fails_is_made_at_the_next_sweep() -> None:
    world = canary()

    def beaten(_: str) -> None:
        raise Conflict("another writer changed the route")

    world.fault = beaten
    assert taken(world) == []
    world.fault = lambda _: None
    assert len(taken(world)) == 1


def test_who_goes_on_with_a_release_is_asked_about_from_then_on() -> None:
    world, other = canary(held=True), replace(TASK, task_id="full")
    begin(world, spec(2), Plan(), by="flights.full, r", origin=other)
    assert world.release is not None
    assert (world.release.origin, world.release.held) == (other, False)
