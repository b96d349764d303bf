"""A job, and a gang that reads its version: what the chart's own Airflow runs in tests/cluster/test_airflow_of_the_chart.py."""

from datetime import UTC, datetime, timedelta

from airflow.sdk import Param, dag

from muster.airflow import GangOperator, JobOperator, Resources

SMALL = Resources(cpus=0.1, memory_gib=0.25)


@dag(
    schedule=None,
    start_date=datetime(2024, 1, 1, tzinfo=UTC),
    params={"rows": Param(10, type="integer"), "seconds": Param(0, type="integer")},
    default_args={"muster": {"image": "python"}, "retries": 2, "retry_delay": timedelta(seconds=1)},
)
def two_stages() -> None:
    rows = JobOperator(
        task_id="rows",
        entrypoint="two_stages.steps:rows",
        outputs={"table": "two/table"},
        params={"count": "{{ params.rows }}"},
        resources=SMALL,
    )
    GangOperator(
        task_id="train",
        entrypoint="two_stages.steps:train",
        replicas=2,
        inputs={"table": rows.versions["table"]},
        outputs={"model": "two/model"},
        params={"seconds": "{{ params.seconds }}"},
        resources=SMALL,
    )


two_stages()
