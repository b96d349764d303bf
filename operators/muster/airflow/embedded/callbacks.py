"""Calls the callbacks of a Dag once its run has ended, as Airflow's Dag processor does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.callbacks.callback_requests import DagCallbackRequest
    from airflow.sdk import DAG


def call_back(dag: DAG, request: DagCallbackRequest, warn: Callable[[str], None]) -> None:
    """Call ``on_success_callback`` or ``on_failure_callback``.

    :param dag: as its author wrote it: the scheduler's Dag has no functions.
    :param warn: told of a callback that fails; the others are called all the same, and the run's state stays.
    """
    word = "on_failure_callback" if request.is_failure_callback else "on_success_callback"
    callbacks: Any = getattr(dag, word) or ()
    for callback in callbacks if isinstance(callbacks, Sequence) else (callbacks,):
        try:
            callback(_context(dag, request))
        except Exception as error:  # whatever its author wrote
            name = getattr(callback, "__name__", repr(callback))
            warn(f"{word} {name} of Dag {dag.dag_id} failed: {type(error).__name__}: {error}")


def _context(dag: DAG, request: DagCallbackRequest) -> dict[str, Any]:
    from airflow.sdk.api.datamodels._generated import TIRunContext
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    known = request.context_from_server
    if known is None or known.last_ti is None:
        return {"dag": dag, "run_id": request.run_id, "reason": request.msg}
    task = dag.get_task(known.last_ti.task_id)
    ti = RuntimeTaskInstance.model_construct(
        **known.last_ti.model_dump(exclude_unset=True),
        task=task,
        _ti_context_from_server=TIRunContext.model_construct(dag_run=known.dag_run, max_tries=task.retries),
    )
    return {**ti.get_template_context(), "reason": request.msg}
