"""A task that searches is deferred, killed, marked and cleared: its search goes on, and no trial is trained twice."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.site import Site
from tests.waiting import until

from muster.backends.local.places import Places
from muster.backends.local.processes import marked
from muster.backends.search.driver import look_up
from muster.backends.search.state import SearchState
from muster.core.search import What
from muster.volumes.folder import FolderStore

pytestmark = pytest.mark.slow

DAG = """
    from datetime import datetime

    from airflow.sdk import dag

    from muster.airflow import GateOperator, Resources, SearchOperator, uniform

    @dag(schedule=None, start_date=datetime(2024, 1, 1), params={"seconds": 0.1})
    def hills():
        found = SearchOperator(
            task_id="search", image="python", entrypoint="hills.steps:climb", outputs={"model": "hills/model"},
            params={"seconds": "{{ params.seconds }}"}, space={"x": uniform(0, 1)}, metric="height", trials=6,
            rungs=(1, 3, 9), until="epochs", at_once=2, results="hills/search",
            resources=Resources(cpus=0.2, memory_gib=0.2),
        )
        GateOperator(task_id="gate", volume=found.versions["model"], require={"height": "> 0.1"})

    hills()
"""
STEPS = """
    import time
    from pathlib import Path

    def climb(model: Path, checkpoints: Path, *, x: float, seconds: float, epochs: int) -> dict[str, float]:
        saved = checkpoints / "epoch"
        epoch = int(saved.read_text()) if saved.exists() else 0
        print("from", epoch, flush=True)
        height = 1 - (x - 0.6) ** 2
        while epoch < epochs:
            epoch += 1
            saved.with_suffix(".part").write_text(str(epoch))
            saved.with_suffix(".part").replace(saved)
            print(f"muster: epoch={epoch}/9 height={height * (1 - 0.5 / epoch):.6f}", flush=True)
            time.sleep(seconds)
        (model / "x").write_text(str(x))
        return {"height": height}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with Site(tmp_path_factory.mktemp("site")) as site:
        site.write("hills", DAG, steps=STEPS)
        site.set("muster", inline_wait=1)
        site.up()
        yield site


@pytest.fixture(autouse=True)
def nothing_goes_on(site: Site) -> Iterator[None]:
    yield
    site.end_runs()


class Searching:
    """One run of the Dag, whose task is deferred while its search goes on."""

    def __init__(self, site: Site, seconds: float) -> None:
        self.site, self.store = site, FolderStore(site.home / "store")
        before = set(self.store.searches())
        self.run_id = site.trigger("hills", {"seconds": seconds})
        site.wait_task("hills", self.run_id, "search", ("deferred", "success"))
        (self.search_id,) = set(self.store.searches()) - before

    @property
    def state(self) -> SearchState:
        return look_up(self.store, self.search_id)[1]

    def jobs(self) -> list[str]:
        return [job for trial in self.state.trials for job in trial.jobs]

    def processes(self) -> list[int]:
        places = Places(self.site.home)
        return [pid for job in self.jobs() for pid in marked(places.mark(job))]

    def ends_well(self) -> None:
        """It succeeds, with the best trial's model, and no rung was counted twice."""
        state = self.site.wait("hills", self.run_id)
        assert state == "success", self.site.task_log("hills", self.run_id, "search")[-3000:]
        state = self.state
        best = min(state.trials, key=lambda trial: abs(trial.params["x"] - 0.6))
        found = self.site.xcom("hills", self.run_id, "search")
        assert found["search"]["id"] == self.search_id
        assert found["search"]["trial"] == best.number
        model = self.store.path(found["versions"]["model"])
        assert float((model / "x").read_text()) == best.params["x"]
        trials = json.loads((self.store.path(found["versions"]["results"]) / "trials.json").read_text())
        assert (trials["best"], len(trials["trials"])) == (best.number, 6)
        events = self.store.search_events(self.search_id).events
        reached = [(event.trial, event.rung) for event in events if event.what is What.REACHED]
        assert len(reached) == len(set(reached))
        assert until(lambda: not self.processes())


def test_a_deferred_search_ends_with_its_best_model(site: Site) -> None:
    run = Searching(site, 0.1)
    link = site.xcom("hills", run.run_id, "search", "muster_search")  # while it goes on
    assert link == f"/plugin/muster/muster/#/searches/{run.search_id}"
    run.ends_well()
    store = run.store
    (version,) = store.resolve("hills/model@latest")
    assert store.record(version.address).metrics["height"] > 0.5
    assert not store.held(), "what stopped trials left is deleted"
    assert not list((site.home / "store" / "leases").glob("hills-*")), "its inputs are given back"
    log = site.task_log("hills", run.run_id, "search")
    assert "the triggerer drives it" in log
    assert "trial 0 begins, to 1" in log
    listed = json.loads(site.muster("runs", "show", f"hills/{run.run_id}", "--json").stdout)
    (stage,) = [each for each in listed["stages"] if each["task_id"] == "search"]
    assert stage["versions"]["model"] == [version.address]
    assert "by trial" in stage["line"]
    assert stage["jobs"] == []


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(number, marks=pytest.mark.soak) for number in range(1, 10))]
)
def test_a_triggerer_that_is_killed_loses_nothing(site: Site, number: int) -> None:
    run = Searching(site, 0.3)
    assert until(lambda: len(run.state.trials) > number % 5)  # each time at another moment
    os.kill(site.component("triggerer") or 0, signal.SIGKILL)
    run.ends_well()


def test_a_search_that_is_marked_failed_stops_its_trials_and_goes_on_when_it_is_cleared(site: Site) -> None:
    run = Searching(site, 0.5)
    assert until(lambda: any(trial.values for trial in run.state.trials))
    site.mark("hills", run.run_id, "search", "failed")
    assert site.wait("hills", run.run_id) == "failed"
    assert until(lambda: not run.processes(), seconds=20)
    before = len(run.state.trials)
    site.clear("hills", run.run_id, "search", "gate")
    run.ends_well()
    assert before >= 2
    first = run.state.trials[0]
    begun = [run.store.ledger.read(job)[0].decode().partition("from ")[2][:1] for job in first.jobs]
    assert begun[0] == "0"
    assert "0" not in begun[1:], "it goes on from its checkpoint"


def test_a_search_that_is_cancelled_fails_its_task(site: Site, tmp_path: Path) -> None:
    run = Searching(site, 0.5)
    said = site.muster("search", "cancel", run.search_id)
    assert "cancelled" in said.stdout
    assert site.wait("hills", run.run_id) == "failed"
    assert until(lambda: not run.processes(), seconds=20)
    shown = site.muster("runs", "show", f"hills/{run.run_id}").stdout
    assert "cancelled it with `muster search cancel`" in shown
