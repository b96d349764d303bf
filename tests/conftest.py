"""A home for the Airflow of the test session, before anybody imports it: Airflow reads where it lives only once."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from muster.airflow.embedded.home import EmbeddedHome
from muster.core.settings import Settings

_HOME = pytest.StashKey[EmbeddedHome]()


def pytest_configure(config: pytest.Config) -> None:
    """Name the home; it is made ready, which takes longer, for the tests that ask for it."""
    root = Path(tempfile.mkdtemp(prefix="muster-airflow-"))
    (root / "dags").mkdir()
    settings = Settings(home=root / ".muster", cache=Settings.load().cache)
    home = config.stash[_HOME] = EmbeddedHome(settings=settings, dags=root / "dags")
    os.environ.update(
        {name: value for name, value in home.environment().items() if name.startswith("AIRFLOW")}
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave nothing behind."""
    shutil.rmtree(config.stash[_HOME].dags.parent, ignore_errors=True)


@pytest.fixture(scope="session")
def home(pytestconfig: pytest.Config) -> EmbeddedHome:
    """Make this process an Airflow."""
    made = pytestconfig.stash[_HOME]
    made.enter()
    return made
