"""Once an hour: end the jobs and take back the releases that no task of ours sees to, and delete what is not needed any more."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import Param, dag

from muster.airflow import RetentionOperator, SweepOperator


@dag(
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=2),
    params={
        "keep": Param(
            10, type="integer", minimum=1, description="Newest versions of each partition that stay"
        ),
        "young_days": Param(7, type="number", minimum=0, description="Younger versions stay in any case"),
        "job_days": Param(30, type="number", minimum=0, description="How long a job's log is kept"),
        "dry_run": Param(False, type="boolean", description="Only say what would be deleted"),
    },
    tags=["muster"],
)
def muster_maintenance() -> None:
    """A sweep of jobs and releases and a collection of the store's garbage; neither needs the other."""
    SweepOperator(task_id="sweep")
    RetentionOperator(
        task_id="retention",
        keep="{{ params.keep }}",
        young_days="{{ params.young_days }}",
        job_days="{{ params.job_days }}",
        dry_run="{{ params.dry_run }}",
    )


muster_maintenance()
