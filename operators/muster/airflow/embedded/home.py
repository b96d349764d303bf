"""Makes this process an Airflow of its own: its home, its settings, its migrated database.

Everything here happens before Airflow is imported, because it reads its configuration then. The
first migration takes seconds, so its outcome is kept in the cache, one for each release of Airflow,
and every later home begins with a copy.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from muster.core.errors import MusterError, SpecError
from muster.core.settings import Settings

DATABASE = "airflow.db"


@dataclass(frozen=True, kw_only=True)
class EmbeddedHome:
    """One AIRFLOW_HOME below MUSTER_HOME.

    :param dags: the folder whose Dags it knows.
    """

    settings: Settings
    dags: Path

    @property
    def root(self) -> Path:
        """AIRFLOW_HOME."""
        return self.settings.home / "airflow"

    @property
    def database(self) -> Path:
        """Its SQLite file."""
        return self.root / DATABASE

    def log(self, run_id: str) -> Path:
        """Where Airflow's log of one run goes."""
        return self.root / "logs" / f"{run_id}.log"

    def environment(self) -> dict[str, str]:
        """What Airflow is configured with: quiet, local, and nothing of another Airflow on this machine."""
        return {
            "AIRFLOW_HOME": str(self.root),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self.database}",
            "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.root / "logs"),
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            "MUSTER_HOME": str(self.settings.home),
            "MUSTER_CACHE": str(self.settings.cache),
        }

    def enter(self) -> None:
        """Take the place over in this process, for good, and see to it that the database is migrated.

        :raises SpecError: there is no folder of Dags, or the home cannot be written.
        :raises MusterError: Airflow was imported already with another home.
        """
        if not self.dags.is_dir():
            raise SpecError(
                f"no folder of Dags at {self.dags}: go to the folder that holds dags/, or name it with --dags"
            )
        before = os.environ.get("AIRFLOW_HOME")
        if "airflow" in sys.modules and before != str(self.root):
            raise MusterError(f"Airflow was imported with AIRFLOW_HOME={before}; this run needs {self.root}")
        _forget_airflow(os.environ)
        os.environ.update(self.environment())
        try:
            (self.root / "logs").mkdir(parents=True, exist_ok=True)
            self._migrate()
        except OSError as error:
            raise SpecError(f"MUSTER_HOME {self.settings.home} cannot be written: {error}") from error

    def _migrate(self) -> None:
        release = version("apache-airflow")
        marker = self.root / f"migrated-{release}"
        if marker.exists() and self.database.exists():
            return
        template = self.settings.cache / "airflow" / f"airflow-{release}.db"
        with _exclusive(self.root / "migration.lock"):
            if not self.database.exists() and template.exists():
                _copy_whole(template, self.database)
            else:
                _migrate_here()
                if not template.exists():
                    template.parent.mkdir(parents=True, exist_ok=True)
                    _snapshot(self.database, template)
            marker.touch()


def quieten(log: Path) -> None:
    """Send what Airflow and its tasks log to a file, so that the terminal is the listener's."""
    from airflow._shared.logging import configure_logging

    log.parent.mkdir(parents=True, exist_ok=True)
    configure_logging(log_level="INFO", colors=False, output=log.open("a", encoding="utf-8", buffering=1))


def _forget_airflow(environment: Mapping[str, str]) -> None:
    """Drop the settings of another Airflow; secrets and connections of this shell stay."""
    for name in list(environment):
        if name.startswith("AIRFLOW__"):
            del os.environ[name]


def _migrate_here() -> None:
    from airflow.utils.db import initdb

    initdb()


def _snapshot(database: Path, target: Path) -> None:
    """Keep a migrated database that nobody used yet, whole or not at all."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(temporary)) as copy:
        (runs,) = source.execute("select count(*) from dag_run").fetchone()
        source.backup(copy)
    if runs:
        temporary.unlink()
    else:
        temporary.replace(target)


def _copy_whole(source: Path, target: Path) -> None:
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.copyfile(source, temporary)
    temporary.replace(target)


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    from muster.backends.local.places import locked

    with locked(path):
        yield
