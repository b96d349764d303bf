"""What the page knows of searches: how much it reads, what it sends of ten thousand trials, and of trials that lack things."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.searched import SPEC, begin, event, failed, of, running, search_of, tell

from muster.core import wire
from muster.core.errors import Corrupt, NotFound, SpecError
from muster.core.series import Curve, Series
from muster.ext.search import trials
from muster.ext.search.overview import SearchOverview
from muster.ext.search.routes import MOST_KNOWN, KnownSearches, TrialCurves
from muster.ext.search.space import choice
from muster.ext.search.spec import Event, EventKind, SearchSpec
from muster.ext.search.trials import LONGEST, MOST_CURVES, MOST_DRAWN
from muster.volumes.base import LogPage
from muster.volumes.folder import FolderStore

MANY = of(trials=10_000, rungs=(1, 3, 9, 27))
PARAMS = {"rate": 0.01, "optimizer": "adam"}


class Counting:
    """A store that counts what is asked of it, and how many events it sends."""

    def __init__(self, store: FolderStore) -> None:
        self._store, self.asked, self.events = store, Counter[str](), 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(*given: Any, **named: Any) -> Any:
            self.asked[name] += 1
            found = getattr(self._store, name)(*given, **named)
            self.events += len(found.events) if name == "log_events" else 0
            return found

        return ask


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def overview(store: FolderStore, search_id: str) -> SearchOverview:
    return KnownSearches(store).of(search_id).overview


class Told:
    """A store of one search, whose events are in memory; it counts those that it sends."""

    def __init__(self, spec: SearchSpec, events: Sequence[Event]) -> None:
        self._search, self._events, self.sent = search_of(spec), events, 0

    def log_head(self, kind: str, name: str) -> str:
        return wire.dumps(self._search)

    def log_events(self, kind: str, name: str, *, after: int = 0) -> LogPage:
        some = tuple(map(wire.written, self._events[after : after + 5000]))
        self.sent += len(some)
        return LogPage(events=some, end=after + len(some))


def ten_thousand() -> list[Event]:
    """Trials of which every third reaches the next rung, 60 run, and one told NaN."""
    found = []
    for n in range(10_000):
        params = {"rate": 0.01 + n / 1e6, "optimizer": "sgd", "momentum": n / 1e4}
        found += running(params, trial=n)
        rungs = 4 if n % 27 == 0 else 3 if n % 9 == 0 else 2 if n % 3 == 0 else 1
        values = [None if n == 5 else (n * 7919 % 10_007) / 1e4 + rung for rung in range(rungs)]
        found += [event(EventKind.REACHED, n, rung=rung, value=value) for rung, value in enumerate(values)]
        if n < 9_940:
            over = EventKind.ENDED if rungs == 4 else EventKind.PAUSED
            found.append(event(over, n, rung=rungs - 1, value=values[-1]))
    return found


def test_of_ten_thousand_trials_each_event_is_read_once_and_few_trials_are_sent() -> None:
    """So the first look costs what the events do, and each later one what is new."""
    events = ten_thousand()
    store = Told(MANY, events)
    searches = KnownSearches(store)  # type: ignore[arg-type]
    first = searches.of("many-1")
    assert (len(first.overview.trials), store.sent) == (10_000, len(events))
    again = searches.of("many-1")
    assert store.sent == len(events)
    assert again.overview.trials is first.overview.trials  # nothing was reckoned again
    assert again.importance is first.importance
    rows, counts = trials.page(again.overview, offset=9_950, limit=50)
    assert (len(rows), counts["total"]) == (50, 10_000)
    points = trials.points(again.overview, MANY.space, list(MANY.space))
    assert (len(points["trials"]), points["of"]) == (MOST_DRAWN, 10_000)
    assert sum(each[1] == "running" for each in points["trials"]) >= 60  # all that run
    ledger = Ledger({})
    curves = TrialCurves(ledger).of(again.overview, told=True)  # type: ignore[arg-type]
    assert (curves["chosen"], curves["of"]) == (MOST_CURVES, 10_000)
    assert curves["curves"][0]["trial"] == again.overview.best
    assert len(ledger.asked) <= MOST_CURVES  # each has one job
    sent = [points, curves, [trials.row(each) for each in rows]]
    assert len(json.dumps(sent)) < 200_000


def test_of_a_search_that_goes_on_only_the_news_are_read(store: FolderStore) -> None:
    begin(store, "s-1")
    end = tell(store, "s-1", running(PARAMS))
    counting = Counting(store)
    searches = KnownSearches(counting)  # type: ignore[arg-type]
    assert searches.of("s-1").overview.running == 1
    tell(store, "s-1", [event(EventKind.REACHED, 0, rung=0, value=0.5)], after=end)
    assert searches.of("s-1").overview.best == 0
    assert counting.events == 3


def test_a_list_reads_nothing_again_of_searches_that_have_ended(store: FolderStore) -> None:
    for number in range(MOST_KNOWN + 2):
        begin(store, f"s-{number}")
        tell(store, f"s-{number}", [*failed(PARAMS), event(EventKind.CLOSED, reason="it failed")])
    begin(store, "runs-1")
    counting = Counting(store)
    searches = KnownSearches(counting)  # type: ignore[arg-type]
    lines = [searches.brief(head) for head in searches.heads()]
    read = counting.asked["log_events"]
    assert [searches.brief(head) for head in searches.heads()] == lines
    assert counting.asked["log_events"] == read + 1  # the one that runs
    assert counting.asked["log_head"] == MOST_KNOWN + 3
    assert Counter(each["state"] for each in lines) == {"failed": MOST_KNOWN + 2, "running": 1}
    assert {each["best"] for each in lines} == {None}


def test_trials_that_end_after_their_search_are_seen_to_end(store: FolderStore) -> None:
    begin(store, "s-1")
    end = tell(store, "s-1", [*running(PARAMS), event(EventKind.CLOSED, reason="a person cancelled it")])
    searches = KnownSearches(store)
    (head,) = searches.heads()
    assert searches.brief(head)["running"] == 1
    tell(store, "s-1", [event(EventKind.PAUSED, 0)], after=end)
    assert searches.brief(head)["running"] == 0


def test_a_search_that_cannot_be_read_is_listed_with_what_is_wrong(
    store: FolderStore, tmp_path: Path
) -> None:
    for name in ("good-1", "torn-1", "odd-1"):
        begin(store, name)
    (tmp_path / "store" / "searches" / "torn-1" / "search.json").write_text("{")
    tell(store, "odd-1", [event(EventKind.REACHED, 7, rung=0, value=1.0)])
    searches = KnownSearches(store)
    told = {each["search_id"]: each for each in map(searches.brief, searches.heads())}
    assert {name: each["state"] for name, each in told.items()} == {
        "good-1": "running",
        "torn-1": "unreadable",
        "odd-1": "unreadable",
    }
    assert "search torn-1 cannot be read" in told["torn-1"]["error"]
    for _ in range(2):
        with pytest.raises(Corrupt, match="there is no trial 7"):
            searches.of("odd-1")
    with pytest.raises(NotFound, match="no search gone-1"):
        searches.of("gone-1")
    with pytest.raises(SpecError):
        searches.of("../../etc")


def order(found: SearchOverview, **asked: Any) -> list[int]:
    return [each.trial for each in trials.page(found, offset=0, limit=50, **asked)[0]]


@pytest.fixture
def mixed(store: FolderStore) -> SearchOverview:
    """Trials 0 to 4: good, NaN, failed without a value, the best, and one that runs and has told nothing."""
    begin(store, "mixed-1", of(trials=5))
    momentum = {"rate": 0.05, "optimizer": "sgd", "momentum": 0.5}
    tell(
        store,
        "mixed-1",
        [
            *running(PARAMS, trial=0),
            *running(momentum, trial=1),
            *failed({**PARAMS, "rate": 0.02}, trial=2, reason="<b>it raises</b>"),
            *running({**momentum, "momentum": 0.25}, trial=3),
            *running({**PARAMS, "rate": 0.03}, trial=4),
            event(EventKind.REACHED, 0, rung=0, value=0.5),
            event(EventKind.REACHED, 1, rung=0, value=None),
            event(EventKind.REACHED, 3, rung=0, value=0.7),
            event(EventKind.PAUSED, 0, rung=0),
        ],
    )
    return overview(store, "mixed-1")


def test_trials_are_sorted_by_each_column_and_what_has_no_value_is_last(mixed: SearchOverview) -> None:
    assert order(mixed)[:2] == [3, 0]
    assert order(mixed, down=True)[:2] == [0, 3]
    assert order(mixed, sort="trial", down=True) == [4, 3, 2, 1, 0]
    assert order(mixed, sort="param.rate")[:2] == [0, 2]
    assert order(mixed, sort="param.momentum")[:2] == [3, 1]
    assert order(mixed, sort="param.momentum", down=True)[:2] == [1, 3]
    assert order(mixed, phase="running", sort="trial") == [1, 3, 4]
    assert order(mixed, phase="failed") == [2]
    assert trials.page(mixed, offset=50, limit=50)[0] == []
    for wrong in ("params", "param.depth", "param.", "__class__"):
        with pytest.raises(SpecError, match=r"expected one of trial, phase, at, value, param\.rate"):
            order(mixed, sort=wrong)


def test_a_picture_has_a_place_for_a_param_that_a_trial_lacks(mixed: SearchOverview) -> None:
    told = trials.points(mixed, SPEC.space, ["optimizer", "momentum"])
    assert [(axis["name"], axis["low"], axis["high"]) for axis in told["axes"]] == [
        ("optimizer", 0, 1),
        ("momentum", 0, 1),
    ]
    places = {each[0]: (each[2], each[3]) for each in told["trials"]}
    assert places[3] == (0.7, [1, 0.25])
    assert places[2] == (None, [0, None])


def test_choices_of_any_kind_are_sorted_and_long_ones_are_cut(store: FolderStore) -> None:
    odd: list[Any] = ["x" * 5000, None, True, 1.5, {"a": ["<script>"]}, ["y" * 5000]]
    spec = of(space={"kind": choice(*odd)}, trials=6)
    begin(store, "odd-1", spec)
    tell(store, "odd-1", [each for n, value in enumerate(odd) for each in running({"kind": value}, trial=n)])
    found = overview(store, "odd-1")
    assert order(found, sort="param.kind")[0] == 3  # numbers first
    shown = [trials.row(each)["params"]["kind"] for each in found.trials]
    assert max(len(json.dumps(each)) for each in shown) < LONGEST + 20
    assert shown[4] == {"a": ["<script>"]}
    assert {each[3][0] for each in trials.points(found, spec.space, ["kind"])["trials"]} == set(range(6))


@pytest.mark.parametrize("spec", [SPEC, of(trials=1, rungs=(1,))])
def test_a_search_without_a_trial_has_empty_tables(store: FolderStore, spec: SearchSpec) -> None:
    begin(store, "none-1", spec)
    found = overview(store, "none-1")
    assert trials.page(found, offset=0, limit=50) == ([], {"total": 0, "phases": {}})
    assert trials.points(found, spec.space, ["rate"])["trials"] == []
    assert TrialCurves(Ledger({})).of(found, told=True)["curves"] == []  # type: ignore[arg-type]


class Ledger:
    """The series of some jobs, by id, and which were asked for."""

    def __init__(self, series: Mapping[str, Series]) -> None:
        self._series, self.asked = series, list[str]()

    def series(self, job_id: str) -> Series:
        self.asked.append(job_id)
        if job_id not in self._series:
            raise NotFound(job_id)
        return self._series[job_id]


def told(*points: tuple[float, float], source: str = "0") -> Series:
    steps, values = zip(*points, strict=True)
    return Series(numbers=(Curve(name="auc", source=source, steps=steps, values=values, seconds=steps),))


def test_a_curve_joins_a_trials_jobs_and_ended_ones_are_read_once(mixed: SearchOverview) -> None:
    ledger = Ledger(
        {
            "trial-0-1": told((0.5, 0.3), (1, 0.5)),
            "trial-3-1": told((1, 0.7), (2, 0.72)),
            "trial-1-1": Series(),
        }
    )
    curves = TrialCurves(ledger)  # type: ignore[arg-type]
    found = {each["trial"]: each["points"] for each in curves.of(mixed, told=True)["curves"]}
    assert found == {3: [(1, 0.7), (2, 0.72)], 0: [(0.5, 0.3), (1, 0.5)]}
    assert next(iter(found)) == 3  # the best first
    ledger.asked.clear()
    curves.of(mixed, told=True)
    assert sorted(ledger.asked) == ["trial-1-1", "trial-3-1", "trial-4-1"]  # those that run
    ledger.asked.clear()
    rungs = curves.of(mixed, told=False)
    assert [each["points"] for each in rungs["curves"]] == [[(1.0, 0.7)], [(1.0, 0.5)]]
    assert (ledger.asked, rungs["told"]) == ([], False)


def test_a_long_curve_is_thinned_and_keeps_its_end(mixed: SearchOverview) -> None:
    ledger = Ledger({"trial-3-1": told(*((n, float(n)) for n in range(1, 1001)))})
    points = TrialCurves(ledger).of(mixed, told=True)["curves"][0]["points"]  # type: ignore[arg-type]
    assert len(points) <= 201
    assert points[-1] == (1000, 1000.0)
