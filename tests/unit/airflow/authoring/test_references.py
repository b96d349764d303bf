"""What a consumer says of a task before it that left no version: what became of that task, and what to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from muster.airflow.attempts import task_state
from muster.airflow.operators.job import JobOperator
from muster.core.origin import Origin


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("success", "it was marked success before its job had made it"),
        ("skipped", "it is skipped in this Dag run"),
        (None, "it has not run in this Dag run"),
        (task_state.GONE, "it has not run in this Dag run"),
    ],
)
def test_a_missing_result_is_explained_by_how_its_task_stands(
    monkeypatch: pytest.MonkeyPatch, state: str | None, said: str
) -> None:
    asked: list[Origin] = []

    def ask(origin: Origin) -> str | None:
        asked.append(origin)
        return state

    monkeypatch.setattr(task_state, "ask", ask)
    train = JobOperator(task_id="train", image="python", command=["true"], outputs={"model": "a/model"})
    context: Any = {"ti": SimpleNamespace(task=train, dag_id="d", run_id="r", xcom_pull=lambda **_: None)}
    with pytest.raises(AirflowFailException, match=f"task 'train' left no versions model: {said}"):
        train.versions["model"].resolve(context)
    assert asked == [Origin(dag_id="d", run_id="r", task_id="train")]
