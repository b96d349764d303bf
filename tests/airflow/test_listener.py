"""To which backfill a run belongs, as the scheduler's listener writes it down."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models.serialized_dag import SerializedDagModel
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import LazyDeserializedDAG

from muster.airflow import JobOperator
from muster.airflow.attempts.listener import on_dag_run_running
from muster.airflow.attempts.task_state import BACKFILL


class Own(JobOperator):
    """An author's operator."""


def plain() -> None:
    EmptyOperator(task_id="plain", params={"pod_override": "pod_override"})


def one() -> None:
    plain()
    Own(task_id="train", image="python", command=["true"])


def mapped() -> None:
    plain()
    JobOperator.partial(task_id="train", image="python", command=["true"]).expand(
        env=[{"N": "1"}, {"N": "2"}]
    )


@pytest.mark.parametrize(("tasks", "ours"), [(plain, False), (one, True), (mapped, True)])
def test_a_backfills_run_with_jobs_knows_its_number(tasks: Any, ours: bool) -> None:
    with DAG("months", schedule=None) as dag:
        tasks()
    kept = SerializedDagModel(LazyDeserializedDAG.from_dag(dag))
    kept.load_op_links = False  # as the scheduler reads a Dag
    run = SimpleNamespace(backfill_id=7, dag=kept.dag, conf={"year": 2024})
    kept.load_op_links = True
    assert kept.dag, "which sets it back for the tests after this one"
    on_dag_run_running(dag_run=run, msg="")
    assert run.conf == {"year": 2024} | ({BACKFILL: 7} if ours else {})
