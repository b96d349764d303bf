"""Once an hour: end jobs and take back releases whose task is gone, and delete what is not needed any more."""

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
            10, type="integer", minimum=1, description="Number of newest versions of each partition to keep"
        ),
        "young_days": Param(
            7,
            type="number",
            minimum=0,
            description="Keep versions that a commit made or replaced less than this many days ago",
        ),
        "job_days": Param(30, type="number", minimum=0, description="Keep a job's log for this many days"),
        "dry_run": Param(False, type="boolean", description="Only show what would be deleted"),
    },
    tags=["muster"],
)
def muster_maintenance() -> None:
    """Sweep jobs and releases, and collect the store's garbage; the two are independent."""
    SweepOperator(task_id="sweep")
    RetentionOperator(
        task_id="retention",
        keep="{{ params.keep }}",
        young_days="{{ params.young_days }}",
        job_days="{{ params.job_days }}",
        dry_run="{{ params.dry_run }}",
    )


muster_maintenance()
