"""A release is asked for once, whichever tries of its task there are: of a backend in memory."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.airflow.attempts.notes import Notes
from tests.unit.backends.releases.world import NAME, World, spec

from muster.airflow.embedded.home import EmbeddedHome
from muster.backends.releases.decision import Ending
from muster.backends.releases.driver import ReleaseDriver
from muster.backends.releases.manual import promote, roll_back
from muster.core.errors import SpecError
from muster.core.origin import Origin


@pytest.fixture
def world() -> World:
    """Where @1 serves."""
    world = World()
    made = world.prepare(spec(1), by="task")
    world.come_up(made.name)
    promote(world, NAME, made.name, by="task")
    return world


class Task:
    """A deploy task, try by try."""

    def __init__(self, world: World) -> None:
        from muster.airflow import DeployOperator

        self.notes = Notes()
        self._world = world
        self._operator = DeployOperator(task_id="deploy", name=NAME, model="volume://lines/model@2")

    def begin(
        self, *, max_tries: int = 2, retries: int = 2, latest: int = 2, owner: str = ""
    ) -> ReleaseDriver:
        """What a new process of it drives. :param latest: what its words name by now; `owner` is its try, a new one unless said."""
        origin = Origin(dag_id="night", task_id="deploy", run_id="manual")
        task: Any = SimpleNamespace(
            backend=self._world,
            origin=origin,
            context={"task_state_store": self.notes},
            max_tries=max_tries,
            retries=retries,
            owner=owner or str(uuid.uuid4()),
        )
        return self._operator.begin_release(task, lambda: spec(latest))


@pytest.fixture
def task(home: EmbeddedHome, world: World) -> Task:
    return Task(world)


def driven(world: World, driver: ReleaseDriver) -> Any:
    for _ in range(20):
        world.pass_time(0.25)
        if (outcome := driver.step()) is not None:
            return outcome
    raise AssertionError(world.deployment(NAME))


def test_what_was_refused_is_not_released_anew_by_a_retry(task: Task, world: World) -> None:
    """A worker that was lost between the end and its report."""
    world.answers["r2"] = 9.0
    first = task.begin()
    world.come_up("r2")
    refused = driven(world, first)
    assert refused.ending is Ending.ROLLED_BACK
    before = world.token
    assert driven(world, task.begin()) == refused
    assert world.token == before


def test_what_a_person_rolled_back_stays_so_whatever_is_tried_again(task: Task, world: World) -> None:
    task.begin()
    world.come_up("r2")
    roll_back(world, NAME, by="ann")
    outcome = driven(world, task.begin())
    assert (outcome.ending, outcome.reason) == (Ending.ROLLED_BACK, "rolled back by ann")
    assert world.deployment(NAME).shares == {"r1": 100}


def test_a_task_that_is_cleared_asks_for_it_again(task: Task, world: World) -> None:
    task.begin()
    world.come_up("r2")
    roll_back(world, NAME, by="ann")
    again = task.begin(max_tries=5)
    assert again.revision == "r3"
    world.come_up("r3")
    assert driven(world, again).ending is Ending.DONE


def test_nor_is_it_forgotten_that_it_was_cleared_where_its_retries_were_lowered_before(
    task: Task, world: World
) -> None:
    task.begin()
    world.come_up("r2")
    roll_back(world, NAME, by="ann")
    assert task.begin(retries=1).revision == "r3"


def test_its_retries_were_edited_while_it_was_deferred(task: Task, world: World) -> None:
    """It was rolled back meanwhile, and this very try had asked for that revision."""
    task.begin(owner="first")
    task.begin(owner="second")
    world.come_up("r2")
    roll_back(world, NAME, by="ann")
    resumed = task.begin(owner="second", retries=3)
    assert resumed.revision == "r2"
    assert driven(world, resumed).ending is Ending.ROLLED_BACK


def test_a_retry_means_the_version_that_was_asked_for_and_not_what_is_the_latest_by_now(
    task: Task, world: World
) -> None:
    asked = task.begin()
    again = task.begin(latest=3)
    assert (again.order.spec, again.revision) == (asked.order.spec, "r2")
    world.come_up("r2")
    assert driven(world, again).ending is Ending.DONE
    champion = world.deployment(NAME).champion
    assert champion is not None
    assert champion.model.address == "volume://lines/model@2"
    cleared = task.begin(max_tries=5, latest=3)
    assert (cleared.revision, cleared.order.spec) == ("r3", spec(3))


def test_what_somebody_else_wrote_there_is_not_taken_for_ours(task: Task) -> None:
    task.notes.kept["begun.release"] = 7
    with pytest.raises(SpecError, match=r"task_state_store holds 7 as begun\.release: clear the task"):
        task.begin()
