"""What MLflow is told of a search: one run of it, one of each trial, and nothing twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.mlflow import InMemory, Kept

from muster.backends.tracking import Tracking
from muster.core.errors import ImageError, SpecError
from muster.core.job import JobSpec, Role
from muster.core.origin import Origin
from muster.ext.search.mlflow.reach import MlflowRuns, reach
from muster.ext.search.space import uniform
from muster.ext.search.spec import Event, EventKind, Search, SearchSpec
from muster.ext.search.state import SearchState
from muster.ext.search.tracking import Tracker, with_tags

SPEC = SearchSpec(space={"rate": uniform(0, 1)}, metric="auc", trials=3, rungs=(1, 3), seed=1)
TRIAL = JobSpec(
    name="hills.search",
    image="train",
    image_digest=f"b3:{'0' * 64}",
    roles=(Role(command=("true",)),),
    params={"rate": 0},
    origin=Origin(instance="one", dag_id="hills", run_id="run-1", task_id="search"),
)
SEARCH = Search(spec=SPEC, trial=TRIAL, began=100.0)
SERVED = Tracking(variables={"MLFLOW_TRACKING_URI": "https://mlflow.example"}, chosen=True)


@dataclass
class World:
    """A search whose events are told to trackers, one after the other as its drivers are killed."""

    mlflow: InMemory = field(default_factory=InMemory)
    now: float = 100.0
    said: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    state: SearchState = field(default_factory=lambda: SearchState(SPEC))
    connect: Callable[[Tracking], MlflowRuns | None] | None = None

    def tracker(self, tracking: Tracking = SERVED) -> Tracker:
        """A driver that begins where the one before was killed."""
        made = Tracker(
            "s-1",
            SEARCH,
            tracking=lambda: tracking,
            say=self.said.append,
            clock=lambda: self.now,
            connect=self.connect or (lambda found: MlflowRuns(self.mlflow, found.variables)),
        )
        for event in self.events:
            made.note(event)
        return made

    def happens(self, tracker: Tracker, what: EventKind, trial: int, **fields: Any) -> None:
        event = Event(what=what, at=self.now, trial=trial, **fields)
        self.events.append(event)
        self.state.apply(event)
        tracker.note(event)

    def starts(self, tracker: Tracker, number: int, job_id: str, rung: int = 0) -> dict[str, str]:
        self.happens(tracker, EventKind.STARTED, number, job_id=job_id, rung=rung)
        return tracker.tags(self.state.trials[number], job_id, rung)

    def parent(self) -> Kept:
        (found,) = [run for run in self.mlflow.having(search="s-1") if "muster.trial" not in run.tags]
        return found


def test_a_search_is_one_run_and_its_trials_are_below_it() -> None:
    world = World()
    tracker = world.tracker()
    world.happens(tracker, EventKind.ASKED, 0, params={"rate": 0.5})
    tags = world.starts(tracker, 0, "job-a")
    parent = world.parent()
    (trial,) = world.mlflow.below(parent)
    assert tags == {
        "muster.search": "s-1",
        "muster.trial": "0",
        "muster.rung": "1",
        "mlflow.parentRunId": trial.run_id,
    }
    world.happens(tracker, EventKind.REACHED, 0, rung=0, value=0.7)
    tracker.tell(world.state)
    assert (trial.name, trial.status, trial.params) == ("trial 0", "RUNNING", {"rate": "0.5"})
    assert trial.metrics == [("auc", 1, 0.7)]
    assert trial.tags["muster.job_id"] == "job-a"
    world.happens(tracker, EventKind.PAUSED, 0, rung=0)
    tracker.tell(world.state)
    assert (trial.status, trial.tags["muster.phase"]) == ("FINISHED", "paused")
    assert world.starts(tracker, 0, "job-b", 1)["mlflow.parentRunId"] == trial.run_id
    tracker.tell(world.state)
    assert (trial.status, trial.tags["muster.job_id"]) == ("RUNNING", "job-b")
    world.happens(tracker, EventKind.REACHED, 0, rung=1, value=0.9)
    world.happens(tracker, EventKind.ENDED, 0, value=0.9)
    world.happens(tracker, EventKind.CLOSED, 0)
    tracker.tell(world.state)
    assert trial.metrics == [("auc", 1, 0.7), ("auc", 3, 0.9)]
    assert (parent.name, parent.status) == ("hills.search", "FINISHED")
    assert parent.params["space.rate"] == "uniform(0, 1)"
    assert (parent.tags["muster.best_trial"], parent.metrics) == ("0", [("auc", 3, 0.9)])
    assert parent.tags["muster.dag_id"] == "hills"
    assert len(world.mlflow.runs) == 2
    assert world.said == []


def test_a_driver_that_is_killed_between_any_two_calls_leaves_no_second_run_and_tells_nothing_twice() -> None:
    class Killed(Exception):
        """Ends a driver behind a call that MLflow has done."""

    def search(world: World, dies_after: int) -> None:
        call, left = world.mlflow.call, dies_after

        def dies(name: str, given: Any) -> Any:
            nonlocal left
            answer, left = call(name, given), left - 1
            if not left:
                raise Killed
            return answer

        world.mlflow.call = dies  # type: ignore[method-assign]
        tracker = world.tracker()

        def surviving(does: Callable[[Tracker], Any]) -> None:
            nonlocal tracker
            try:
                does(tracker)
            except Killed:
                tracker = world.tracker()
                does(tracker)

        world.happens(tracker, EventKind.ASKED, 0, params={"rate": 0.5})
        world.happens(tracker, EventKind.STARTED, 0, job_id="job-a", rung=0)
        surviving(lambda at: at.tags(world.state.trials[0], "job-a", 0))
        world.happens(tracker, EventKind.REACHED, 0, rung=0, value=0.7)
        surviving(lambda at: at.tell(world.state))
        world.happens(tracker, EventKind.REACHED, 0, rung=1, value=0.9)
        world.happens(tracker, EventKind.ENDED, 0, value=0.9)
        world.happens(tracker, EventKind.CLOSED, 0)
        surviving(lambda at: at.tell(world.state))

    whole = World()
    search(whole, -1)
    for after in range(1, whole.mlflow.calls):
        world = World()
        search(world, after)
        found = [(run.name, run.status, run.params, run.metrics, run.tags) for run in world.mlflow.runs]
        assert found == [
            (run.name, run.status, run.params, run.metrics, run.tags) for run in whole.mlflow.runs
        ]


def test_mlflow_that_is_away_is_told_once_and_hears_all_of_it_when_it_is_back() -> None:
    world = World()
    world.mlflow.away = True
    tracker = world.tracker()
    world.happens(tracker, EventKind.ASKED, 0, params={"rate": 0.5})
    assert "mlflow.parentRunId" not in world.starts(tracker, 0, "job-a")
    for rung in (0, 1):
        world.happens(tracker, EventKind.REACHED, 0, rung=rung, value=0.5 + rung / 10)
        tracker.tell(world.state)
    assert world.mlflow.calls == 1, "it is not asked again at once"
    world.now += 61
    tracker.tell(world.state)
    assert world.mlflow.calls == 2
    assert len(world.said) == 1
    assert "MLflow does not answer" in world.said[0]
    world.mlflow.away = False
    own = world.mlflow.runs_create(  # what the script began meanwhile
        {
            "run_name": "own",
            "experiment_id": "0",
            "start_time": 1,
            "tags": [{"key": "muster.job_id", "value": "job-a"}],
        }
    )
    world.now += 61
    world.happens(tracker, EventKind.ENDED, 0, value=0.6)
    tracker.tell(world.state)
    (trial,) = world.mlflow.below(world.parent())
    assert trial.metrics == [("auc", 1, 0.5), ("auc", 3, 0.6)]
    assert [run.run_id for run in world.mlflow.below(trial)] == [own["run"]["info"]["run_id"]]
    assert len(world.said) == 1


@pytest.mark.parametrize(("chosen", "told"), [(True, 1), (False, 0)])
def test_an_image_without_mlflow_is_said_where_the_author_asked_for_it(chosen: bool, told: int) -> None:
    def missing(_: Tracking) -> MlflowRuns:
        raise ImageError("the image has no MLflow")

    world = World(connect=missing)
    tracker = world.tracker(replace(SERVED, chosen=chosen))
    world.happens(tracker, EventKind.ASKED, 0, params={"rate": 0.5})
    assert "mlflow.parentRunId" not in world.starts(tracker, 0, "job-a")
    tracker.tell(world.state)
    assert len(world.said) == told


def test_an_image_that_is_not_built_yet_is_waited_for() -> None:
    built: list[MlflowRuns] = []
    world = World(connect=lambda _: built[0] if built else None)
    tracker = world.tracker()
    world.happens(tracker, EventKind.ASKED, 0, params={"rate": 0.5})
    assert "mlflow.parentRunId" not in world.starts(tracker, 0, "job-a")
    built.append(MlflowRuns(world.mlflow, {}))
    world.now += 6
    tracker.tell(world.state)
    assert [run.name for run in world.mlflow.below(world.parent())] == ["trial 0"]


def test_the_runs_are_in_the_experiment_of_the_jobs() -> None:
    mlflow = InMemory()
    named = MlflowRuns(mlflow, {"MLFLOW_EXPERIMENT_NAME": "hills"})
    assert named.find("muster.search", "s-1") == []
    assert mlflow.experiments == {"Default": "0", "hills": "1"}
    MlflowRuns(mlflow, {"MLFLOW_EXPERIMENT_ID": "7"}).begin("one", tags={}, at=1.0)
    assert [run.experiment for run in mlflow.runs] == ["7"]


@pytest.mark.parametrize(
    ("tracking", "says"),
    [
        (replace(SERVED, variables={}), "is not set"),
        (replace(SERVED, hidden=("MLFLOW_TRACKING_PASSWORD",)), "which only pods are given"),
        (
            replace(SERVED, variables={"MLFLOW_TRACKING_URI": "databricks"}, containers=True),
            "address of a server",
        ),
    ],
)
def test_what_no_process_outside_of_the_job_reaches_says_why(tracking: Tracking, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        reach(tracking)


def test_tags_stand_beside_those_of_the_author() -> None:
    found = with_tags({"A": "1", "MLFLOW_RUN_CONTEXT": '{"team": "ana"}'}, {"muster.trial": "3"})
    assert found["A"] == "1"
    assert json.loads(found["MLFLOW_RUN_CONTEXT"]) == {"team": "ana", "muster.trial": "3"}
    assert json.loads(with_tags({"MLFLOW_RUN_CONTEXT": "no"}, {})["MLFLOW_RUN_CONTEXT"]) == {}
