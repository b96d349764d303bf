"""A scheduler of Airflow's own that finds tasks in every state: what becomes of them, as JSON.

Each state is found twice: of a process that was lost, and of one that was cleared before. The second Dag has a task of
muster's beside a plain one. ``python foreign.py HOME`` has a database of its own in that folder; the environment says
whether muster's plugin is on.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from muster.airflow.embedded.database import DATABASE, migrate
from muster.core.settings import Settings

DAGS = """
from datetime import datetime
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG
from muster.airflow import JobOperator

class Own(JobOperator):
    pass

STATES = {states!r}
with DAG("foreign", schedule=None, start_date=datetime(2026, 1, 1)):
    for name in STATES:
        PythonOperator(task_id=name, python_callable=print)
        EmptyOperator(task_id=name + "_again", retries=2)
with DAG("beside", schedule=None, start_date=datetime(2026, 1, 1)):
    EmptyOperator(task_id="plain")
    Own(task_id="train", image="python", command=["true"], retries=0)
"""
STATES = (
    "none", "scheduled", "queued", "running", "restarting", "deferred", "up_for_retry", "up_for_reschedule",
    "success", "failed", "skipped", "upstream_failed", "removed",
)  # fmt: skip


def main(home: Path) -> None:
    (home / "dags").mkdir(parents=True)
    (home / "dags" / "dags.py").write_text(DAGS.format(states=STATES))
    os.environ |= {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/{DATABASE}",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
    }
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag, sync_bag_to_db
    from airflow.serialization.serialized_objects import DagSerialization

    migrate(home, cache=Settings.load().cache, environment=dict(os.environ))
    DagBundlesManager().sync_bundles_to_db()
    bag = BundleDagBag(dag_folder=home / "dags", bundle_path=home / "dags", bundle_name="dags-folder")
    assert not bag.import_errors, bag.import_errors
    sync_bag_to_db(bag, "dags-folder", None)
    dags = [
        DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag)) for dag in bag.dags.values()
    ]
    _leave_behind(dags)
    _schedule_once()
    json.dump(_seen(), sys.stdout)


def _leave_behind(dags: Any) -> None:
    """Enter a run of each Dag, its tasks in their states, of a scheduler that is gone."""
    from airflow.jobs.job import Job
    from airflow.models.task_state_store import TaskStateStoreModel
    from airflow.models.taskinstance import clear_task_instances
    from airflow.sdk import timezone
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    with create_session() as session:
        gone = Job(job_type="SchedulerJob", state="failed")
        session.add(gone)
        session.flush()
        for dag in dags:
            now = timezone.coerce_datetime(timezone.utcnow())
            run = dag.create_dagrun(
                run_id="r", run_type=DagRunType.MANUAL, triggered_by=DagRunTriggeredByType.TEST, state="running",
                logical_date=now, data_interval=(now, now), run_after=now, conf={"own": 1}, start_date=now, session=session,
            )  # fmt: skip
            run.backfill_id = None
            tasks = run.get_task_instances(session=session)
            for ti in tasks:
                state = ti.task_id.removesuffix("_again") if dag.dag_id == "foreign" else "running"
                ti.state, ti.queued_by_job_id, ti.try_number = None if state == "none" else state, gone.id, 1
            session.add(
                TaskStateStoreModel(
                    dag_run_id=run.id, dag_id="beside", run_id="r", task_id="train", key="muster", value="{}"
                )
            )
            session.flush()
            cleared = [ti for ti in tasks if ti.task_id.endswith("_again") or dag.dag_id == "beside"]
            clear_task_instances(cleared, session, dag_run_state="running")


def _schedule_once() -> None:
    """Start a scheduler as Airflow does, with every plugin's listeners, and have it take over what the last one left."""
    from airflow.jobs.job import Job, run_job
    from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    runner = SchedulerJobRunner(Job())

    def once() -> None:
        with create_session() as session:
            for run in session.scalars(select(DagRun)):
                run.notify_dagrun_state_changed(msg="started")
        runner.adopt_or_reset_orphaned_tasks()

    run_job(runner.job, once)


def _seen() -> dict[str, Any]:
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    found: dict[str, Any] = {}
    with create_session() as session:
        for run in session.scalars(select(DagRun)):
            found[run.dag_id] = [str(run.state), run.conf]
        for ti in session.scalars(select(TaskInstance).execution_options(include_all_attempts=True)):
            name = f"{ti.dag_id}.{ti.task_id}"
            state = None if ti.state is None else str(ti.state)
            found.setdefault(name, []).append([ti.try_number, state, ti.max_tries])
    return {name: sorted(value, key=str) if "." in name else value for name, value in sorted(found.items())}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
