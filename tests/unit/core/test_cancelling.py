"""Who cancelled a job and by which way: each way has words of its own, and a next step."""

from __future__ import annotations

from datetime import timedelta

import pytest

from muster.core import cancelling
from muster.core.verdict import Cause, Verdict
from muster.core.wire import dumps, loads

EVERY = [
    cancelling.UNKNOWN,
    cancelling.STOPPED,
    cancelling.LAST_TRY,
    cancelling.by_command("ada"),
    cancelling.on_page("ada"),
    cancelling.OVERTAKEN,
    cancelling.out_of_time(timedelta(minutes=2)),
    cancelling.WITH_RUN,
    cancelling.BACKSTOP,
    *(
        cancelling.with_task(state)
        for state in ("failed", "success", "skipped", "removed", "gone", None, "odd")
    ),
]


def test_no_two_ways_read_alike_and_each_says_what_to_do() -> None:
    assert len({verdict.message for verdict in EVERY}) == len(EVERY)
    assert all(verdict.advice for verdict in EVERY)
    assert not any("somebody" in verdict.message for verdict in EVERY)


@pytest.mark.parametrize("verdict", EVERY)
def test_each_is_read_as_it_was_written(verdict: Verdict) -> None:
    assert loads(Verdict, dumps(verdict)) == verdict


def test_a_timeout_is_a_cause_of_its_own_that_costs_a_retry() -> None:
    verdict = cancelling.out_of_time(timedelta(minutes=2))
    assert verdict.cause is Cause.TIMEOUT
    assert verdict.cause.retried
    assert "execution_timeout of 0:02:00" in verdict.message
    assert "raise execution_timeout" in verdict.advice
    assert cancelling.WITH_RUN.cause is Cause.TIMEOUT


def test_a_person_is_named() -> None:
    assert "ada" in cancelling.by_command("ada").message
    assert "muster jobs cancel" in cancelling.by_command("ada").message
    assert "ada" in cancelling.on_page("ada").message
