from __future__ import annotations

import math

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from muster.backends.releases.figures import Figures, added, percentile, read_counts, shown, since
from muster.core.deployment import Counts
from muster.core.errors import BackendError

INF = math.inf


def page(*, model: str = "line", odd: str = "r1") -> str:
    """A metrics page as our server writes it, and other people's series beside."""
    registry = CollectorRegistry()
    requests = Counter("muster_requests", "…", ["model", "revision", "outcome"], registry=registry)
    seconds = Histogram(
        "muster_request_seconds", "…", ["model", "revision"], buckets=(0.1, 1.0), registry=registry
    )
    Counter("muster_requests_elsewhere", "…", ["model"], registry=registry).labels(model).inc(5)
    for outcome, number in (("answered", 6), ("refused", 3), ("failed", 1)):
        requests.labels(model, odd, outcome).inc(number)
    requests.labels("another", odd, "failed").inc(100)
    logged = Counter("muster_logged_requests", "…", ["model", "revision", "outcome"], registry=registry)
    logged.labels(model, odd, "kept").inc(5)
    logged.labels(model, odd, "dropped").inc(22)
    unseen = Counter("muster_unseen_requests", "…", ["model", "revision"], registry=registry)
    unseen.labels(model, odd).inc(2)
    labels = ["model", "revision", "input", "bin", "trained"]
    asked = Counter("muster_input_requests", "…", labels, registry=registry)
    asked.labels(model, odd, "x", "up to 0.5", "70").inc(4)
    asked.labels(model, odd, "x", "above 0.5", "30").inc(2)
    outside = Counter(
        "muster_outside_requests", "…", ["model", "revision", "input", "kind"], registry=registry
    )
    outside.labels(model, odd, "month", "range").inc(2)
    outside.labels(model, odd, "zone", "category")
    for took in (0.05, 0.5, 5.0):
        seconds.labels(model, odd).observe(took)
    return generate_latest(registry).decode()


@pytest.mark.parametrize("odd", ["r1", 'a"b\\c\nd', "ü"])
def test_a_metrics_page_is_read_by_revision(odd: str) -> None:
    assert read_counts(page(odd=odd), name="line") == {
        odd: Counts(
            requests=10,
            failed=1,
            refused=3,
            unseen=2,
            seconds={0.1: 1, 1.0: 2, INF: 3},
            asked={"x": {"up to 0.5": 4, "above 0.5": 2}},
            trained={"x": {"up to 0.5": 70, "above 0.5": 30}},
            outside={"month": 2, "zone": 0},
            dropped=22,
        )
    }
    assert read_counts(page(), name="other") == {}


@pytest.mark.parametrize(
    "text",
    [
        "muster_requests_total{",
        'muster_requests_total{model="line"} 1',
        'muster_requests_total{model="line",revision="r1",outcome="failed"} +Inf',
        'muster_requests_total{model="line",revision="r1",outcome="failed"} NaN',
        "a b c d e",
    ],
)
def test_what_is_no_metrics_page_says_so(text: str) -> None:
    with pytest.raises(BackendError, match="deployment line: its metrics cannot be read"):
        read_counts(text, name="line")


def test_replicas_are_added_up() -> None:
    one = {"r1": Counts(requests=2, failed=1, seconds={1.0: 1, INF: 2})}
    other = {"r1": Counts(requests=3, seconds={1.0: 3, INF: 3}), "r2": Counts(requests=4)}
    assert added([one, other, {}]) == {
        "r1": Counts(requests=5, failed=1, seconds={1.0: 4, INF: 5}),
        "r2": Counts(requests=4),
    }


def test_requests_with_unseen_values_are_added_up() -> None:
    known, unknown = Counts(requests=3, refused=1, unseen=2), Counts(requests=2, refused=1)
    assert added([{"r1": known}, {"r1": unknown}]) == {"r1": Counts(requests=5, refused=2, unseen=2)}
    assert since(Counts(requests=1, unseen=1), known) == Counts(requests=2, refused=1, unseen=1)
    assert since(unknown, known).unseen == 2


def test_requests_by_bin_are_added_up_and_training_rows_are_not() -> None:
    trained = {"x": {"low": 70, "high": 30}}
    one = Counts(requests=3, asked={"x": {"low": 1, "high": 2}}, trained=trained)
    other = Counts(requests=9, asked={"x": {"low": 5, "high": 4}}, trained=trained)
    both = Counts(requests=12, asked={"x": {"low": 6, "high": 6}}, trained=trained)
    assert added([{"r1": one}, {"r1": other}]) == {"r1": both}
    assert since(one, both) == other
    silent = Counts(requests=1)
    assert added([{"r1": silent}, {"r1": one}]) == {
        "r1": Counts(requests=4, asked=one.asked, trained=trained)
    }
    assert since(silent, both).asked == both.asked
    assert added([{"r1": silent}, {"r1": silent}])["r1"].asked is None


def test_values_outside_are_added_up_by_input_and_shown_where_there_were_some() -> None:
    one, other = Counts(requests=3, outside={"month": 2, "zone": 0}), Counts(requests=9, outside={"month": 5})
    (both,) = added([{"r1": one}, {"r1": other}]).values()
    assert both.outside["month"] == 7
    assert Figures.of(both).outside == {"month": 7}
    assert since(one, Counts(requests=4, outside={"month": 3, "zone": 0})).outside == {"month": 1, "zone": 0}


def test_what_was_counted_since() -> None:
    before = Counts(requests=10, failed=2, seconds={1.0: 8, INF: 10})
    now = Counts(requests=15, failed=3, seconds={1.0: 12, INF: 15})
    assert since(before, now) == Counts(requests=5, failed=1, seconds={1.0: 4, INF: 5})
    assert since(None, now) == now
    assert since(now, before) == before  # a replica began anew


@pytest.mark.parametrize(
    ("seconds", "share", "expected"),
    [
        ({}, 0.95, None),
        ({0.1: 0, INF: 0}, 0.95, None),
        ({0.1: 100, INF: 100}, 0.95, 0.095),
        ({0.1: 0, 0.2: 100, INF: 100}, 0.5, 0.15),
        ({0.1: 90, 0.2: 100, INF: 100}, 0.95, 0.15),
        ({0.1: 90, 0.2: 90, 0.4: 100, INF: 100}, 0.95, 0.3),
        ({0.1: 10, INF: 100}, 0.95, 0.1),  # no higher than the last bound
        ({INF: 100}, 0.95, 0.0),
    ],
)
def test_a_percentile_of_buckets(seconds: dict[float, int], share: float, expected: float | None) -> None:
    found = percentile(Counts(seconds=seconds), share)
    assert found == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.000411, "0.411 ms"), (0.012, "12 ms"), (0.9994, "999 ms"), (0.9996, "1.0 s"), (3.0, "3.0 s")],
)
def test_a_time_is_written_as_people_read_it(seconds: float, text: str) -> None:
    assert shown(seconds) == text
