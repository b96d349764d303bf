"""Records actions on the page in Airflow's audit log, as Airflow does for its own buttons."""

from __future__ import annotations

import json
from typing import Any

from airflow.models.log import Log
from airflow.utils.session import create_session

from muster.core.origin import Origin

CANCEL, CANCEL_SEARCH = "muster_cancel_job", "muster_cancel_search"
PROMOTE, ROLL_BACK = "muster_promote", "muster_roll_back"
REPAIR, RETIRE_DEPLOYMENT = "muster_repair", "muster_retire_deployment"
PIN, UNPIN, RETIRE, REINSTATE = "muster_pin", "muster_unpin", "muster_retire", "muster_reinstate"


def note_cancel(user: str, job_id: str, origin: Origin) -> None:
    """Record that a user cancels a job."""
    _note(CANCEL, user, {"job_id": job_id}, **_task(origin))


def note_cancel_search(user: str, search_id: str, origin: Origin) -> None:
    """Record that a user cancels a search. :param origin: the task that searches."""
    _note(CANCEL_SEARCH, user, {"search_id": search_id}, **_task(origin))


def note_release(user: str, event: str, deployment: str, revision: str = "") -> None:
    """Record what a user does to a deployment, or to a revision of it."""
    _note(event, user, {"deployment": deployment, **({"revision": revision} if revision else {})})


def note_version(user: str, event: str, address: str, reason: str, origin: Origin) -> None:
    """Record what a user does to a version. :param origin: of the job that made it."""
    _note(event, user, {"version": address, "reason": reason}, dag_id=origin.dag_id or None)


def _task(origin: Origin) -> dict[str, Any]:
    return {
        "dag_id": origin.dag_id or None,
        "task_id": origin.task_id or None,
        "run_id": origin.run_id or None,
        "map_index": origin.map_index,
    }


def _note(event: str, user: str, extra: dict[str, str], **task: Any) -> None:
    with create_session() as session:
        session.add(Log(event=event, owner=user, owner_display_name=user, extra=json.dumps(extra), **task))
