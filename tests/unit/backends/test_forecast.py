"""When planned jobs start, by playing the queue through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.unit.backends.kubernetes.golden import job as a_spec

from muster.backends.forecast import Competition, Demand, Forecast, durations, forecast
from muster.core.job import TRIAL
from muster.core.status import JobState, JobStatus

NOW = 1_000_000.0
GPU = "gpu"


def job(name: str, gpus: float = 1, **more: object) -> Demand:
    return Demand(name=name, choices=({GPU: gpus},), **more)  # type: ignore[arg-type]


def runs(name: str, gpus: float = 1, *, ran: float = 0.0) -> Demand:
    return job(name, gpus, started=NOW - ran)


def waits(name: str, gpus: float = 1, *, waited: float = 0.0, priority: int = 0, line: str = "") -> Demand:
    return job(name, gpus, since=NOW - waited, priority=priority, line=line)


def expect(*planned: Demand, durations: dict[str, list[float]], **outlook: object) -> dict[str, Forecast]:
    place = Competition(**{"pools": {GPU: 2.0}, **outlook})  # type: ignore[arg-type]
    return forecast(planned, place, durations, now=NOW)


def test_an_idle_place_starts_it_at_once() -> None:
    found = expect(job("train"), durations={"train": [10.0]})["train"]
    assert found.at_once
    assert (found.starts.p50, found.ends.p50, found.ahead, found.known) == (0.0, 10.0, (), True)


def test_it_waits_for_what_runs_as_long_as_that_still_takes() -> None:
    found = expect(
        job("train", 2),
        durations={"train": [10.0], "other": [100.0]},
        running=(runs("other", 2, ran=70.0),),
    )["train"]
    assert not found.at_once
    assert found.starts.p50 == pytest.approx(30.0)


def test_a_running_job_that_is_overdue_goes_on_for_half_of_what_it_ran() -> None:
    found = expect(
        job("train", 2), durations={"train": [1.0], "other": [100.0]}, running=(runs("other", 2, ran=200.0),)
    )["train"]
    assert found.starts.p50 == pytest.approx(100.0)


def test_those_that_wait_before_it_go_first_and_are_named() -> None:
    found = expect(
        job("train", 2),
        durations={"train": [1.0], "a": [10.0], "b": [20.0]},
        waiting=(waits("b", 2, waited=5), waits("a", 2, waited=9)),
    )["train"]
    assert found.ahead == ("a", "b")
    assert found.starts.p50 == pytest.approx(30.0)


def test_a_higher_priority_passes_those_that_wait() -> None:
    found = expect(
        job("train", 2, priority=1),
        durations={"train": [1.0], "a": [10.0]},
        waiting=(waits("a", 2, waited=5),),
        running=(runs("a", 2, ran=4.0),),
    )["train"]
    assert (found.ahead, found.starts.p50) == ((), pytest.approx(6.0))


def test_a_small_job_passes_a_big_one_until_that_has_waited_long_enough() -> None:
    place = {
        "running": (runs("r", 1),),
        "durations": {"r": [100.0], "big": [50.0], "small": [1.0]},
        "passed_seconds": {"": 300.0},
    }
    passed = expect(job("small", 1), waiting=(waits("big", 2, waited=10),), **place)["small"]  # type: ignore[arg-type]
    kept = expect(job("small", 1), waiting=(waits("big", 2, waited=300),), **place)["small"]  # type: ignore[arg-type]
    assert passed.at_once
    assert kept.starts.p50 == pytest.approx(150.0)


def test_lines_have_orders_of_their_own() -> None:
    found = expect(
        job("train", 1, line="blue"),
        durations={"train": [1.0], "big": [50.0], "r": [100.0]},
        running=(runs("r", 1),),
        waiting=(waits("big", 2, waited=900, line="red"),),
        passed_seconds={"red": 0.0},
    )["train"]
    assert found.ahead == ()


def test_a_stage_follows_those_before_it() -> None:
    found = expect(job("etl"), job("train", 2, after=("etl",)), durations={"etl": [5.0], "train": [20.0]})
    assert found["train"].starts.p50 == pytest.approx(5.0)
    assert found["train"].ends.p50 == pytest.approx(25.0)


def test_the_next_job_starts_a_turnover_later() -> None:
    found = expect(
        job("train", 2),
        durations={"train": [1.0], "r": [10.0]},
        running=(runs("r", 2),),
        turnover_seconds=4.0,
    )["train"]
    assert found.starts.p50 == pytest.approx(14.0)


def test_the_second_choice_is_taken_where_the_first_is_full() -> None:
    train = Demand(name="train", choices=({"a100": 2.0}, {"k80": 2.0}))
    place = Competition(
        pools={"a100": 2.0, "k80": 2.0},
        running=(Demand(name="r", choices=({"a100": 2.0},), started=NOW),),
    )
    assert forecast([train], place, {"r": [100.0]}, now=NOW)["train"].at_once


def test_what_fits_nowhere_and_what_follows_it_are_left_out() -> None:
    found = expect(job("big", 3), job("next", 1, after=("big",)), job("free", 1), durations={})
    assert set(found) == {"free"}
    assert not found["free"].known


def test_uncertain_durations_make_the_ninth_of_ten_later_than_the_median() -> None:
    found = expect(
        job("train", 2),
        durations={"train": [1.0], "r": [float(seconds) for seconds in range(10, 110)]},
        running=(runs("r", 2),),
    )["train"]
    assert 30.0 < found.starts.p50 < 80.0 < found.starts.p90 < 110.0


def test_the_same_place_gives_the_same_forecast() -> None:
    place = {"running": (runs("r", 2),), "durations": {"r": [1.0, 50.0, 90.0]}}
    assert expect(job("train"), **place) == expect(job("train"), **place)  # type: ignore[arg-type]


@dataclass
class Ended:
    """A ledger of jobs that took so long, by name."""

    took: dict[str, float]

    def jobs(self) -> list[str]:
        return list(self.took)

    def statuses(self, ids: list[str]) -> list[JobStatus]:
        return [
            JobStatus(
                job_id=each, state=JobState.SUCCEEDED, submitted=1.0, started=1.0, ended=1.0 + self.took[each]
            )
            for each in ids
        ]

    def specs(self, ids: list[str]) -> dict[str, Any]:
        return {each: a_spec(name=each.rpartition("-")[0]) for each in ids}


def test_the_job_of_helm_s_own_test_tells_nothing_of_others() -> None:
    """It runs in no pod and takes 0.3 s: after an install it would be all that is known of any stage."""
    ledger: Any = Ended({f"{TRIAL}-1": 0.29, "flights.train-1": 155.0, "flights.train-2": 160.0})
    assert durations(ledger) == {"flights.train": [155.0, 160.0]}
