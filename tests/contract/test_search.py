"""A search on real processes: what its driver starts, pauses and takes up again, and what a kill of it loses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests import searched
from tests.cluster import cluster, left, queues, store
from tests.cluster.backend import SITE, connected
from tests.cluster.layout import Layout
from tests.contract.forked import forked
from tests.contract.named import Named
from tests.contract.one_machine import one_machine
from tests.waiting import GUARD_SECONDS, eventually

from muster.backends.base import Backend
from muster.backends.local.places import Places
from muster.core.cancelling import by_command
from muster.core.data import OutputTarget
from muster.core.errors import SpecError
from muster.core.job import JobSpec, Role
from muster.core.origin import Origin
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.core.status import JobState
from muster.ext.search.driver import SearchDriver, look_up
from muster.ext.search.results import earlier_of, write_results
from muster.ext.search.space import choice, uniform
from muster.ext.search.spec import Event, EventKind, Sampler, Search, SearchSpec
from muster.ext.search.state import Phase
from muster.ext.search.stored import begin_search
from muster.images.folders import find_image, image_folders, put_image

# Trains to `epochs` from its checkpoint; the nearer `rate` is to 0.6 the better it is, and more so with each epoch.
TRIAL = """
import sys, time
from pathlib import Path
rate, epochs, saved, model = float(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]) / "epoch", Path(sys.argv[4])
epoch = int(saved.read_text()) if saved.exists() else 0
print("from", epoch, flush=True)
while epoch < epochs:
    epoch += 1
    BEFORE
    saved.with_suffix(".part").write_text(str(epoch))
    saved.with_suffix(".part").replace(saved)
    print(f"muster: epoch={epoch}/9 auc={(1 - abs(rate - 0.6)) * (1 - 0.5 / epoch):.6f}", flush=True)
    PAUSE
