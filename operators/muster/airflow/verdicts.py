"""Muster's errors and verdicts as Airflow's exceptions: what is final fails at once, the rest is retried.

The message of the exception is the end of the task's log, so it *is* the verdict, and it is raised
without a cause: Airflow prints a traceback after it, and that should be short.
"""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from muster.airflow.waiting import Stopped
from muster.core.errors import Conflict, Corrupt, ImageError, MusterError, NotFound, SpecError
from muster.core.status import JobStatus
from muster.core.verdict import Cause

_FINAL = (SpecError, NotFound, Corrupt)
_KINDS: dict[type[MusterError], str] = {
    SpecError: Cause.SPEC_ERROR.value,
    NotFound: "not found",
    Conflict: "conflict",
    Corrupt: "corrupt version",
    ImageError: Cause.IMAGE_UNAVAILABLE.value,
}


def failure(status: JobStatus) -> AirflowException:
    """The exception for a job that ended without success."""
    if status.verdict is None:
        return AirflowException(
            f"job ended as {status.state.value}\nfull log: muster jobs logs {status.job_id}"
        )
    text = status.verdict.render(job_id=status.job_id)
    return AirflowException(text) if status.verdict.cause.retried else AirflowFailException(text)


def refusal(error: MusterError) -> AirflowException:
    """The exception for what muster refused before or beside a job."""
    kind = next((name for known, name in _KINDS.items() if isinstance(error, known)), "muster")
    text = f"{kind}\n{error}"
    return AirflowFailException(text) if isinstance(error, _FINAL) else AirflowException(text)


class translated:  # noqa: N801 - it reads as what it does, ``with translated():``
    """Turn muster's errors into Airflow's, once, at the edge, and cut the traceback off.

    Airflow prints it after the message, and an author has no use for frames of ours.
    """

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Raise Airflow's exception in the place of ours."""
        if isinstance(error, MusterError):
            raise refusal(error) from None
        if isinstance(error, Stopped):
            raise AirflowException("stopped\nthe task's process was told to stop") from None
        if isinstance(error, AirflowException):
            raise error.with_traceback(None) from None
