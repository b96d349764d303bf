"""What a deployment answered over time: from counters, with gaps, bounded."""

from __future__ import annotations

from typing import Any

from muster.backends.releases.figures import DeploymentSample
from muster.core.deployment import Counts, DeploymentStatus
from muster.ext.page.answering import COARSE, MOST_COARSE, MOST_FINE, History

STATUS = DeploymentStatus(name="flights", url="", ready=True, token="1")


def seen(requests: int, failed: int = 0) -> DeploymentSample:
    seconds = {0.1: requests, float("inf"): requests}
    return DeploymentSample(
        status=STATUS, counts={"r1": Counts(requests=requests, failed=failed, seconds=seconds)}
    )


def figures(history: History) -> list[tuple[float, int, int]]:
    return [
        (each["seconds"], each["figures"]["r1"]["requests"], each["figures"]["r1"]["failed"])
        for each in history.series()
    ]


def after(*readings: tuple[float, DeploymentSample]) -> History:
    history = History()
    for at, reading in readings:
        history.note(at, reading)
    return history


def test_an_interval_has_what_was_counted_in_it() -> None:
    assert figures(after((0, seen(100)), (15, seen(130, 2)), (30, seen(130, 2)))) == [(15, 30, 2), (15, 0, 0)]


def test_a_replica_that_began_anew_has_no_negative_figures() -> None:
    assert figures(after((0, seen(100)), (15, seen(7)))) == [(15, 7, 0)]


def test_a_reading_that_could_not_be_had_leaves_a_gap() -> None:
    away = DeploymentSample(status=STATUS, counts=None)
    assert figures(after((0, seen(1)), (15, seen(2)), (30, away), (45, seen(9)), (60, seen(10)))) == [
        (15, 1, 0),
        (15, 1, 0),
    ]


def test_old_intervals_are_joined_and_none_is_lost_until_two_days_have_passed() -> None:
    readings: list[tuple[float, Any]] = [(15.0 * n, seen(n)) for n in range(1001)]
    history = after(*readings)
    told = figures(history)
    assert sum(requests for _, requests, _ in told) == 1000
    assert max(seconds for seconds, _, _ in told) == 15 * COARSE
    for n in range(1001, 15_000):
        history.note(15.0 * n, seen(n))
    assert len(history.series()) <= MOST_COARSE + MOST_FINE + COARSE
