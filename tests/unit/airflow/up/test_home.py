"""What `muster up` tells Airflow, and what an own.cfg says otherwise."""

from __future__ import annotations

import errno
from configparser import RawConfigParser
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.airflow.embedded import database
from muster.airflow.up.api import FoundDags
from muster.airflow.up.database import served
from muster.airflow.up.home import UpHome
from muster.airflow.up.postgres import Postgres
from muster.cli.checks.airflow import maintenance
from muster.cli.up import Screen
from muster.core.errors import MusterError
from muster.core.settings import Settings

FAB = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"


@pytest.fixture
def home(tmp_path: Path) -> UpHome:
    (tmp_path / "dags").mkdir()
    made = UpHome(
        settings=Settings(home=tmp_path / "muster", cache=tmp_path / "cache"),
        dags=tmp_path / "dags",
        port=8080,
    )
    made.make()
    return made


def test_no_password_is_shown_that_another_auth_manager_does_not_know(home: UpHome, capsys: Any) -> None:
    found = FoundDags(dags=(), errors={})
    Screen().ready(home, found, new_password=True)
    assert f"password {home.password()}" in capsys.readouterr().out
    (home.root / "own.cfg").write_text(f"[core]\nauth_manager = {FAB}\n")
    Screen().ready(home, found, new_password=True)
    shown = capsys.readouterr()
    assert f"users and passwords are those of {FAB}" in shown.out
    assert home.password() not in shown.out + shown.err


def test_events_that_come_close_together_are_one_run_with_any_airflow(home: UpHome) -> None:
    assert home.options()["scheduler"]["batch_asset_events"] == "True"


def test_only_a_postgresql_is_given_what_is_postgresql_s(home: UpHome) -> None:
    for url, given in (("postgresql+psycopg2://a@b/c", True), ("sqlite:////tmp/airflow.db", False)):
        options = replace(home, database=url).options()["database"]
        assert ("sql_alchemy_connect_args" in options) is given


def test_a_command_in_own_cfg_names_the_database(home: UpHome) -> None:
    """Airflow takes an address in airflow.cfg before a command, so there may be none."""
    (home.root / "own.cfg").write_text("[database]\nsql_alchemy_conn_cmd = cat /run/secrets/database\n")
    home.prepare()
    written = RawConfigParser()
    written.read(home.root / "airflow.cfg")
    assert not written.has_option("database", "sql_alchemy_conn")
    assert written["database"]["sql_alchemy_conn_cmd"] == "cat /run/secrets/database"
    assert home.configured_database() == ""
    assert "own.cfg does not hold the database's address" in maintenance(home.settings).found


def test_the_database_of_another_airflow_in_this_shell_is_not_migrated(
    home: UpHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://production")
    code = "import os; raise ValueError(os.environ.get('AIRFLOW__DATABASE__SQL_ALCHEMY_CONN', 'none'))"
    monkeypatch.setattr(
        database,
        "_MIGRATION",
        "import sys\ntry:\n    {code}\nexcept Exception as error:\n    sys.exit(str(error))",
    )
    with pytest.raises(MusterError, match=r"cannot be migrated: none$"):
        database.migrate_by(code, home.environment())


def test_an_error_of_what_runs_on_the_database_is_not_the_database_s(
    home: UpHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Postgres, "make", lambda *_: False)
    monkeypatch.setattr(Postgres, "running", lambda _: nullcontext())
    monkeypatch.setattr("muster.airflow.up.database._migrate", lambda *_: None)
    with pytest.raises(OSError, match="fork"), served(home, lambda _: None):
        raise OSError(errno.EAGAIN, "fork")
