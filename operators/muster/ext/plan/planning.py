"""``muster plan``: says what a run of a Dag would do. Nothing is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.airflow.embedded.home import EmbeddedHome, quieten
from muster.core.settings import Settings
from muster.ext.plan.plan import RunPlan

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from muster.backends.base import Backend


def plan_dag(
    dag_id: str,
    *,
    params: Mapping[str, Any] | None = None,
    cache: bool = True,
    settings: Settings | None = None,
    dags: Path | None = None,
) -> RunPlan:
    """Return what a run of a Dag would do now; nothing is submitted or built.

    It makes this process an Airflow, as :func:`muster.airflow.embedded.runner.run_dag` does.

    :param params: as of `run_dag`. :param cache: False plans a run that keeps nothing, as ``--no-cache``.
    :raises MusterError: no such Dag, a wrong param, a cluster that is away.
    """
    settings = settings or Settings.load()
    home = EmbeddedHome(settings=settings, dags=(dags or Path("dags")).absolute())
    home.enter()
    from muster.airflow.embedded.load import parse
    from muster.airflow.site import connect

    quieten(home.log)
    dag = parse(dag_id, home.dags)
    return plan_of(dag, params or {}, connect(settings), settings, cache=cache)


def plan_of(
    dag: DAG,
    params: Mapping[str, Any],
    backend: Backend,
    settings: Settings,
    *,
    cache: bool = True,
) -> RunPlan:
    """Return what a run of a parsed Dag would do now. :raises SpecError: a wrong param."""
    from muster.airflow.embedded.load import read_params
    from muster.ext.plan.planner import Planner

    given = {**dag.params.dump(), **read_params(dag, params)}
    return Planner(dag, given, backend, settings, cache=cache).plan()
