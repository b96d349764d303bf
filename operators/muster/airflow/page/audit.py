"""Records actions on the page in Airflow's audit log, as Airflow does for its own buttons."""

from __future__ import annotations

import json
from typing import Any

from muster.airflow.upstream.internals import Log, create_session
from muster.core.origin import Origin

_NO_TASK = Origin()


def note(user: str, event: str, origin: Origin = _NO_TASK, **what: str) -> None:
    """Record what a user does.

    :param event: its name in the audit log, such as ``muster_pin``.
    :param origin: the task of what is changed, or its Dag alone.
    :param what: what is changed, by its kind: ``job_id="…"``.
    """
    task: dict[str, Any] = {
        "dag_id": origin.dag_id or None,
        "task_id": origin.task_id or None,
        "run_id": origin.run_id or None,
        "map_index": origin.map_index if origin.task_id else None,
    }
    with create_session() as session:
        session.add(Log(event=event, owner=user, owner_display_name=user, extra=json.dumps(what), **task))
