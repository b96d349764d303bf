"""Airflow's database in a home of muster: SQLite, migrated once per release and then copied."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from muster.core.errors import MusterError
from muster.core.interpreters import python_command
from muster.core.locks import locked

DATABASE = "airflow.db"
_MIGRATION_SECONDS = 600.0
MIGRATION = """
import sys
try:
    from muster.airflow.upstream.internals import initdb
    {code}
except Exception as error:
    sys.exit(" ".join(str(getattr(error, "orig", None) or error).split()) or repr(error))
"""


def migrate(root: Path, *, cache: Path, environment: Mapping[str, str]) -> None:
    """Ensure that ``root/airflow.db`` exists and has this release's schema; a crash leaves no partial one.

    :param root: an AIRFLOW_HOME.
    :param cache: the folder of each release's migrated template: a migration takes seconds.
    :param environment: this process's, with Airflow's configuration.
    :raises MusterError: Airflow cannot migrate it.
    """
    release, database = version("apache-airflow"), root / DATABASE
    marker = root / f"migrated-{release}"
    if marker.exists() and database.exists():
        return
    with locked(root / "migration.lock"):
        if database.exists():  # of an older release, or without its marker after a crash
            migrate_by("initdb()", environment, url=_url(database))
        else:
            _copy_whole(_template(cache, release, environment), database)
        marker.touch()


def _template(cache: Path, release: str, environment: Mapping[str, str]) -> Path:
    """Return a migrated, unused database from the cache, created if missing."""
    template = cache / "airflow" / f"airflow-{release}.db"
    if not template.exists():
        template.parent.mkdir(parents=True, exist_ok=True)
        fresh = template.with_name(f".{template.name}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        migrate_by("initdb()", environment, url=_url(fresh))
        fresh.replace(template)
    return template


def migrate_by(code: str, environment: Mapping[str, str], *, url: str = "") -> None:
    """Create or migrate a database, in a process of its own: this one may have Airflow configured for another.

    :param code: Python that does it, with Airflow's ``initdb``.
    :param environment: all that it has, as a home's: a variable of this shell may name another Airflow's database.
    :param url: the database, if it is not the configured one.
    :raises MusterError: Airflow cannot.
    """
    place = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url} if url else {}
    command = python_command("-c", MIGRATION.format(code=code))
    try:
        ended = subprocess.run(
            command,
            env={**environment, **place},
            capture_output=True,
            text=True,
            check=False,
            timeout=_MIGRATION_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise MusterError(
            f"Airflow's database cannot be migrated: it has not ended after {_MIGRATION_SECONDS:.0f} s"
        ) from None
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


def _url(database: Path) -> str:
    return f"sqlite:///{database}"
