"""The state of a task instance in Airflow: whether a try still waits for its job or release; and what its run was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from muster.airflow.upstream import internals
from muster.core.cancelling import WITH_RUN, with_task
from muster.core.errors import SpecError
from muster.core.origin import Origin
from muster.core.verdict import Verdict

if TYPE_CHECKING:
    from airflow.sdk import Context

NO_CACHE = "no_cache"
BACKFILL = "muster_backfill"
GONE = "gone"

_OVER = frozenset({"success", "failed", "skipped", "removed", "upstream_failed", GONE})
# by a person or a timeout, where a try is told to stop while this is the state
GIVEN_UP = _OVER - {"success"}
_CLEARED_WHILE_RUNNING = "restarting"


def ask(origin: Origin) -> str | None:
    """Return the state that Airflow has for a task instance now; it may be that of a newer try.

    None is one that was cleared, or reset after its scheduler died, and waits to be scheduled;
    :data:`GONE` one that was deleted, alone or with its run. Works where Airflow's execution API is
    at hand: in a task's process, and in a triggerer outside the thread of its loop.

    :raises AirflowRuntimeError: Airflow does not answer.
    """
    states = internals.RuntimeTaskInstance.get_task_states(
        dag_id=origin.dag_id,
        map_index=origin.map_index,  # else Airflow reads all of a map, for each of its tasks
        task_ids=[origin.task_id],
        run_ids=[origin.run_id],
    )
    name = origin.task_id if origin.map_index < 0 else f"{origin.task_id}_{origin.map_index}"
    state = states.get(origin.run_id, {}).get(name, GONE)
    return None if state is None else str(state)


def why_over(origin: Origin, state: str | None) -> Verdict:
    """Return the verdict of a job whose task is over or was cleared.

    :param state: as :func:`ask` says.
    """
    if state != "skipped":
        return with_task(state)
    # While its job ran: by a person, or with its run, whose time was over.
    from airflow.sdk.exceptions import AirflowRuntimeError

    try:
        run = internals.RuntimeTaskInstance.get_dagrun_state(origin.dag_id, origin.run_id)
    except AirflowRuntimeError:  # its job is ended all the same
        return with_task(state)
    return WITH_RUN if run == "failed" else with_task(state)


def over(state: str | None) -> bool:
    """Whether no try runs, or will run, unless the task is cleared."""
    return state in _OVER


def ended_by_hand(state: str | None) -> bool:
    """Whether this state means that the try was ended by a person, or cleared while it ran."""
    return over(state) or state == _CLEARED_WHILE_RUNNING


def no_cache(context: Context) -> bool:
    """Whether the run's conf, or a Param of the Dag, says ``no_cache``: then nothing is kept.

    :raises SpecError: its value is neither true nor false.
    """
    conf: Mapping[str, Any] = getattr(context.get("dag_run"), "conf", None) or {}
    value = conf.get(NO_CACHE, (context.get("params") or {}).get(NO_CACHE, False))
    if not isinstance(value, bool):
        raise SpecError(f"{NO_CACHE} is {value!r:.60}: expected true or false")
    return value


def backfill_of(context: Context) -> str | None:
    """Return the backfill that a run belongs to; one that muster's listener did not number is ``backfill``."""
    run = context.get("dag_run")
    number = (getattr(run, "conf", None) or {}).get(BACKFILL)
    if number is not None:
        return str(number)
    return "backfill" if str(getattr(run, "run_type", "")).endswith("backfill") else None
