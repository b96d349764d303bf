"""The database of the Airflow of ``muster up``: a PostgreSQL of its own, or one that a person names. Both are migrated at its start."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

import muster
from muster.airflow.embedded.database import DATABASE, migrate_by
from muster.core.errors import MusterError, SpecError
from muster.core.locks import locked
from muster.ext.up.components import Component
from muster.ext.up.home import UpHome
from muster.ext.up.postgres import Postgres, check_answer, major_version

_OWN_MIGRATION = "initdb(); from muster.ext.up.waking import install; install()"


@contextmanager
def served(home: UpHome, note: Callable[[str], None]) -> Iterator[Component | None]:
    """Have the home's database answer within the block; yield its server, None where it is not this home's.

    :param note: is told that there is a database of an earlier release, which is read no more.

    :raises SpecError: the data is not this release's, or cannot be written.
    :raises MusterError: it does not answer, or cannot be migrated.
    """
    if home.names_database():
        try:
            check_answer(home.configured_database())
            migrate_by("initdb()", home.environment())  # nothing of muster's: it is a person's
        except MusterError as error:
            raise MusterError(f"{error}: is it what --database or own.cfg should name?") from error
        yield None
        return
    with ExitStack() as opened:
        try:
            new = home.postgres.make(lambda: _template(home))
            if new and (earlier := home.root / DATABASE).exists():
                note(
                    f"Airflow's runs begin anew, in {home.postgres.folder}; earlier ones are in {earlier}: to go on with it, write "
                    f"sql_alchemy_conn = sqlite:///{earlier} under [database] in {home.root / 'own.cfg'}"
                )
            server = opened.enter_context(home.postgres.running())
            migrate(home, home.postgres)
        except OSError as error:
            raise SpecError(f"{home.postgres.folder} cannot be written: {error}") from error
        yield server


def migrate(home: UpHome, postgres: Postgres) -> None:
    """Bring a database to this release of Airflow, once."""
    marker = postgres.folder / f"migrated-{_release()}"
    if not marker.exists():
        migrate_by(_OWN_MIGRATION, home.environment(), url=postgres.url)
        marker.touch()


def _template(home: UpHome) -> Path:
    """Return a migrated, unused data folder from the cache, created if missing: both steps take seconds."""
    cache = home.settings.cache / "airflow"
    template = cache / f"postgres-{major_version()}-{_release()}"
    with locked(cache / "postgres.lock"):
        if not template.exists():
            for left in cache.glob(".postgres-*"):
                shutil.rmtree(left)
            with tempfile.TemporaryDirectory(dir=cache, prefix=".postgres-") as place:
                fresh = Postgres(folder=Path(place, "data"), log=Path(place, "log"))
                fresh.initialise()
                with fresh.running():
                    migrate(home, fresh)
                fresh.folder.replace(template)
    return template


def _release() -> str:
    return f"{version('apache-airflow')}-{muster.__version__}"
