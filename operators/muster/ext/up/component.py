"""One of Airflow's processes, run so that nothing it forks outlives it: ``python -m muster.ext.up.component scheduler``.

It is a fork of ``muster up`` (:mod:`muster.ext.up.preload`), or that program where it cannot be one.

Airflow's processes fork (workers, tasks, parsers, the triggerer's loop) and leave their children behind
when they are killed. From prctl(2): a parent-death signal is sent when the parent ends, and a fork does not
inherit it, so every fork must set it again. A muster job is a new program, not a fork, so it is not
affected: jobs and deployments go on.
"""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module

from muster.airflow.embedded import cleaning
from muster.airflow.upstream import internals
from muster.core.forking import do_and_end
from muster.core.linux import die_with

CLEANING = "cleaning"
"""The one command here that is not Airflow's: it deletes what ended runs left, and ends."""

_JOBS = {"scheduler": "SchedulerJob", "triggerer": "TriggererJob", "dag-processor": "DagProcessorJob"}


def main(words: list[str]) -> None:
    """Become the Airflow command in `words`."""
    _name(words[0])
    forks_die_with_us()
    if words[0] == CLEANING:
        cleaning.main()
        return
    if words[0] in _JOBS:
        _bury_predecessors(_JOBS[words[0]])
    if words[0] == "api-server":
        _build_pages()
    if words[0] in ("dag-processor", "triggerer"):  # they serve the execution API in their own process
        from muster.airflow.upstream.versions import serve_newest_only

        serve_newest_only()
    sys.argv = ["airflow", *words]

    internals.main()  # type: ignore[no-untyped-call]


def _name(component: str) -> None:
    """Show people what this process is: a fork has its parent's command line."""
    from setproctitle import setproctitle

    setproctitle(f"muster up: {component}")


def forks_die_with_us() -> None:
    """Make the kernel kill each process forked after this when its parent ends."""
    forking = threading.local()

    def before() -> None:
        # The signal follows the forking thread, and only the main thread lives as long as its process.
        main = threading.current_thread() is threading.main_thread()
        forking.parent = os.getpid() if main else None

    def in_child() -> None:
        if forking.parent is not None:
            die_with(forking.parent)

    os.register_at_fork(before=before, after_in_child=in_child)


def _bury_predecessors(job_type: str) -> None:
    """Tell Airflow's database that an earlier process of this kind is dead.

    Airflow would notice by the age of its heartbeat; here there is one of a kind at a time, so it is
    certain. The new scheduler reassigns its predecessor's tasks at once, the triggerer its triggers.
    """
    from sqlalchemy import update

    from muster.airflow.upstream.internals import Job, JobState, create_session, timezone

    with create_session() as session:
        session.execute(
            update(Job)
            .where(Job.job_type == job_type, Job.state == JobState.RUNNING)
            .values(state=JobState.FAILED, end_date=timezone.utcnow())
        )


def _build_pages() -> None:
    """Build what the API server serves, in a third of the time that Airflow takes."""
    from muster.airflow.embedded.preload import import_routes, no_collections
    from muster.airflow.upstream.fields import made_when_used, read_when_asked
    from muster.airflow.upstream.versions import speak_newest_only

    import_routes()
    with no_collections():
        os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"  # as Airflow does, before it loads plugins
        with made_when_used(), read_when_asked():
            speak_newest_only()
            import_module("airflow.api_fastapi.core_api.routes.public")
            import_module("airflow.api_fastapi.core_api.routes.ui")
        internals.get_fastapi_plugins()  # others' apps are checked where they are made
        with made_when_used(), read_when_asked():
            import_module("airflow.api_fastapi.main")


if __name__ == "__main__":
    do_and_end(lambda: main(sys.argv[1:]))
