"""A task takes back, or releases, what it means, once, and nothing else: of a backend in memory."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.airflow.attempts.notes import Notes
from tests.unit.backends.releases.world import NAME, Killed, Lines, World, spec

from muster.airflow.assets import deployment_asset
from muster.airflow.embedded.home import EmbeddedHome
from muster.core.deployment import RevisionState
from muster.core.errors import NotFound
from muster.core.origin import Origin

MODELS = {number: f"volume://lines/model@{number}" for number in (1, 2, 3)}


class Backend(World):
    """One whose store knows the versions."""

    store = SimpleNamespace(resolve=lambda address: (SimpleNamespace(address=address),))


@pytest.fixture
def world() -> Backend:
    world = Backend()
    world.begin_canary(by="release")
    return world


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def told() -> dict[Any, Any]:
    """What the asset's event says."""
    return defaultdict(lambda: SimpleNamespace(extra={}))


@pytest.fixture
def run(home: EmbeddedHome, world: Backend, told: Any, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the task, in the name of one of its tries."""
    from muster.airflow import RollbackOperator
    from muster.airflow.attempts.run import TaskRun

    notes = defaultdict[str, Notes](Notes)

    def go(*, task_id: str = "back", max_tries: int = 2, **keywords: Any) -> dict[str, Any]:
        operator = RollbackOperator(task_id=task_id, name=NAME, **keywords)
        origin = Origin(dag_id="night", task_id=task_id, run_id="manual")
        context: Any = {"task": operator, "outlet_events": told, "task_state_store": notes[task_id]}
        task = SimpleNamespace(
            backend=world,
            origin=origin,
            context=context,
            max_tries=max_tries,
            retries=2,
            owner=str(uuid.uuid4()),
        )
        monkeypatch.setattr(TaskRun, "of", lambda *_: task)
        return operator.perform(context)

    return go


def test_a_release_under_way_is_taken_back_and_the_event_says_so(run: Run, world: Backend, told: Any) -> None:
    assert run(reason="too many alarms") == {
        "name": NAME,
        "version": MODELS[2],
        "revision": "r2",
        "rolled_back": MODELS[3],
    }
    assert world.deployment(NAME).shares == {"r2": 100}
    assert world.called("r3").reason == "rolled back by night.back, manual: too many alarms"
    event = told[deployment_asset(NAME)].extra
    assert (event["version"], event["rolled_back"]) == (MODELS[2], MODELS[3])


def test_it_warns_where_a_version_serves_that_was_retired(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from muster.airflow import RollbackOperator

    live = Lines.resolve
    monkeypatch.setattr(
        Lines, "resolve", lambda *asked: tuple(replace(one, retired="it leaks") for one in live(*asked))
    )
    warned: list[str] = []
    monkeypatch.setattr(RollbackOperator, "warn", lambda _self, text: warned.append(text))
    run()
    (said,) = warned
    assert "lines/model@2 was retired: it leaks. Release another version" in said
    assert "muster volumes reinstate lines/model@2" in said


def test_a_retry_goes_back_no_further_and_another_task_does(run: Run, world: Backend) -> None:
    assert run() == run()
    assert world.deployment(NAME).shares == {"r2": 100}
    assert run(task_id="once_more")["version"] == MODELS[1]
    with pytest.raises(NotFound, match="keeps no revision to go back to"):
        run(task_id="and_again")


@pytest.mark.parametrize("named", [True, False])
def test_one_that_is_cleared_takes_back_what_came_since(run: Run, world: Backend, named: bool) -> None:
    model = MODELS[3] if named else None
    assert run(model=model)["rolled_back"] == MODELS[3]
    again = world.prepare(spec(3), by="release").name
    world.come_up(again)
    status = world.deployment(NAME)
    world.shift(NAME, {"r2": 95, again: 5, "r1": 0}, token=status.token, release=status.release)
    assert run(model=model)["rolled_back"] == MODELS[3]
    assert world.called(again).percent == 5  # a retry of the same try means what that one did
    assert run(model=model, max_tries=5)["rolled_back"] == MODELS[3]
    assert world.called(again).state is RevisionState.REFUSED


@pytest.mark.parametrize("when", ["shift", "shift done", "withdraw", "withdraw done"])
def test_a_try_that_was_killed_is_finished_by_the_next(run: Run, world: Backend, when: str) -> None:
    def fault(which: str) -> None:
        if which == when:
            world.fault = lambda _: None
            raise Killed

    world.fault = fault
    with pytest.raises(Killed):
        run()
    assert run()["version"] == MODELS[2]
    status = world.deployment(NAME)
    assert (status.shares, status.release) == ({"r2": 100}, None)
    assert world.called("r1").kept


@pytest.mark.parametrize(("number", "done"), [(3, True), (2, False), (1, False)])
def test_only_the_version_that_is_named_is_taken_back(
    run: Run, world: Backend, number: int, done: bool
) -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    if done:
        assert run(model=MODELS[number])["rolled_back"] == MODELS[number]
        return
    before = world.token
    with pytest.raises(
        AirflowSkipException,
        match=f"nothing is rolled back: lines/model@{number} is wanted back, and it is lines/model@3 that could",
    ):
        run(model=MODELS[number])
    assert world.token == before
