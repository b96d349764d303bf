"""A Dag that searches, and a run of it whose task is deferred while its search goes on."""

from __future__ import annotations

import json

from tests import searched
from tests.site import Site
from tests.waiting import until

from muster.backends.local.places import Places
from muster.backends.local.processes import marked
from muster.ext.search.driver import look_up
from muster.ext.search.spec import EventKind
from muster.ext.search.state import SearchState
from muster.volumes.folder import FolderStore

HILLS = """
    import os
    from datetime import datetime

    from airflow.sdk import dag

    from muster.airflow import GateOperator, Resources, SearchOperator, uniform

    os.environ["AIRFLOW__MUSTER__INLINE_WAIT"] = "1"

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


class Searching:
    """One run of the Dag, whose task is deferred while its search goes on."""

    def __init__(self, site: Site, seconds: float) -> None:
        self.site, self.store = site, FolderStore(site.home / "store")
        before = set(self.store.logs("searches"))
        self.run_id = site.trigger("hills", {"seconds": seconds})
        site.wait_task("hills", self.run_id, "search", ("deferred", "success"))
        (self.search_id,) = set(self.store.logs("searches")) - before

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
        events = searched.events(self.store, self.search_id)
        reached = [(event.trial, event.rung) for event in events if event.what is EventKind.REACHED]
        assert len(reached) == len(set(reached))
        assert until(lambda: not self.processes())
