"""Airflow's database in a home of muster: SQLite, migrated once per release and then copied."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Mapping
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

from muster.core.errors import MusterError
from muster.core.interpreters import python_command
from muster.core.locks import locked

DATABASE = "airflow.db"


def migrate(root: Path, *, cache: Path, environment: Mapping[str, str]) -> None:
    """Ensure that ``root/airflow.db`` exists and has this release's schema; a crash leaves no partial one.

    :param root: an AIRFLOW_HOME.
    :param cache: the folder of each release's migrated template: a migration takes seconds.
    :param environment: Airflow's configuration.
    :raises MusterError: Airflow cannot migrate it.
    """
    release, database = version("apache-airflow"), root / DATABASE
    marker = root / f"migrated-{release}"
    if marker.exists() and database.exists():
        return
    with locked(root / "migration.lock"):
        if database.exists():  # of an older release, or without its marker after a crash
            _initialise(database, environment)
        else:
            _copy_whole(_template(cache, release, environment), database)
        marker.touch()


def let_many_write(database: Path) -> None:
    """Switch a database to a write-ahead log, for good: its readers and its writer no longer wait for each other."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")


def _template(cache: Path, release: str, environment: Mapping[str, str]) -> Path:
    """Return a migrated, unused database from the cache, created if missing."""
    template = cache / "airflow" / f"airflow-{release}.db"
    if not template.exists():
        template.parent.mkdir(parents=True, exist_ok=True)
        fresh = template.with_name(f".{template.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        _initialise(fresh, environment)
        fresh.replace(template)
    return template


def _initialise(database: Path, environment: Mapping[str, str]) -> None:
    """Create or migrate a database, in a process of its own: this one may have Airflow configured for another."""
    command = python_command("-c", "from airflow.utils.db import initdb; initdb()")
    place = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{database}"}
    ended = subprocess.run(
        command, env={**os.environ, **environment, **place}, capture_output=True, text=True, check=False
    )
    if ended.returncode:
        last = (ended.stderr.strip() or ended.stdout.strip() or "no message").splitlines()[-1]
        raise MusterError(f"Airflow's database cannot be migrated: {last}")


def _copy_whole(source: Path, target: Path) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copyfile(source, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
