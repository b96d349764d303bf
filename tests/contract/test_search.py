"""A search on real processes: what its driver starts, pauses and takes up again, and what a kill of it loses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.contract.one_machine import one_machine
from tests.waiting import eventually

from muster.backends.base import Backend
from muster.backends.local.backend import LocalBackend
from muster.backends.local.places import Places
from muster.backends.search.driver import Driver, Ended, look_up
from muster.backends.search.results import earlier_of, write_results
from muster.backends.search.state import Phase
from muster.core.cancelling import by_command
from muster.core.errors import SpecError
from muster.core.job import JobSpec, Origin, Output, Role
from muster.core.resources import Resources
from muster.core.search import Sampler, Search, SearchSpec, What
from muster.core.settings import Settings
from muster.core.space import choice, uniform
from muster.core.status import JobState
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


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "home")


@pytest.fixture
def backend(places: Places, cache: Path) -> Iterator[LocalBackend]:
    yield from one_machine(places, cache, memory_gib=1)


Begin = Callable[..., str]


@pytest.fixture
def begin(backend: Backend, tmp_path: Path, cache: Path) -> Begin:
    """Begins a search whose trials need half a GiB each; returns its id."""
    image = put_image(
        backend.store, find_image("python", image_folders(Settings(home=tmp_path, cache=cache)))
    )

    def start(spec: SearchSpec = SPEC, *, before: str = "pass", pause: str = "pass", **changes: Any) -> str:
        code = TRIAL.replace("BEFORE", before).replace("PAUSE", pause)
        places = ("{params.rate}", "{params.epochs}", "{checkpoints}", "{outputs.model}")
        trial = JobSpec(
            name="test.search",
            image="python",
            image_digest=image,
            roles=(Role(command=("python", "-c", code, *places), resources=Resources(memory_gib=0.5)),),
            params={**dict.fromkeys(spec.space, 0), "epochs": 9},
            outputs={"model": Output(volume="a/model-trials")},
            priority="low",
            origin=Origin(instance="one", dag_id="test", run_id="run-1", task_id="search"),
            **changes,
        )
        backend.store.begin_search("s-1", Search(spec=spec, trial=trial, began=time.time()))
        return "s-1"

    return start


def drive(driver: Driver) -> Ended:
    return eventually(driver.step)


def jobs_of(backend: Backend, driver: Driver) -> dict[str, int]:
    """How many jobs of a search ended in each state."""
    found: dict[str, int] = {}
    for status in backend.statuses([job for trial in driver.state.trials for job in trial.jobs]).values():
        found[status.state.value] = found.get(status.state.value, 0) + 1
    return found


def starts(backend: Backend, job_id: str) -> Sequence[str]:
    """The epoch from which each start of a job went on."""
    lines = backend.store.ledger.read(job_id)[0].decode().splitlines()
    return [line.split()[-1] for line in lines if line.startswith("[rank 0] from")]


@pytest.mark.slow
def test_the_best_trial_trains_to_the_end_and_the_others_stop_early(backend: Backend, begin: Begin) -> None:
    said: list[str] = []
    driver = Driver(backend, begin(pause="time.sleep(0.2)"), say=said.append)
    ended = drive(driver)
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


@pytest.mark.slow
def test_a_trial_goes_on_from_its_checkpoint_when_it_is_taken_up_again(
    backend: Backend, begin: Begin
) -> None:
    driver = Driver(backend, begin(replace(SPEC, at_once=1), pause="time.sleep(0.3)"))
    drive(driver)
    again = [trial for trial in driver.state.trials if len(trial.jobs) > 1]
    assert again, "with one place each trial waits for the others"
    for trial in again:
        reached = [int(starts(backend, job)[0]) for job in trial.jobs]
        assert reached[0] == 0
        assert all(later >= 1 for later in reached[1:]), "it does not begin anew"
    follows = backend.store.ledger.spec(again[0].jobs[1]).follows
    assert follows == again[0].jobs[0]


@pytest.mark.slow
def test_a_driver_that_is_killed_after_any_event_is_replaced_and_nothing_is_done_twice(
    backend: Backend, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        """Ends a driver behind a write."""

    search_id, kills = begin(pause="time.sleep(0.1)"), 0
    tell = backend.store.tell_search

    def tell_and_die(*given: Any, **named: Any) -> int:
        tell(*given, **named)
        raise Killed

    ended = None
    while ended is None:
        driver = Driver(backend, search_id)
        monkeypatch.setattr(backend.store, "tell_search", tell_and_die)
        try:
            ended = drive(driver)
        except Killed:
            kills += 1
    events = backend.store.search_events(search_id).events
    assert kills == len(events) > 30
    told = [(event.trial, event.rung) for event in events if event.what is What.REACHED]
    assert len(told) == len(set(told)), "a rung counts once"
    started = [event.job_id for event in events if event.what is What.STARTED]
    assert sorted(started) == sorted(set(backend.store.ledger.jobs()))
    best = min(driver.state.trials, key=lambda trial: abs(trial.params["rate"] - 0.6))
    assert ended.trial == best.number


@pytest.mark.slow
def test_two_drivers_at_once_make_one_search(backend: Backend, begin: Begin) -> None:
    search_id = begin(pause="time.sleep(0.1)")
    one, other = Driver(backend, search_id), Driver(backend, search_id)
    eventually(lambda: all([one.step(), other.step()]))
    _, state = look_up(backend.store, search_id)
    jobs = [job for trial in state.trials for job in trial.jobs]
    assert sorted(jobs) == sorted(backend.store.ledger.jobs())
    assert len(state.trials) == 9


@pytest.mark.slow
def test_trials_that_always_fail_end_the_search_with_their_reason(backend: Backend, begin: Begin) -> None:
    driver = Driver(backend, begin(before="raise SystemExit('no such column: fare')"))
    ended = drive(driver)
    assert ended.trial == -1
    assert "trials failed" in ended.reason
    assert "no such column: fare" in ended.reason
    assert '"rate"' in ended.reason
    assert len(backend.store.ledger.jobs()) <= 7, "an error of the code is not tried again"


def test_a_rank_that_is_killed_costs_the_trial_nothing(backend: Backend, begin: Begin) -> None:
    kill = "if epoch == 2 and not Path(sys.argv[3], 'k').exists(): Path(sys.argv[3], 'k').touch(); import os; os.kill(os.getpid(), 9)"
    driver = Driver(
        backend, begin(replace(SPEC, trials=2, rungs=(9,), retries=0), before=kill, max_restarts=1)
    )
    assert drive(driver).trial >= 0
    assert all(trial.failures == 0 for trial in driver.state.trials)


def test_a_trial_that_a_person_cancels_is_dropped(backend: Backend, begin: Begin) -> None:
    driver = Driver(backend, begin(replace(SPEC, trials=3, rungs=(9,)), pause="time.sleep(0.05)"))
    eventually(lambda: (driver.step(), 0 in driver.state.running)[1])
    backend.cancel(driver.state.trials[0].jobs[0], why=by_command("ana"))
    assert drive(driver).trial > 0
    assert driver.state.trials[0].phase is Phase.FAILED
    assert "ana cancelled it" in driver.state.trials[0].reason


def test_a_closed_search_ends_its_jobs(backend: Backend, begin: Begin) -> None:
    driver = Driver(backend, begin(replace(SPEC, rungs=(9,)), before="time.sleep(600)"))
    eventually(lambda: (driver.step(), len(driver.state.running) >= 2)[1])
    Driver(backend, "s-1").close("ana cancelled it")
    assert drive(driver) == Ended(trial=-1, reason="ana cancelled it")
    assert set(jobs_of(backend, driver)) == {"cancelled"}


def test_a_search_that_is_closed_before_a_job_was_submitted_submits_none(
    backend: Backend, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        """Ends a driver before it submits."""

    def dies(*_: Any, **__: Any) -> None:
        raise Killed

    search_id = begin()
    with monkeypatch.context() as patched:
        patched.setattr(backend, "submit", dies)
        with pytest.raises(Killed):
            Driver(backend, search_id).step()
    paused = Driver(backend, search_id)
    paused.pause()
    assert paused.cancel("ana cancelled it")
    assert drive(Driver(backend, search_id)) == Ended(trial=-1, reason="ana cancelled it")
    assert backend.store.ledger.jobs() == []


def test_a_paused_search_has_no_job_and_goes_on(backend: Backend, begin: Begin) -> None:
    search_id = begin(replace(SPEC, trials=1, rungs=(9,)), pause="time.sleep(0.1)")
    driver = Driver(backend, search_id)
    _train_a_while(driver, backend)
    driver.pause()
    assert all(status.state.ended for status in backend.statuses(backend.store.ledger.jobs()).values())
    said: list[str] = []
    later = Driver(backend, search_id, say=said.append)
    assert drive(later).trial >= 0
    assert not any("never told" in line for line in said), said
    (trial,) = later.state.trials
    assert [int(epoch) >= 2 for epoch in starts(backend, trial.jobs[-1])] == [True], (
        "it goes on from its checkpoint"
    )


@pytest.mark.slow
def test_a_gang_that_waits_gets_the_places_of_trials_and_no_trial_is_lost(
    backend: Backend, begin: Begin
) -> None:
    driver = Driver(backend, begin(replace(SPEC, trials=3, rungs=(9,)), pause="time.sleep(0.2)"))
    _train_a_while(driver, backend)
    spec = backend.store.ledger.spec(driver.state.trials[0].jobs[0])
    gang = replace(
        spec,
        roles=(Role(command=("python", "-c", "print('gang')"), resources=Resources(memory_gib=1)),),
        outputs={},
        params={},
        priority="normal",
        origin=Origin(),
    )
    backend.submit(gang, job_id="gang")
    eventually(lambda: backend.status("gang").state is JobState.SUCCEEDED)
    assert drive(driver).trial >= 0
    assert all(trial.phase is Phase.ENDED and trial.failures == 0 for trial in driver.state.trials)


@pytest.mark.slow
def test_the_results_of_a_search_are_where_a_later_one_begins(
    backend: Backend, begin: Begin, tmp_path: Path
) -> None:
    driver = Driver(backend, begin(replace(SPEC, trials=4)))
    drive(driver)
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


@pytest.mark.slow
def test_a_metric_that_is_never_told_fails_the_search(backend: Backend, begin: Begin) -> None:
    said: list[str] = []
    space = {"rate": uniform(0, 1), "how": choice("a", "b")}
    driver = Driver(backend, begin(replace(SPEC, space=space, metric="f1"), pause="pass"), say=said.append)
    ended = drive(driver)
    assert ended.trial == -1
    assert "never told f1" in ended.reason
    assert any("it told epoch, auc" in line for line in said), said


def _train_a_while(driver: Driver, backend: Backend) -> None:
    """Drive until a trial has trained two epochs."""
    eventually(lambda: (driver.step(), any("epoch=2/" in _log(backend, job) for job in _running(driver)))[1])


def _running(driver: Driver) -> list[str]:
    return [driver.state.trials[number].jobs[-1] for number in driver.state.running]


def _log(backend: Backend, job_id: str) -> str:
    return backend.store.ledger.read(job_id)[0].decode()
