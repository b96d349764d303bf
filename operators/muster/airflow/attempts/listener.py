"""The listener of muster's plugin: Airflow calls it when one of its components starts.

Airflow loads this in every one of its processes, tasks included, so nothing heavy is imported here.

It changes tasks of muster's operators alone, and runs of Dags that have some; ``[muster] plugin = False`` turns it off.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from airflow.listeners import hookimpl

from muster.airflow.attempts.task_state import BACKFILL

# A templated field of every operator that begins jobs, an author's subclass and a mapped one too, and of no other operator. The
# scheduler loads no links of operators, and the module of an operator's class is Airflow's private matter.
_OURS = "pod_override"

_for_the_fork = threading.Event()  # set while a triggerer has not forked yet


@hookimpl
def on_starting(component: Any) -> None:
    """Note clears that Airflow itself would forget, and in a triggerer begin to compare jobs with their tasks."""
    jobs = sys.modules.get("airflow.jobs.job")  # a task's process has not loaded it, and need not
    if jobs is None or not isinstance(component, jobs.Job):
        return
    from muster.airflow.attempts.database import remember_clears

    remember_clears()
    if sys.argv[1:2] == ["triggerer"] and not _for_the_fork.is_set():
        _for_the_fork.set()
        # The triggerer forks the process of its triggers next. A thread that works by then could hold a lock, which
        # that process would never get back; so ours begins after the fork.
        os.register_at_fork(after_in_parent=_begin_once)


@hookimpl
def on_dag_run_running(dag_run: Any, msg: str) -> None:  # noqa: ARG001 - the signature is Airflow's
    """Write into a run's conf to which backfill it belongs, in the scheduler: Airflow does not tell its tasks.

    Only for Dags with jobs of muster: these make what a person cleared anew, and compare what a backfill cleared.
    """
    number, dag = getattr(dag_run, "backfill_id", None), getattr(dag_run, "dag", None)
    if number is None or dag is None:
        return
    if any(_OURS in task.template_fields for task in dag.task_dict.values()):
        dag_run.conf = {**(dag_run.conf or {}), BACKFILL: number}


def _begin_once() -> None:
    if _for_the_fork.is_set():
        _for_the_fork.clear()
        threading.Thread(target=_reconcile, name="muster-reconciler", daemon=True).start()


def _reconcile() -> None:
    from muster.airflow.attempts.reconciling import Reconciler
    from muster.airflow.site import instance, open_backend, open_place
    from muster.core.settings import Settings

    Reconciler(open_backend, lambda: instance(Settings.load()), used=lambda: open_place().used).run(
        threading.Event()
    )
