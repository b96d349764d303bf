"""Runs of Dags that wait in Airflow's own queue, before any job."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState
from sqlalchemy import func, select


def runs_waiting(dags: Iterable[str], *, permitted: Callable[[str], bool]) -> list[dict[str, Any]]:
    """Return the number of waiting runs of each Dag that has some, and what holds them there."""
    mine = [dag_id for dag_id in dags if permitted(dag_id)]
    going = (DagRunState.QUEUED, DagRunState.RUNNING)
    with create_session() as session:
        found = session.execute(
            select(DagRun.dag_id, DagRun.state, func.count())
            .where(DagRun.state.in_(going), DagRun.dag_id.in_(mine))
            .group_by(DagRun.dag_id, DagRun.state)
        )
        counts = {(dag_id, state): many for dag_id, state, many in found}
        waiting = sorted(dag_id for dag_id, state in counts if state == DagRunState.QUEUED)
        known = {
            dag.dag_id: dag for dag in session.scalars(select(DagModel).where(DagModel.dag_id.in_(waiting)))
        }
    return [
        {
            "dag_id": dag_id,
            "waiting": counts[dag_id, DagRunState.QUEUED],
            "running": counts.get((dag_id, DagRunState.RUNNING), 0),
            "most": known[dag_id].max_active_runs if dag_id in known else None,
            "paused": bool(known[dag_id].is_paused) if dag_id in known else False,
        }
        for dag_id in waiting
    ]
