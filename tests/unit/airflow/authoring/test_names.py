"""Names that are refused where the Dag is parsed."""

from __future__ import annotations

import pytest
from airflow.sdk import DAG, TaskGroup

from muster.airflow import JobOperator
from muster.core.errors import SpecError


@pytest.mark.parametrize(
    ("dag_id", "group", "task_id", "said"),
    [
        ("wetter_für_morgen", "all", "train", "Dag 'wetter_für_morgen'.*dag_display_name="),
        ("weather", "große", "train", "task group 'große'.*group_display_name="),
        ("weather", "all", "прогноз", "task 'прогноз'.*task_display_name="),
    ],
)
def test_an_id_that_no_header_can_hold_is_refused(dag_id: str, group: str, task_id: str, said: str) -> None:
    with DAG(dag_id, schedule=None), TaskGroup(group):
        with pytest.raises(SpecError, match=said):
            JobOperator(task_id=task_id, image="python", command=["true"])
        with pytest.raises(SpecError, match=said):
            JobOperator.partial(task_id=task_id, image="python", command=["true"])


def test_the_queue_of_airflow_s_workers_has_a_keyword_of_its_own() -> None:
    with pytest.raises(SpecError, match=r"task 'train', queue: .*write airflow_queue='celery_gpu'"):
        JobOperator(task_id="train", image="python", command=["true"], queue="celery_gpu")
