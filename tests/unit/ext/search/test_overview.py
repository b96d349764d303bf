"""How a search stands, as the command and the page say it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.searched import SPEC, begin, event, failed, of, played, running, tell

from muster.core.status import JobState
from muster.ext.search.driver import look_up
from muster.ext.search.overview import SearchOverview, overview, waits
from muster.ext.search.spec import Budget, Event, EventKind, SearchSpec
from muster.volumes.folder import FolderStore

PARAMS = {"rate": 0.01, "optimizer": "adam"}


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def look(store: FolderStore, *events: Event, spec: SearchSpec = SPEC) -> SearchOverview:
    begin(store, "s-1", spec)
    tell(store, "s-1", events)
    return overview("s-1", *look_up(store, "s-1"))


def reached(trial: int, rung: int, value: float | None) -> Event:
    return event(EventKind.REACHED, trial, rung=rung, value=value)


def test_each_rung_says_what_became_of_the_trials_that_reached_it(store: FolderStore) -> None:
    found = look(
        store,
        *(each for trial in range(6) for each in running(PARAMS, trial=trial)),
        *(reached(trial, 0, trial / 10) for trial in range(5)),
        event(EventKind.PAUSED, 0, rung=0),
        event(EventKind.FAILED, 1, reason="it raises", final=True),
        event(EventKind.ENDED, 2, value=0.2),
        reached(4, 1, 0.8),
        reached(4, 2, 0.9),
    )
    told = [(rung.reached, rung.passed, rung.paused, rung.left, rung.best) for rung in found.rungs]
    assert told == [(5, 2, 1, 2, 0.4), (1, 1, 0, 0, 0.8), (1, 0, 0, 0, 0.9)]
    assert (found.best, found.rules) == (4, "asha by random, seed 5")
    assert found.space["momentum"] == 'uniform(0, 1).when(optimizer="sgd")'


def test_the_rungs_of_a_search_that_was_played_add_up(store: FolderStore) -> None:
    played(store, "s-1")
    found = overview("s-1", *look_up(store, "s-1"))
    for rung, beyond in zip(found.rungs, found.rungs[1:], strict=False):
        assert rung.passed == beyond.reached
        assert rung.reached == rung.passed + rung.paused + rung.left
    assert found.rungs[-1].passed == found.rungs[-1].reached
    assert (found.state, found.waits) == (JobState.SUCCEEDED, "")
    assert found.best_row is not None
    assert found.best_row.trial == found.best


def test_a_search_that_runs_says_what_it_waits_for(store: FolderStore) -> None:
    found = look(store)
    assert (found.best_row, found.trials) == (None, ())
    assert found.waits.startswith("no trial runs: its task begins the next one")
    end = tell(store, "s-1", running(PARAMS))
    search, state = look_up(store, "s-1")
    assert waits(search, state) == ""  # new trials are begun as there is room
    tell(store, "s-1", [event(EventKind.FAILED, 0, reason="it raises")], after=end)
    assert waits(*look_up(store, "s-1")).startswith("no trial runs")


def test_a_search_whose_points_were_all_asked_for_waits_for_its_trials(store: FolderStore) -> None:
    assert (
        look(store, *running(PARAMS), spec=of(trials=1)).waits
        == "all points were asked for, and 1 trial runs"
    )


def test_a_search_whose_budget_is_used_up_says_so(store: FolderStore) -> None:
    begin(store, "s-1", of(budget=Budget(seconds=10)))
    tell(store, "s-1", running(PARAMS))
    search, state = look_up(store, "s-1")
    said = "its budget of seconds is used up (11 of 10): 1 trial runs to its next rung"
    assert (waits(search, state, now=5), waits(search, state, now=12)) == ("", said)


def test_a_search_that_failed_waits_for_nothing(store: FolderStore) -> None:
    found = look(store, *failed(PARAMS), event(EventKind.CLOSED, reason="1 of 1 trials failed"))
    assert (found.state, found.waits, found.reason) == (JobState.FAILED, "", "1 of 1 trials failed")
    assert found.trials[0].reason == "it raises"
