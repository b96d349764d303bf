"""Records actions on the page in Airflow's audit log, as Airflow does for its own buttons."""

from __future__ import annotations

import json

from airflow.models.log import Log
from airflow.utils.session import create_session

from muster.core.job import Origin

CANCEL = "muster_cancel_job"


def note_cancel(user: str, job_id: str, origin: Origin) -> None:
    """Record that a user cancels a job."""
    with create_session() as session:
        session.add(
            Log(
                event=CANCEL,
                owner=user,
                owner_display_name=user,
                extra=json.dumps({"job_id": job_id}),
                dag_id=origin.dag_id or None,
                task_id=origin.task_id or None,
                run_id=origin.run_id or None,
                map_index=origin.map_index,
            )
        )