(model / "rate").write_text(str(rate))
"""
SPEC = SearchSpec(
    space={"rate": uniform(0, 1)}, metric="auc", trials=9, rungs=(1, 3, 9), until="epochs", seed=1
)


Begin = Callable[..., str]
QUEUE = "search"
T = TypeVar("T")


class SearchContract(Named):
    """Inherit it and give a `backend` with room for two trials at once.

    :cvar pace: how much longer everything may take than on one machine.
    :cvar trial: what a trial asks for.
    :cvar whole: what a job asks for beside which no trial has room.

    What is marked nightly_on("cluster") takes a minute there, and is left out where it has to be quick.
    """

    pace = 1.0
    trial = Resources(memory_gib=0.5)
    whole = Resources(memory_gib=1)

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Iterator[Backend]:
        raise NotImplementedError

    @pytest.fixture
    def begin(self, backend: Backend, tmp_path: Path) -> Begin:
        """Begins a search; returns its id."""
        image = put_image(
            backend.store, find_image("python", image_folders(Settings(home=tmp_path, cache=tmp_path)))
        )

        def start(
            spec: SearchSpec = SPEC, *, before: str = "pass", pause: str = "pass", **changes: Any
        ) -> str:
            code = TRIAL.replace("BEFORE", before).replace("PAUSE", pause)
            places = ("{params.rate}", "{params.epochs}", "{checkpoints}", "{outputs.model}")
            trial = JobSpec(
                name=f"test.search-{self.unique}",
                image="python",
                image_digest=image,
                roles=(Role(command=("python", "-c", code, *places), resources=self.trial),),
                params={**dict.fromkeys(spec.space, 0), "epochs": 9},
                outputs={"model": OutputTarget(volume=f"a/model-{self.unique}")},
                priority="low",
                origin=Origin(instance="one", dag_id="test", run_id="run-1", task_id="search"),
                **changes,
            )
            search_id = f"s-{self.unique}"
            begin_search(backend.store, search_id, Search(spec=spec, trial=trial, began=time.time()))
            return search_id

        return start

    def wait(self, condition: Callable[[], T]) -> T:
        return eventually(condition, seconds=GUARD_SECONDS * self.pace)

    def drive(self, driver: SearchDriver) -> Event:
        return self.wait(driver.step)

    def jobs(self, backend: Backend) -> list[str]:
        return [job for job in backend.store.ledger.jobs() if self.unique in job]

    def train_a_while(self, driver: SearchDriver, backend: Backend) -> None:
        """Drive until a trial has trained two epochs."""
        self.wait(
            lambda: (driver.step(), any("epoch=2/" in _log(backend, job) for job in _running(driver)))[1]
        )

    @pytest.mark.nightly_on("cluster")
    def test_the_best_trial_trains_to_the_end_and_the_others_stop_early(
        self, backend: Backend, begin: Begin
    ) -> None:
        said: list[str] = []
        driver = SearchDriver(backend, begin(pause="time.sleep(0.2)"), say=said.append)
        ended = self.drive(driver)
        best = min(driver.state.trials, key=lambda trial: abs(trial.params["rate"] - 0.6))
        assert (ended.trial, ended.reason) == (best.number, "")
        assert len(driver.state.trials) == 9
        assert best.phase is Phase.ENDED
        status = backend.status(best.jobs[-1])
        assert status.result is not None
        (model,) = status.result.outputs["model"]
        assert float((backend.store.path(model) / "rate").read_text()) == best.params["rate"]
        assert sum(trial.phase is Phase.PAUSED for trial in driver.state.trials) >= 4
        assert backend.store.record(model).origin.trial == best.number
        assert any(f"trial {best.number} ended with auc=" in line for line in said), said

    @pytest.mark.nightly  # airflow/test_deferral.py has a search that goes on
    def test_a_trial_goes_on_from_its_checkpoint_when_it_is_taken_up_again(
        self, backend: Backend, begin: Begin
    ) -> None:
        driver = SearchDriver(backend, begin(replace(SPEC, at_once=1), pause="time.sleep(0.3)"))
        self.drive(driver)
        again = [trial for trial in driver.state.trials if len(trial.jobs) > 1]
        assert again, "with one place each trial waits for the others"
        for trial in again:
            reached = [int(starts(backend, job)[0]) for job in trial.jobs]
            assert reached[0] == 0
            assert all(later >= 1 for later in reached[1:]), "it does not begin anew"
        follows = backend.store.ledger.spec(again[0].jobs[1]).follows
        assert follows == again[0].jobs[0]

    @pytest.mark.nightly_on("cluster")
    def test_a_driver_that_is_killed_after_any_event_is_replaced_and_nothing_is_done_twice(
        self, backend: Backend, begin: Begin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Killed(Exception):
            """Ends a driver behind a write."""

        search_id, kills = begin(pause="time.sleep(0.1)"), 0
        tell = backend.store.append_events

        def tell_and_die(*given: Any, **named: Any) -> int:
            tell(*given, **named)
            raise Killed

        ended = None
        while ended is None:
            driver = SearchDriver(backend, search_id)
            monkeypatch.setattr(backend.store, "append_events", tell_and_die)
            try:
                ended = self.drive(driver)
            except Killed:
                kills += 1
        events = searched.events(backend.store, search_id)
        # However busy the machine is, only rungs of one trial are written at once: each trial was asked for, started, reached
        # a rung and left its job, each by a write of its own, and the end is the last.
        assert 4 * len(driver.state.trials) + 1 <= kills <= len(events)
        told = [(event.trial, event.rung) for event in events if event.what is EventKind.REACHED]
        assert len(told) == len(set(told)), "a rung counts once"
        started = [event.job_id for event in events if event.what is EventKind.STARTED]
        assert sorted(started) == sorted(set(self.jobs(backend)))
        best = min(driver.state.trials, key=lambda trial: abs(trial.params["rate"] - 0.6))
        assert ended.trial == best.number

    @pytest.mark.nightly_on("cluster")
    def test_a_paused_search_has_no_job_and_goes_on(self, backend: Backend, begin: Begin) -> None:
        stays = "if epoch == 3 and not Path(sys.argv[3], 'k').exists(): Path(sys.argv[3], 'k').touch(); time.sleep(600)"
        search_id = begin(replace(SPEC, trials=1, rungs=(9,)), before=stays)
        driver = SearchDriver(backend, search_id)
        self.train_a_while(driver, backend)
        driver.pause()
        assert all(status.state.ended for status in backend.statuses(self.jobs(backend)).values())
        said: list[str] = []
        later = SearchDriver(backend, search_id, say=said.append)
        assert self.drive(later).trial >= 0
        assert not any("never told" in line for line in said), said
        (trial,) = later.state.trials
        assert [int(epoch) >= 2 for epoch in starts(backend, trial.jobs[-1])] == [True], (
            "it goes on from its checkpoint"
        )

    def test_a_gang_that_waits_gets_the_places_of_trials_and_no_trial_is_lost(
        self, backend: Backend, begin: Begin, record_property: Callable[[str, object], None]
    ) -> None:
        driver = SearchDriver(backend, begin(replace(SPEC, trials=3, rungs=(9,)), pause="time.sleep(0.2)"))
        self.train_a_while(driver, backend)
        spec = backend.store.ledger.spec(driver.state.trials[0].jobs[0])
        gang = replace(
            spec,
            roles=(Role(command=("python", "-c", "print('gang')"), resources=self.whole),),
            outputs={},
            params={},
            priority="normal",
            origin=Origin(),
        )
        job_id, trained = f"gang-{self.unique}", _running(driver)
        submitted, seen = time.monotonic(), dict[str, float]()

        def look() -> JobState:
            gang, *trials = backend.statuses([job_id, *trained]).values()
            found = [f"the gang: {gang.state.value}"]
            found += ["a trial stops"] * any(each.state is not JobState.RUNNING for each in trials)
            for each in found:
                seen.setdefault(each, time.monotonic() - submitted)
            return gang.state

        backend.submit(gang, job_id=job_id)
        self.wait(lambda: look() is JobState.SUCCEEDED)
        assert self.drive(driver).trial >= 0
        record_property(
            "a gang of all cards in the middle of a search",
            ", ".join(f"{what} after {seconds:.1f} s" for what, seconds in seen.items())
            + f"; the search ends after {time.monotonic() - submitted:.1f} s; jobs of its trials: {jobs_of(backend, driver)}",
        )
        assert all(trial.phase is Phase.ENDED and trial.failures == 0 for trial in driver.state.trials)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.slow
class TestSearchOnThisMachine(SearchContract):
    @pytest.fixture
    def backend(self, tmp_path: Path, cache: Path) -> Iterator[Backend]:
        yield from one_machine(Places(tmp_path / "home"), cache, memory_gib=1)

    @pytest.mark.nightly
    def test_two_drivers_at_once_make_one_search(self, backend: Backend, begin: Begin) -> None:
        search_id = begin(pause="time.sleep(0.1)")
        one, other = SearchDriver(backend, search_id), SearchDriver(backend, search_id)
        self.wait(lambda: all([one.step(), other.step()]))
        _, state = look_up(backend.store, search_id)
        jobs = [job for trial in state.trials for job in trial.jobs]
        assert sorted(jobs) == sorted(self.jobs(backend))
        assert len(state.trials) == 9

    def test_trials_that_always_fail_end_the_search_with_their_reason(
        self, backend: Backend, begin: Begin
    ) -> None:
        driver = SearchDriver(backend, begin(before="raise SystemExit('no such column: fare')"))
        ended = self.drive(driver)
        assert ended.trial == -1
        assert "trials failed" in ended.reason
        assert "no such column: fare" in ended.reason
        assert '"rate"' in ended.reason
        assert len(self.jobs(backend)) <= 7, "an error of the code is not tried again"

    def test_a_rank_that_is_killed_costs_the_trial_nothing(self, backend: Backend, begin: Begin) -> None:
        kill = "if epoch == 2 and not Path(sys.argv[3], 'k').exists(): Path(sys.argv[3], 'k').touch(); import os; os.kill(os.getpid(), 9)"
        driver = SearchDriver(
            backend, begin(replace(SPEC, trials=2, rungs=(9,), retries=0), before=kill, max_restarts=1)
        )
        assert self.drive(driver).trial >= 0
        assert all(trial.failures == 0 for trial in driver.state.trials)

    def test_a_trial_that_a_person_cancels_is_dropped(self, backend: Backend, begin: Begin) -> None:
        driver = SearchDriver(backend, begin(replace(SPEC, trials=3, rungs=(9,)), pause="time.sleep(0.05)"))
        self.wait(lambda: (driver.step(), 0 in driver.state.running)[1])
        backend.cancel(driver.state.trials[0].jobs[0], why=by_command("ana"))
        assert self.drive(driver).trial > 0
        assert driver.state.trials[0].phase is Phase.FAILED
        assert "ana cancelled it" in driver.state.trials[0].reason

    def test_a_closed_search_ends_its_jobs(self, backend: Backend, begin: Begin) -> None:
        driver = SearchDriver(backend, begin(replace(SPEC, rungs=(9,)), before="time.sleep(600)"))
        self.wait(lambda: (driver.step(), len(driver.state.running) >= 2)[1])
        SearchDriver(backend, driver.search_id).close("ana cancelled it")
        ended = self.drive(driver)
        assert (ended.trial, ended.reason) == (-1, "ana cancelled it")
        assert set(jobs_of(backend, driver)) == {"cancelled"}

    def test_a_search_that_is_closed_before_a_job_was_submitted_submits_none(
        self, backend: Backend, begin: Begin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Killed(Exception):
            """Ends a driver before it submits."""

        def dies(*_: Any, **__: Any) -> None:
            raise Killed

        search_id = begin()
        with monkeypatch.context() as patched:
            patched.setattr(backend, "submit", dies)
            with pytest.raises(Killed):
                SearchDriver(backend, search_id).step()
        paused = SearchDriver(backend, search_id)
        paused.pause()
        assert paused.cancel("ana cancelled it")
        ended = self.drive(SearchDriver(backend, search_id))
        assert (ended.trial, ended.reason) == (-1, "ana cancelled it")
        assert self.jobs(backend) == []

    def test_the_results_of_a_search_are_where_a_later_one_begins(
        self, backend: Backend, begin: Begin, tmp_path: Path
    ) -> None:
        driver = SearchDriver(backend, begin(replace(SPEC, trials=4)))
        self.drive(driver)
        results = tmp_path / "results"
        results.mkdir()
        write_results(results, driver.search, driver.state, backend.store.ledger)
        version = backend.store.add("a/search", results)
        later = replace(SPEC, sampler=Sampler.TPE, earlier=(version.address,))
        assert sorted(value for _, value in earlier_of(backend.store, later)) == sorted(
            trial.value for trial in driver.state.trials
        )
        curves = (results / "curves.csv").read_text().splitlines()
        assert len(curves) > 4
        other = backend.store.add("a/other", Path(__file__))
        with pytest.raises(SpecError, match="holds no results of a search"):
            earlier_of(backend.store, replace(later, earlier=(other.address,)))

    def test_a_metric_that_is_never_told_fails_the_search(self, backend: Backend, begin: Begin) -> None:
        said: list[str] = []
        space = {"rate": uniform(0, 1), "how": choice("a", "b")}
        driver = SearchDriver(
            backend, begin(replace(SPEC, space=space, metric="f1"), pause="pass"), say=said.append
        )
        ended = self.drive(driver)
        assert ended.trial == -1
        assert "never told f1" in ended.reason
        assert any("it told epoch, auc" in line for line in said), said


@pytest.mark.slow
@pytest.mark.nightly
class TestSearchOnForks(SearchContract):
    """The small complete place, ``tests/contract/forked.py``."""

    @pytest.fixture
    def backend(self, tmp_path: Path, cache: Path) -> Iterator[Backend]:
        yield from forked(tmp_path / "home", cache, memory_gib=1)


@pytest.mark.cluster
class TestSearchOnCluster(SearchContract):
    pace = 4.0
    trial = Resources(memory_gib=1.5)
    whole = Resources(memory_gib=4)

    @pytest.fixture
    def backend(self, here: Layout, tmp_path: Path) -> Iterator[Backend]:
        with closing(connected(here, tmp_path, site=replace(SITE, queue=QUEUE))) as backend:
            yield backend
            for job_id in self.jobs(backend):
                backend.cancel(job_id, wait=False)
            self.wait(lambda: all(each.state.ended for each in backend.statuses(self.jobs(backend)).values()))

    @pytest.mark.soak
    @pytest.mark.parametrize("name", ["store", "API server"])
    def test_ten_kills_of_what_it_rests_on_change_nothing(
        self,
        backend: Backend,
        begin: Begin,
        here: Layout,
        name: str,
        record_property: Callable[[str, object], None],
    ) -> None:
        kill = {
            "store": lambda: store.kill(here),
            "API server": lambda: cluster.restart(here, "kube-apiserver"),
        }[name]
        driver = SearchDriver(backend, begin(replace(SPEC, trials=18), pause="time.sleep(0.5)"))
        kills = 0

        def step() -> Event | None:
            nonlocal kills
            ended = driver.step()
            if kills < 10 and len(driver.state.trials) > kills:
                kill()
                kills += 1
            return ended

        ended = self.wait(step)
        best = min(driver.state.trials, key=lambda trial: abs(trial.params["rate"] - 0.6))
        told = [
            (event.trial, event.rung)
            for event in searched.events(backend.store, driver.search_id)
            if event.what is EventKind.REACHED
        ]
        record_property(
            "a search whose store or API server is killed again and again",
            f"{name}: {kills} kills, {len(driver.state.trials)} trials, {len(told)} rungs, best {ended}",
        )
        assert kills == 10
        assert ended.trial == best.number
        assert len(told) == len(set(told)), "a rung counts once"
        assert all(trial.failures == 0 for trial in driver.state.trials)
        backend.sweep()  # of what ended while its store or API server was away
        self.wait(lambda: not left.objects(here, self.jobs(backend)))


@pytest.fixture(scope="module")
def here() -> Iterator[Layout]:
    """A cluster with the store service, and with a queue in which two trials have room."""
    with queues.with_room(QUEUE, memory_gib=4) as of:
        yield of


def jobs_of(backend: Backend, driver: SearchDriver) -> dict[str, int]:
    """How many jobs of a search ended in each state."""
    found: dict[str, int] = {}
    for status in backend.statuses([job for trial in driver.state.trials for job in trial.jobs]).values():
        found[status.state.value] = found.get(status.state.value, 0) + 1
    return found


def starts(backend: Backend, job_id: str) -> Sequence[str]:
    """The epoch from which each start of a job went on."""
    lines = backend.store.ledger.read(job_id)[0].decode().splitlines()
    return [line.split()[-1] for line in lines if line.startswith("[rank 0] from")]


def _running(driver: SearchDriver) -> list[str]:
    return [driver.state.trials[number].jobs[-1] for number in driver.state.running]


def _log(backend: Backend, job_id: str) -> str:
    return backend.store.ledger.read(job_id)[0].decode()
