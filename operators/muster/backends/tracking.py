"""The MLflow runs that jobs on this machine tracked: where they are kept, and where ``muster mlflow`` shows one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

PORT = 5000
TAG = "muster.job_id"
_FIND = """
SELECT runs.experiment_id, runs.run_uuid FROM runs JOIN tags ON tags.run_uuid = runs.run_uuid
WHERE tags.key = ? AND tags.value = ? ORDER BY runs.start_time DESC LIMIT 1
"""


def tracking_database(home: Path) -> Path:
    """The file to which ``MLFLOW_TRACKING_URI`` leads in a job, unless its task says otherwise.

    :param home: MUSTER_HOME.
    """
    return home / "mlflow" / "mlflow.db"


def tracking_uri(database: Path) -> str:
    """What ``MLFLOW_TRACKING_URI`` says of it."""
    return f"sqlite:///{database}"


def shown_run(home: Path, job_id: str) -> str:
    """Where MLflow's page shows the newest run of a job, below the page's address; empty where it tracked none here."""
    database = tracking_database(home)
    if not database.is_file():
        return ""
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            found = connection.execute(_FIND, (TAG, job_id)).fetchone()
    except sqlite3.OperationalError:  # MLflow makes its tables just now: no run of this job is whole yet
        return ""
    return f"#/experiments/{found[0]}/runs/{found[1]}" if found else ""
