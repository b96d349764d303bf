"""Deletes what ended runs left in an Airflow's database and below its logs: ``python -m muster.airflow.embedded.cleaning``.

Airflow deletes its rows itself, by ``airflow db clean``, which knows no run that goes on: so a Dag of which one still needs an old row
is left out whole.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from muster.airflow.upstream import internals
from muster.core.locks import locked_if_free

DAYS = 30.0
DAY_SECONDS = 86_400.0
MARKER = "cleaned"
"""The file in AIRFLOW_HOME that is touched at the end of each cleaning."""

_OF_NO_RUN = (
    "callback",
    "connection_test_request",
    "job",
    "log",
    "partitioned_asset_key_log",
    "revoked_token",
)


def due_in(root: Path) -> float:
    """Return the seconds until a home is to be cleaned: once a day, for the first time a day after this was asked first."""
    marker = root / MARKER
    if not marker.exists():
        marker.touch()
    return marker.stat().st_mtime + DAY_SECONDS - time.time()


def main() -> None:
    """Clean the Airflow of AIRFLOW_HOME, by ``run_days`` under ``[muster]``."""
    from muster.airflow.upstream.internals import AIRFLOW_HOME, conf

    root, days = Path(AIRFLOW_HOME), conf.getfloat("muster", "run_days", fallback=DAYS)
    with locked_if_free(root / "cleaning.lock") as mine:
        if mine and days > 0:
            clean(Path(conf.get("logging", "base_log_folder")), before=time.time() - days * DAY_SECONDS)
            (root / MARKER).touch()


def clean(logs: Path, *, before: float) -> None:
    """Delete rows and logs of runs that ended, and began before a moment, in seconds since the epoch.

    A Dag is left out while one of its runs may need an older row, and as long as its newest run is older: that one stays.

    :raises RuntimeError: Airflow could not clean a table.
    """
    moment = datetime.fromtimestamp(before, UTC)
    needed, events = _needed(moment), _oldest_event(moment)
    _clean_tables(("dag_run",), moment, but=needed)  # and what belongs to one
    _check_gone(moment, but=needed)
    _clean_tables(_OF_NO_RUN, moment, words=["--error-on-cleanup-failure"])
    _clean_tables(("asset_event",), events, words=["--error-on-cleanup-failure"])
    delete_logs(logs, before=before, but=needed)


def _clean_tables(
    tables: Iterable[str], before: datetime, *, but: Collection[str] = (), words: Collection[str] = ()
) -> None:

    sys.argv = ["airflow", "db", "clean", "--yes", "--skip-archive", *words]
    sys.argv += ["--batch-size", "10000"]  # others wait for SQLite meanwhile
    sys.argv += ["--tables", ",".join(tables), "--clean-before-timestamp", before.isoformat()]
    sys.argv += ["--exclude-dag-ids", ",".join(sorted(but))] if but else []
    internals.main()  # type: ignore[no-untyped-call]


def _check_gone(before: datetime, *, but: Collection[str]) -> None:
    """Look at what is left: with Dags to leave out Airflow fails at each table that names no Dag, whose rows go with their runs'.

    :raises RuntimeError: old runs are left, of which Airflow keeps one a Dag.
    """
    from sqlalchemy import func, select

    from muster.airflow.upstream.internals import DagRun, create_session

    old = select(DagRun.dag_id).where(DagRun.start_date < before).group_by(DagRun.dag_id)
    with create_session() as session:
        left = set(session.scalars(old.having(func.count() > 1))) - set(but)
    if left:
        raise RuntimeError(f"airflow db clean left old runs of {', '.join(sorted(left))}")


def _needed(before: datetime) -> set[str]:
    """Return the Dags whose old rows stay."""
    from airflow.utils.state import State
    from sqlalchemy import func, or_, select

    from muster.airflow.upstream.internals import DagRun, TaskInstance, create_session

    goes_on = DagRun.state.in_(State.unfinished_dr_states)
    queries = [
        select(DagRun.dag_id).where(goes_on, DagRun.start_date < before),
        # A person cleared a part of it: what was not cleared is older than the run's new beginning.
        select(DagRun.dag_id)
        .join(DagRun.task_instances)
        .where(TaskInstance.start_date < before, or_(goes_on, DagRun.start_date >= before)),
        select(DagRun.dag_id).group_by(DagRun.dag_id).having(func.max(DagRun.start_date) < before),
    ]
    with create_session() as session:
        return {dag_id for query in queries for dag_id in session.scalars(query)}


def _oldest_event(before: datetime) -> datetime:
    """Return the time of the oldest event that a run still needs, or one that waits for further events; at the latest `before`."""
    from airflow.utils.state import State
    from sqlalchemy import func, select

    from muster.airflow.upstream.internals import AssetDagRunQueue, AssetEvent, DagRun, create_session

    of_runs = AssetEvent.created_dagruns.any(DagRun.state.in_(State.unfinished_dr_states))
    with create_session() as session:
        consumed = session.scalar(select(func.min(AssetEvent.timestamp)).where(of_runs))
        waits = session.scalar(select(func.min(AssetDagRunQueue.created_at)))  # written just after its event
        return min(before, consumed or before, waits - timedelta(hours=1) if waits else before)


def delete_logs(logs: Path, *, before: float, but: Collection[str] = ()) -> None:
    """Delete log files that were written last before a moment, and folders that are empty then.

    What processes of Airflow's hold open stays: those files are at the top, and have a size after which they are begun anew.

    :param but: Dags whose logs stay.
    """
    for entry in list(logs.iterdir()):
        if entry.is_dir() and entry.name not in {f"dag_id={dag_id}" for dag_id in but}:
            _delete_old(entry, before)
        elif entry.suffix == ".old" and entry.stat().st_mtime < before:
            entry.unlink(missing_ok=True)


def _delete_old(folder: Path, before: float) -> None:
    """Delete old files below a folder, and the folder where nothing is left; one that was changed since holds a new one."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                _delete_old(Path(entry.path), before)
            elif entry.stat(follow_symlinks=False).st_mtime < before:
                Path(entry.path).unlink(missing_ok=True)
    with suppress(OSError):  # it is not empty
        folder.rmdir()


if __name__ == "__main__":
    main()
