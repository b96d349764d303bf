from __future__ import annotations

import math
from dataclasses import replace

import pytest

from muster.backends.releases.judge import broken_by_answers, broken_by_counts, measure, told
from muster.backends.releases.plan import Rules
from muster.core.deployment import Answer, Counts, SmokeRequest

RULES = Rules(max_error_share=0.05, fewest_requests=100)


def counts(requests: int, failed: int = 0, *, took: float = 0.1) -> Counts:
    bounds = (0.05, 0.1, 0.2, 0.5, 1.0, math.inf)
    return Counts(requests=requests, failed=failed, seconds={b: requests * (took <= b) for b in bounds})


@pytest.mark.parametrize(
    ("requests", "failed", "ending", "broken"),
    [
        (0, 0, True, False),
        (3, 1, False, False),  # 97 more good ones would mend it
        (3, 1, True, True),  # but there are none
        (10, 6, False, True),  # nothing would
        (100, 5, False, False),
        (100, 6, False, True),
        (1000, 50, True, False),
        (1000, 51, False, True),
    ],
)
def test_errors_decide_as_soon_as_nothing_can_mend_them(
    requests: int, failed: int, ending: bool, broken: bool
) -> None:
    assert bool(broken_by_counts(RULES, counts(requests, failed), counts(0), ending=ending)) is broken


def test_errors_are_told_with_their_numbers() -> None:
    why = broken_by_counts(RULES, counts(100, 6), counts(0))
    assert why == "6 of 100 requests failed, above the 5.00% that are allowed"


def test_what_is_refused_or_left_proves_nothing() -> None:
    ours = Counts(requests=1000, failed=6, refused=800, left=100)
    assert ours.tried == 100
    assert broken_by_counts(RULES, ours, counts(0)).startswith("6 of 100 requests failed")
    assert told(ours, counts(0)) == "1000 requests, 6 failed, 800 refused, 100 left by their clients"
    refused = replace(counts(1000, took=1.0), refused=950)
    any_share = replace(RULES, max_refused_share=1)
    assert not broken_by_counts(
        any_share, refused, counts(1000, took=0.1)
    )  # 50 are too few to say it is slow


@pytest.mark.parametrize(
    ("ours", "theirs", "broken"),
    [
        (Counts(requests=299, refused=109), Counts(requests=299), True),
        (Counts(requests=299, refused=109), Counts(requests=299, refused=100), False),
        (Counts(requests=299, refused=299), Counts(requests=2000, refused=2000), False),
        (Counts(requests=99, refused=99), Counts(requests=299), False),  # of too few
        (Counts(requests=299, refused=109), Counts(requests=99), False),
    ],
)
def test_a_share_of_refusals_is_judged_beside_the_champions(
    ours: Counts, theirs: Counts, broken: bool
) -> None:
    assert bool(broken_by_counts(RULES, ours, theirs)) is broken
    assert not broken_by_counts(replace(RULES, max_refused_share=1), ours, theirs)


STRICT = Rules(max_refused_share=0.1, max_unseen_share=0.1)


@pytest.mark.parametrize(
    ("ours", "says"),
    [
        (Counts(requests=110, refused=11, unseen=9), ""),
        (
            Counts(requests=100, refused=11, unseen=0),
            "11 of 100 requests were refused, above the 10.00% that are allowed",
        ),
        (
            Counts(requests=100, refused=0, unseen=11),
            "11 of 100 requests hold a value that is no category, above the 10.00% that are allowed",
        ),
        (Counts(requests=3, refused=3, unseen=3), ""),  # of too few
        (
            Counts(requests=6, refused=6, unseen=0),
            "6 of 6 requests were refused",
        ),  # 44 good ones cannot mend it
        (Counts(), ""),
    ],
)
def test_refused_requests_and_unseen_values_are_judged_where_a_rule_says_so(ours: Counts, says: str) -> None:
    found = broken_by_counts(STRICT, ours, Counts())
    assert found.startswith(says)
    assert bool(found) == bool(says)
    assert not broken_by_counts(Rules(), ours, Counts())


def test_the_champions_share_stands_beside_it() -> None:
    ours, theirs = Counts(requests=100, refused=50, unseen=0), Counts(requests=1000, refused=480)
    assert broken_by_counts(STRICT, ours, theirs).endswith("that are allowed; of the champion's 48.00%")
    assert told(ours, theirs) == "100 requests, 0 failed, 50 refused"


@pytest.mark.parametrize(
    ("ours", "theirs", "broken"),
    [
        (counts(100, took=1.0), counts(100, took=0.1), True),
        (counts(99, took=1.0), counts(100, took=0.1), False),  # too few
        (counts(100, took=1.0), counts(99, took=0.1), False),
        (counts(100, took=0.2), counts(100, took=0.1), False),  # twice, and the slack
        (counts(100, took=1.0), counts(100, took=1.0), False),
        (Counts(requests=100), Counts(requests=100), False),
    ],
)
def test_latency_is_judged_beside_the_champions(ours: Counts, theirs: Counts, broken: bool) -> None:
    assert bool(broken_by_counts(RULES, ours, theirs)) is broken
    assert not broken_by_counts(Rules(max_p95_ratio=None), ours, theirs)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"y": (4.0,)}, ""),
        ({"y": (4.0, 5.0)}, "output 'y' is 5.0, expected min 4 and max 4"),
        ({"y": ("four",)}, "output 'y' is 'four', expected a number"),
        ({"y": (math.nan,)}, "output 'y' is nan, expected min 4 and max 4"),
        ({"z": (4.0,)}, "output 'y' is expected; the model answers z"),
        ({}, "output 'y' is expected; the model answers none"),
    ],
)
def test_an_answer_is_checked_against_what_is_expected(
    answer: dict[str, tuple[object, ...]], why: str
) -> None:
    asked = SmokeRequest(name="two", inputs={"x": (2.0,)}, expect={"y": {"min": 4, "max": 4}})
    found = broken_by_answers(asked, [Answer(replica="a", outputs=answer)])
    assert found == (why and f"smoke request 'two': {why}")


def test_each_replica_has_to_answer() -> None:
    asked = SmokeRequest(name="two", inputs={"x": (2.0,)})
    good, down = (
        Answer(replica="a", outputs={"y": (4.0,)}),
        Answer(replica="b", outputs=None, error="HTTP 500"),
    )
    assert broken_by_answers(asked, [good, down]) == "smoke request 'two' of b: HTTP 500"
    assert broken_by_answers(asked, []) == "smoke request 'two': none of its replicas answers"


@pytest.mark.parametrize(
    ("metric", "answers", "labels", "expected"),
    [
        ("accuracy", [0.9, 0.2, 0.5, 0.4], [1, 0, 0, 0], 0.75),
        ("mae", [1, 2, 3], [1, 4, 2], 1.0),
        ("rmse", [1, 2], [1, 5], math.sqrt(4.5)),
        ("auc", [0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1], 0.75),
        ("auc", [0.5, 0.5], [0, 1], 0.5),
        ("auc", [0.2, 0.5, 0.5, 0.5, 0.9], [1, 0, 1, 1, 0], 1 / 6),
        ("auc", [*range(200_000)], [0, 1] * 100_000, 0.5 + 0.5 / 100_000),
        ("auc", [0.5, 0.7], [1, 1], 0.5),
    ],
)
def test_metrics(metric: str, answers: list[float], labels: list[float], expected: float) -> None:
    assert measure(metric, answers, labels) == pytest.approx(expected)
