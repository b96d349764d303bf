"""Once an hour: bring a mirror of the store up, which `muster volumes restore` brings versions back from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import Param, dag

from muster.airflow import MirrorOperator


@dag(
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(days=1),
    params={
        "target": Param(
            "/var/lib/muster-mirror",
            type="string",
            description="Folder, address of a store service, or s3://…",
        ),
        "volumes": Param([], type="array", items={"type": "string"}, description="Only these volumes"),
        "keep_deleted": Param(False, type="boolean", description="What gc deletes here stays in the mirror"),
    },
    tags=["muster"],
)
def mirror() -> None:
    """Bring the mirror up; a run that was ended is gone on with by the next."""
    MirrorOperator(
        task_id="mirror",
        target="{{ params.target }}",
        volumes="{{ params.volumes }}",
        keep_deleted="{{ params.keep_deleted }}",
        retries=2,
        retry_delay=timedelta(minutes=5),
    )


mirror()
