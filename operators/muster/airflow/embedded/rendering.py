"""Renders a task's fields before its run: with the run's params, and results of stages that are known already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from muster.airflow.upstream import internals

if TYPE_CHECKING:
    from airflow.sdk import DAG, Context

    from muster.airflow.operators.base import MusterOperator

RUN_ID = "plan"

OperatorT = TypeVar("OperatorT", bound="MusterOperator")


class Unknown(Exception):
    """A field depends on what a stage returns that has not run. :ivar task_id: that stage."""

    def __init__(self, task_id: str) -> None:
        super().__init__(task_id)
        self.task_id = task_id


def render(operator: OperatorT, dag: DAG, params: Mapping[str, Any], results: Mapping[str, Any]) -> OperatorT:
    """Return a copy of a task with its fields rendered.

    :param results: of the stages that are known, by task id.
    :raises Unknown: a field depends on another stage.
    :raises Failed: a template is wrong, or names what only a run knows.
    """
    for task_id in _referred(operator):
        if task_id not in results:
            raise Unknown(task_id)
    made = operator.prepare_for_execution()
    made.render_template_fields(plan_context(made, dag, params, results))
    return made


def plan_context(
    operator: MusterOperator, dag: DAG, params: Mapping[str, Any], results: Mapping[str, Any]
) -> Context:
    """Return the names that templates use, as for a run that is triggered now."""
    now = datetime.now(tz=timezone.utc)
    instance = _Instance(dag_id=dag.dag_id, task=operator, results=results)
    found: dict[str, Any] = {
        "dag": dag,
        "task": operator,
        "ti": instance,
        "task_instance": instance,
        "run_id": RUN_ID,
        "dag_run": SimpleNamespace(
            run_id=RUN_ID, run_type="manual", conf=dict(params), logical_date=now, partition_key=None
        ),
        "params": dict(params),
        "macros": internals.MacrosAccessor(),
        "logical_date": now,
        "data_interval_start": now,
        "data_interval_end": now,
        "partition_key": None,
        "ds": now.strftime("%Y-%m-%d"),
        "ds_nodash": now.strftime("%Y%m%d"),
        "ts": now.isoformat(),
        "ts_nodash": now.strftime("%Y%m%dT%H%M%S"),
    }
    return cast("Context", found)


class _Instance:
    """Answers for the first try of a task instance as far as it is planned."""

    id = ""
    try_number, max_tries, start_date = 1, 0, None
    map_index = -1
    run_id = RUN_ID

    def __init__(self, *, dag_id: str, task: MusterOperator, results: Mapping[str, Any]) -> None:
        self.dag_id = dag_id
        self.task = task
        self.task_id = task.task_id
        self._results = results

    def xcom_pull(self, task_ids: str | Iterable[str] | None = None, **_: Any) -> Any:
        """Return a stage's result. :raises Unknown: it has not run."""
        names = [task_ids] if isinstance(task_ids, str) else list(task_ids or ())
        for name in names:
            if name not in self._results:
                raise Unknown(name)
        return self._results[names[0]] if isinstance(task_ids, str) else [self._results[n] for n in names]


def _referred(operator: MusterOperator) -> list[str]:
    """The stages whose results a task's templated fields name."""
    from airflow.sdk import XComArg

    found = []
    for name in operator.template_fields:
        for task, _ in XComArg.iter_xcom_references(getattr(operator, name, None)):
            found.append(task.task_id)
    return found
