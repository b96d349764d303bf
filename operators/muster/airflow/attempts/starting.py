"""What muster does where a component of Airflow starts: it is told by a listener of the plugin's.

Airflow loads this in every one of its processes, tasks included, so nothing heavy is imported here.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from airflow.listeners import hookimpl

_for_the_fork = threading.Event()  # set while a triggerer has not forked yet


@hookimpl
def on_starting(component: Any) -> None:
    """Note clears that Airflow itself would forget, and in a triggerer begin to compare jobs with their tasks."""
    jobs = sys.modules.get("airflow.jobs.job")  # a task's process has not loaded it, and need not
    if jobs is None or not isinstance(component, jobs.Job):
        return
    from muster.airflow.attempts.clearing import remember_clears

    remember_clears()
    if sys.argv[1:2] == ["triggerer"] and not _for_the_fork.is_set():
        _for_the_fork.set()
        # The triggerer forks the process of its triggers next. A thread that works by then could hold a lock, which
        # that process would never get back; so ours begins after the fork.
        os.register_at_fork(after_in_parent=_begin_once)


def _begin_once() -> None:
    if _for_the_fork.is_set():
        _for_the_fork.clear()
        threading.Thread(target=_reconcile, name="muster-reconciler", daemon=True).start()


def _reconcile() -> None:
    from muster.airflow.attempts.reconciling import Reconciler
    from muster.airflow.connection import connection_id
    from muster.airflow.site import instance, open_backend
    from muster.core.settings import Settings

    def used() -> bool:
        settings = Settings.load()
        return bool(connection_id()) or settings.cluster is not None or settings.store.is_dir()

    Reconciler(open_backend, lambda: instance(Settings.load()), used=used).run(threading.Event())
