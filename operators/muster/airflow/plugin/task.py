"""The task that asked for something, as the page names it, and where Airflow's UI shows it."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from muster.core.job import Origin


def task(origin: Origin) -> dict[str, Any]:
    """Return the task's name as ``task`` and its address, relative to the page, as ``task_url``.

    The address is None where this Airflow knows no such task: ``muster run`` keeps a database of its own.
    The name is empty where no Airflow asked.
    """
    if not origin.dag_id:
        return {"task": "", "task_url": None}
    mapped = origin.map_index >= 0
    index = f"[{origin.map_index}]" if mapped else ""
    if origin.by_muster_run:
        return {"task": f"{origin.dag_id}.{origin.task_id}{index} by muster run", "task_url": None}
    dag, run, name = (quote(part, safe="") for part in (origin.dag_id, origin.run_id, origin.task_id))
    where = f"../dags/{dag}/runs/{run}/tasks/{name}" + (f"/mapped/{origin.map_index}" if mapped else "")
    return {"task": f"{origin.dag_id} · {origin.task_id}{index}", "task_url": where}
