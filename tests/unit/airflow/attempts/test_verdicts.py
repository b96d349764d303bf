"""What an author reads last: never more than four lines, and a next step in them."""

from __future__ import annotations

import sys
import traceback
from typing import Any, cast

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from structlog.tracebacks import ExceptionDictTransformer

from muster.airflow.attempts.verdicts import failure, refusal, translated
from muster.airflow.attempts.waiting import Stopped
from muster.core import errors
from muster.core.errors import MusterError, SpecError
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause, Verdict

EVERY_ERROR = [
    error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, MusterError)
]


@pytest.mark.parametrize("cause", Cause)
def test_what_is_final_fails_at_once_and_the_rest_costs_a_retry(cause: Cause) -> None:
    verdict = Verdict(cause=cause, message="it went wrong\n" * 100, advice="mend it", rank=1)
    status = JobStatus(job_id="a-job", state=JobState.FAILED, submitted=1.0, verdict=verdict)
    raised = failure(status)
    assert isinstance(raised, AirflowFailException) is not cause.retried
    lines = str(raised).splitlines()
    assert lines[0] == f"{cause.value}, rank 1"
    assert lines[2:] == ["mend it", "full log: muster jobs logs a-job"]


@pytest.mark.parametrize("error", EVERY_ERROR)
def test_a_refusal_says_what_it_is_and_what_to_do_in_three_lines(error: type[MusterError]) -> None:
    raised = refusal(error("volume 'a\nb\x1b[2J' is none"))
    kind, message, advice = str(raised).splitlines()
    assert kind != str(refusal(MusterError("any"))).splitlines()[0] or error is MusterError
    assert message == "volume 'a b [2J' is none"
    assert advice


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (
            errors.Conflict("/m holds the versions of another store: name an empty place"),
            "another writer was first: do what the message says, or run it again",
        ),
        (
            SpecError("d/rows@1 is pinned: `muster volumes unpin d/rows@1`, then run the task again"),
            "mend what the message names; trying again as it is cannot help",
        ),
        (
            errors.NotFound("no deployment 'flights'; known are: none"),
            "see what is there: muster volumes ls, muster deployments ls",
        ),
    ],
)
def test_the_advice_is_true_of_every_error_of_its_class(error: MusterError, advice: str) -> None:
    assert str(refusal(error)).splitlines()[1:] == [str(error), advice]


def test_an_authors_mistake_is_not_tried_again() -> None:
    assert isinstance(refusal(SpecError("no")), AirflowFailException)
    assert isinstance(refusal(errors.CannotSchedule("no")), AirflowFailException)
    assert isinstance(refusal(errors.NotFound("no")), AirflowFailException)
    assert not isinstance(refusal(errors.BackendError("no")), AirflowFailException)


@pytest.mark.parametrize(
    "error", [SpecError("no"), AirflowException("a verdict"), AirflowFailException("a verdict"), Stopped()]
)
def test_what_airflow_logs_after_a_verdict_is_one_call_and_none_of_ours(error: Exception) -> None:
    def deep(depth: int) -> None:
        if not depth:
            raise error
        deep(depth - 1)

    def perform() -> None:
        with translated():
            deep(10)

    try:
        perform()
    except AirflowException:
        (logged,) = ExceptionDictTransformer(show_locals=False)(cast("Any", sys.exc_info()))
    assert logged["exc_value"].splitlines()[0] in ("spec error", "a verdict", "stopped")
    assert [frame["name"] for frame in logged["frames"]] == [
        "test_what_airflow_logs_after_a_verdict_is_one_call_and_none_of_ours"
    ]


def test_what_steers_airflow_passes_as_it_is() -> None:
    with pytest.raises(AirflowSkipException), translated():
        raise AirflowSkipException("not today")


def test_a_defect_of_ours_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError) as caught, translated():
        _ = 1 / 0
    assert "1 / 0" in traceback.format_tb(caught.value.__traceback__)[-1]
