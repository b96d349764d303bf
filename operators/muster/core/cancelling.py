"""Verdicts of jobs that are cancelled or run out of time: who cancelled the job, and how."""

from __future__ import annotations

from datetime import timedelta

from muster.core.verdict import Cause, Verdict

AGAIN = "run it again if that was not meant"


def _cancelled(message: str, advice: str = AGAIN) -> Verdict:
    return Verdict(cause=Cause.CANCELLED, message=message, advice=advice)


UNKNOWN = _cancelled("it was cancelled; who asked for that is not recorded")
STOPPED = _cancelled("the `muster run` that started it was stopped")


LAST_TRY = _cancelled(
    "its task's process was told to stop in the task's last try, so no try goes on with the job",
    "clear the task to run it again",
)
OVERTAKEN = _cancelled("its task has begun another job", "nothing: the task goes on with its newer job")


_BY_COMMAND, _ON_PAGE = "cancelled it with `muster jobs cancel`", "cancelled it on muster's page in Airflow"


def by_command(user: str) -> Verdict:
    """Return the verdict of a job cancelled with ``muster jobs cancel``."""
    return _cancelled(f"{user} {_BY_COMMAND}")


def on_page(user: str) -> Verdict:
    """Return the verdict of a job cancelled on muster's page."""
    return _cancelled(f"{user} {_ON_PAGE}")


def by_person(verdict: Verdict) -> bool:
    """Whether a person has cancelled this very job."""
    return verdict.message.endswith((_BY_COMMAND, _ON_PAGE))


def pausing(why: str) -> Verdict:
    """Return the verdict of a trial's job that its search has paused."""
    return _cancelled(
        f"its search has paused the trial: {why}", "nothing: its checkpoint stays until the search ends"
    )


_TASKS = {
    "failed": "its task was marked failed in Airflow, or failed there",
    "success": "its task was marked success in Airflow before the job had ended",
    "skipped": "its task was skipped in Airflow",
    "upstream_failed": "a task before it was marked failed in Airflow",
    "removed": "its task is no longer in the Dag",
    "gone": "its run, or its task, was deleted in Airflow",
    "restarting": "its task was cleared in Airflow",
}


def with_task(state: str | None) -> Verdict:
    """Return the verdict of a job whose task ended, was cleared or was deleted in Airflow.

    :param state: state of the task instance; ``gone`` where it is deleted, None where it was cleared.
    """
    if state in (None, "restarting"):
        return _cancelled(_TASKS["restarting"], "nothing: the task's next try starts a job of its own")
    said = _TASKS.get(str(state), f"its task is {state} in Airflow")
    return _cancelled(said, "clear the task to run it again; Airflow's audit log says who changed it")


def out_of_time(limit: timedelta) -> Verdict:
    """Return the verdict of a job that ran longer than its task's ``execution_timeout``, counted from its start."""
    return Verdict(
        cause=Cause.TIMEOUT,
        message=f"it ran longer than its task's execution_timeout of {limit}, counted from the job's start",
        advice="raise execution_timeout, or find what takes so long in the job's log",
    )


WITH_RUN = Verdict(
    cause=Cause.TIMEOUT,
    message="its Dag run came to its dagrun_timeout, which also counts the time in queues",
    advice="raise dagrun_timeout of the Dag, or find what takes so long: muster jobs ls",
)
BACKSTOP = Verdict(
    cause=Cause.RUN_TIMEOUT,
    message="it came to the end of its queue_timeout and run_timeout, and was not ended by them",
    advice="see whether its machine hangs, then run it again",
)
"""Of a job that outlived its own limits: the backend did not end it."""
