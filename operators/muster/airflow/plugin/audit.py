"""Records actions on the page in Airflow's audit log, as Airflow does for its own buttons."""

from __future__ import annotations

import json
from typing import Any

from airflow.models.log import Log
from airflow.utils.session import create_session

from muster.core.job import Origin

CANCEL, PROMOTE, ROLL_BACK = "muster_cancel_job", "muster_promote", "muster_roll_back"


def note_cancel(user: str, job_id: str, origin: Origin) -> None:
    """Record that a user cancels a job."""
    _note(
        CANCEL,
        user,
        {"job_id": job_id},
        dag_id=origin.dag_id or None,
        task_id=origin.task_id or None,
        run_id=origin.run_id or None,
        map_index=origin.map_index,
    )


def note_release(user: str, event: str, deployment: str, revision: str) -> None:
    """Record that a user promotes a revision, or rolls it back."""
    _note(event, user, {"deployment": deployment, "revision": revision})


def _note(event: str, user: str, extra: dict[str, str], **task: Any) -> None:
    with create_session() as session:
        session.add(Log(event=event, owner=user, owner_display_name=user, extra=json.dumps(extra), **task))
