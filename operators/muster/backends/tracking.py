"""The MLflow runs of jobs: where those of this machine are kept, and where a job's run is shown."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from muster.core.errors import NotFound
from muster.core.job import MLFLOW_TAG
from muster.core.progress import MLFLOW

if TYPE_CHECKING:
    from muster.volumes.protocols import Ledger

URI = "MLFLOW_TRACKING_URI"
PORT = 5000
SHOWN_AT = f"http://127.0.0.1:{PORT}"
"""The address of ``muster mlflow`` unless it was given another port."""
_FIND = """
SELECT runs.experiment_id, runs.run_uuid FROM runs JOIN tags ON tags.run_uuid = runs.run_uuid
WHERE tags.key = ? AND tags.value = ? ORDER BY runs.start_time DESC LIMIT 1
"""


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """How the ranks of a job reach MLflow.

    :param variables: what they find in their environment; :data:`URI` is among them where any place is set.
    :param chosen: whether the author set that place, and it is not this machine's file.
    :param python: of the job's image, where that is on this machine.
    :param containers: whether images are containers, so that there never is such a Python.
    :param hidden: the variables of MLflow whose values only pods are given.
    """

    variables: Mapping[str, str]
    chosen: bool
    python: Path | None = None
    containers: bool = False
    hidden: tuple[str, ...] = ()


def run_link(ledger: Ledger, job_id: str, *, home: Path, shown_at: str) -> str:
    """Return the address of a job's run: that of which it told, or else the one that it tracked on this machine.

    Empty where it has none, and where gc deleted the job's ledger entry and the run is elsewhere.

    :param home: MUSTER_HOME. `shown_at`: the address of ``muster mlflow``; empty where nothing answers there.
    """
    try:
        links = ledger.status(job_id).links
    except NotFound:
        links = {}
    told = (url for title, url in links.items() if title.lower().startswith(MLFLOW.lower()))
    run = shown_run(home, job_id)
    return next(told, f"{shown_at}/{run}" if run and shown_at else "")


def answers(url: str) -> bool:
    """Whether MLflow answers at an address of this machine, within half a second."""
    from http.client import HTTPException  # slow to import, and the command imports this module
    from urllib.request import ProxyHandler, build_opener

    try:
        with build_opener(ProxyHandler({})).open(f"{url}/health", timeout=0.5) as response:
            return bool(response.status == 200)
    except (OSError, HTTPException):
        return False


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
            found = connection.execute(_FIND, (MLFLOW_TAG, job_id)).fetchone()
    except sqlite3.OperationalError:  # MLflow makes its tables just now: no run of this job is whole yet
        return ""
    return f"#/experiments/{found[0]}/runs/{found[1]}" if found else ""
