"""Which job a try of a task stands for: every row of the table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from muster.airflow.attempts.attempt import Action, Attempt, Decision, decide, newer
from muster.core.errors import SpecError
from muster.core.status import JobState

OLD = Attempt(nonce="old", max_tries=2, retries=2, number=3)
REPORTED = Attempt(nonce="old", max_tries=2, retries=2, number=3, reported=True)
NEXT = Attempt(nonce="old", max_tries=2, retries=2, number=4)
FRESH = Attempt(nonce="new", max_tries=2, retries=2)
CLEARED = Attempt(nonce="new", max_tries=5, retries=2, anew=True)
KEPT = Attempt(nonce="old", max_tries=2, retries=2, number=3, kept="a-1")


@pytest.mark.parametrize(
    ("stored", "max_tries", "state", "expected"),
    [
        pytest.param(None, 2, None, (Action.START, FRESH), id="first try"),
        pytest.param(None, 5, None, (Action.START, CLEARED), id="cleared by Airflow 3.4, which discards it"),
        pytest.param(
            None, 2, JobState.CANCELLED, (Action.START, replace(FRESH, anew=True)), id="cleared so, then lost"
        ),
        pytest.param(OLD, 2, None, (Action.START, OLD), id="died between the write and the submit"),
        pytest.param(KEPT, 2, None, (Action.START, KEPT), id="died after it had kept what there was"),
        pytest.param(KEPT, 5, None, (Action.START, CLEARED), id="cleared after it had kept what there was"),
        pytest.param(OLD, 2, JobState.QUEUED, (Action.ADOPT, OLD), id="queued"),
        pytest.param(OLD, 2, JobState.PREPARING, (Action.ADOPT, OLD), id="preparing"),
        pytest.param(OLD, 2, JobState.RUNNING, (Action.ADOPT, OLD), id="running"),
        pytest.param(OLD, 2, JobState.COMMITTING, (Action.ADOPT, OLD), id="committing"),
        pytest.param(OLD, 2, JobState.SUCCEEDED, (Action.TAKE, OLD), id="succeeded"),
        pytest.param(OLD, 2, JobState.FAILED, (Action.REPORT, OLD), id="failed, not reported"),
        pytest.param(OLD, 2, JobState.CANCELLED, (Action.REPORT, OLD), id="cancelled, not reported"),
        pytest.param(REPORTED, 2, JobState.FAILED, (Action.START, NEXT), id="failed, reported"),
        pytest.param(REPORTED, 2, JobState.CANCELLED, (Action.START, NEXT), id="cancelled, reported"),
        pytest.param(REPORTED, 2, JobState.RUNNING, (Action.START, NEXT), id="given up, but it runs still"),
        pytest.param(REPORTED, 2, JobState.SUCCEEDED, (Action.START, NEXT), id="given up, yet it succeeded"),
        pytest.param(OLD, 5, JobState.SUCCEEDED, (Action.START, CLEARED), id="cleared after success"),
        pytest.param(OLD, 5, JobState.RUNNING, (Action.START, CLEARED), id="cleared, its job still runs"),
        pytest.param(REPORTED, 5, JobState.FAILED, (Action.START, CLEARED), id="cleared after a failure"),
    ],
)
def test_the_table(
    stored: Attempt | None, max_tries: int, state: JobState | None, expected: tuple[Action, Attempt]
) -> None:
    decision = decide(stored, max_tries=max_tries, retries=2, state=state, mine=True, fresh_nonce="new")
    assert decision == Decision(action=expected[0], attempt=expected[1])


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (JobState.CANCELLED, (Action.START, NEXT)),  # that try was cleared, and had no time to write it down
        (JobState.FAILED, (Action.REPORT, OLD)),
        (JobState.SUCCEEDED, (Action.TAKE, OLD)),
        (JobState.RUNNING, (Action.ADOPT, OLD)),
    ],
)
def test_the_job_of_another_try(state: JobState, expected: tuple[Action, Attempt]) -> None:
    decision = decide(OLD, max_tries=2, retries=2, state=state, mine=False, fresh_nonce="new")
    assert decision == Decision(action=expected[0], attempt=expected[1])


@pytest.mark.parametrize(
    ("state", "action"), [(JobState.SUCCEEDED, Action.START), (JobState.RUNNING, Action.ADOPT)]
)
def test_it_is_cleared_after_its_retries_were_lowered(state: JobState, action: Action) -> None:
    """By as many as it has had tries: then Airflow's number is the same as before."""
    decision = decide(OLD, max_tries=2, retries=1, state=state, mine=False, fresh_nonce="new")
    assert decision.action is action
    assert (decision.attempt == OLD) is (action is Action.ADOPT)


@pytest.mark.parametrize(
    ("before", "now", "anew"),
    [(None, None, True), (None, "1", False), ("1", "1", True), ("1", "2", False), ("2", None, False)],
    ids=["a person", "a backfill", "a person, in a backfill", "another backfill", "no backfill any more"],
)
def test_what_a_person_cleared_is_made_anew_and_what_a_backfill_cleared_is_not(
    before: str | None, now: str | None, anew: bool
) -> None:
    stored = Attempt(nonce="old", max_tries=2, retries=2, kept="a-1", backfill=before)
    decision = decide(stored, max_tries=5, retries=2, state=None, mine=False, fresh_nonce="new", backfill=now)
    assert decision.attempt == Attempt(nonce="new", max_tries=5, retries=2, anew=anew, backfill=now)
    assert Attempt.load(decision.attempt.dump()) == decision.attempt


def test_its_retries_were_edited_while_it_was_deferred() -> None:
    decision = decide(OLD, max_tries=2, retries=3, state=JobState.SUCCEEDED, mine=True, fresh_nonce="new")
    assert decision == Decision(action=Action.TAKE, attempt=OLD)


def test_tries_are_ordered_by_their_ids() -> None:
    first, second = "01985b3e-0000-7000-8000-000000000000", "01985b3e-0001-7000-8000-000000000000"
    assert newer(second, first)
    assert not newer(first, second)
    assert not newer(first, None), "no try owns it"
    assert not newer("ann", first), "no id of a try"


def test_an_attempt_names_the_same_job_each_time_and_another_attempt_another() -> None:
    names = {a.job_id(instance="i", task="flights.train") for a in (OLD, REPORTED, NEXT, FRESH)}
    assert len(names) == 3, "being reported is no part of the name; nonce and number are"
    assert OLD.job_id(instance="i", task="flights.train") != OLD.job_id(instance="j", task="flights.train")


def test_what_is_stored_is_read_back() -> None:
    assert Attempt.load(REPORTED.dump()) == REPORTED
    assert Attempt.load(None) is None


def test_something_else_under_the_key_is_refused() -> None:
    with pytest.raises(SpecError, match="where muster keeps its attempts"):
        Attempt.load("job-17")
