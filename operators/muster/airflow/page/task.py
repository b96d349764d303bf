"""The task behind a job, a search or a version: its name on the page, and its address in Airflow's UI."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from muster.core.origin import Origin

UNREADABLE = "unreadable"
"""The state on the page of a job or search whose documents cannot be read."""


def task(origin: Origin) -> dict[str, Any]:
    """Return the task's name as ``task`` and its address, relative to the page, as ``task_url``.

    The address is None if this Airflow does not know the task: ``muster run`` has a database of its own.
    The name is empty if no Airflow submitted the job.
    """
    if not origin.dag_id:
        return {"task": "", "task_url": None}
    if origin.by_muster_run:
        return {"task": f"{origin.dag_id}.{origin.stage} by muster run", "task_url": None}
    dag, run, name = (quote(part, safe="") for part in (origin.dag_id, origin.run_id, origin.task_id))
    where = f"../dags/{dag}/runs/{run}/tasks/{name}" + (
        f"/mapped/{origin.map_index}" if origin.map_index >= 0 else ""
    )
    return {"task": f"{origin.dag_id} · {origin.stage}", "task_url": where}
