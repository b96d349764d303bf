"""Muster's errors and verdicts as Airflow's exceptions: what is final fails at once, the rest is retried.

The message of the exception is the end of the task's log, so it *is* the verdict: what follows it there
should be as little as can be.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from muster.airflow.attempts.waiting import Stopped
from muster.airflow.links import seen_at
from muster.core.errors import (
    BackendError,
    CannotSchedule,
    Conflict,
    Corrupt,
    DeploymentError,
    ImageError,
    MusterError,
    NotFound,
    SpecError,
    StoreError,
)
from muster.core.room import is_full, make_room
from muster.core.status import JobStatus
from muster.core.text import one_line
from muster.core.verdict import Cause, full_log

_FINAL = (SpecError, NotFound, Corrupt)
# What is said first and last of an error that no job has; the error itself names the thing. Its message may say what to do,
# so the last line is one that is true of every error of the class.
_KINDS: dict[type[MusterError], tuple[str, str]] = {
    CannotSchedule: (Cause.UNSCHEDULABLE.value, "ask for less, or run it on a bigger machine"),
    SpecError: (Cause.SPEC_ERROR.value, "mend what the message names; trying again as it is cannot help"),
    NotFound: ("not found", "see what is there: muster volumes ls, muster deployments ls"),
    Conflict: ("conflict", "another writer was first: do what the message says, or run it again"),
    Corrupt: ("corrupt version", "see what is damaged: muster volumes fsck --deep"),
    StoreError: ("store error", "nothing half-done is visible; mend what the message names and run again"),
    ImageError: (Cause.IMAGE_UNAVAILABLE.value, "mend the image or the network, then run again"),
    BackendError: (Cause.BACKEND_ERROR.value, "run it again; muster doctor looks at the machine"),
    DeploymentError: ("deployment refused", "what served before still does; mend what the message names"),
}
_ANY = ("error", "mend what the message names and run again")


class Failed(AirflowException):
    """A verdict. Airflow tries the task again, while retries are left.

    Airflow logs a traceback after the message: six calls of its own and some of ours, which tell an
    author nothing and push what counts up and away. Its own calls are on it only when it logs, after
    all code of ours. But it reads the message before it walks the traceback (structlog's
    ``tracebacks.extract``), so that is the one moment to cut it.
    """

    def __str__(self) -> str:
        """The verdict; from here on the traceback is its outermost call alone."""
        if self.__traceback__ is not None:
            self.__traceback__.tb_next = None
        return super().__str__()


class FailedForGood(Failed, AirflowFailException):
    """A verdict that another try would come to again: Airflow makes none."""


# A log in JSON has the one before the verdict, a log in text the other.
FailedForGood.__name__ = FailedForGood.__qualname__ = Failed.__name__


def failure(status: JobStatus) -> Failed:
    """The exception for a job that ended without success."""
    if status.verdict is None:
        return Failed(f"job ended as {status.state.value}\n{full_log(status.job_id)}{seen_at(status.job_id)}")
    text = status.verdict.render(job_id=status.job_id) + seen_at(status.job_id)
    return Failed(text) if status.verdict.cause.retried else FailedForGood(text)


def left_running(job_id: str) -> Failed:
    """The exception for a try whose process is stopped while its job goes on."""
    return Failed(
        f"stopped\nthe task's process was told to stop; job {job_id} goes on\n"
        f"the next try adopts it\n{full_log(job_id)}"
    )


def refusal(error: MusterError) -> Failed:
    """The exception for what muster refused before or beside a job: what it is, what was said, what to do."""
    kind, advice = next((words for known, words in _KINDS.items() if isinstance(error, known)), _ANY)
    if is_full(error):
        kind, advice = Cause.DISK_FULL.value, make_room()
    text = f"{kind}\n{one_line(str(error))}\n{advice}"
    return FailedForGood(text) if isinstance(error, _FINAL) else Failed(text)


@contextmanager
def translated() -> Iterator[None]:
    """Turn muster's errors, and Airflow's two that an operator of ours raises, into verdicts, once, at the edge."""
    try:
        yield
    except Failed:
        raise
    except MusterError as error:
        raise refusal(error) from None
    except Stopped:
        raise Failed("stopped\nthe task's process was told to stop") from None
    except AirflowFailException as error:
        raise FailedForGood(str(error)) from None
    except AirflowException as error:
        if type(error) is not AirflowException:  # they steer Airflow: a skip, a reschedule
            raise
        raise Failed(str(error)) from None
