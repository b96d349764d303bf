"""What `muster up` tells Airflow, and what an own.cfg says otherwise."""

from __future__ import annotations

import errno
from configparser import RawConfigParser
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.disk import own_disk

from muster.airflow.embedded import database
from muster.cli.checks.command import maintenance, pools
from muster.core.errors import MusterError, SpecError
from muster.core.settings import Settings
from muster.ext.up.commands import Screen
from muster.ext.up.home import UpHome
from muster.ext.up.postgres import Postgres
from muster.ext.up.site import FoundDags, served

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


def test_a_command_in_own_cfg_names_the_database(home: UpHome) -> None:
    """Airflow takes an address in airflow.cfg before a command, so there may be none."""
    (home.root / "own.cfg").write_text("[database]\nsql_alchemy_conn_cmd = cat /run/secrets/database\n")
    home.prepare()
    written = RawConfigParser()
    written.read(home.root / "airflow.cfg")
    assert not written.has_option("database", "sql_alchemy_conn")
    assert written["database"]["sql_alchemy_conn_cmd"] == "cat /run/secrets/database"
    assert home.configured_database() == ""
    assert (
        "own.cfg does not hold the database's address; muster volumes gc" in maintenance(home.settings).found
    )
    assert pools(home.settings).found == "own.cfg does not hold the database's address"


def test_the_database_of_another_airflow_in_this_shell_is_not_migrated(
    home: UpHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://production")
    code = "import os; raise ValueError(os.environ.get('AIRFLOW__DATABASE__SQL_ALCHEMY_CONN', 'none'))"
    monkeypatch.setattr(
        database,
        "MIGRATION",
        "import sys\ntry:\n    {code}\nexcept Exception as error:\n    sys.exit(str(error))",
    )
    with pytest.raises(MusterError, match=r"cannot be migrated: none$"):
        database.migrate_by(code, home.environment())


def test_an_error_of_what_runs_on_the_database_is_not_the_database_s(
    home: UpHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Postgres, "make", lambda *_: False)
    monkeypatch.setattr(Postgres, "running", lambda _: nullcontext())
    monkeypatch.setattr("muster.ext.up.site.migrate", lambda *_: None)
    with pytest.raises(OSError, match="fork"), served(home, lambda _: None):
        raise OSError(errno.EAGAIN, "fork")


def configured(home: UpHome) -> dict[str, str]:
    home.prepare()
    parser = RawConfigParser()
    parser.read(home.root / "airflow.cfg")
    return dict(parser["database"])


@pytest.mark.parametrize(
    ("own", "database", "found"),
    [
        (
            "sql_alchemy_conn = postgresql://a/b",
            "postgresql://c/d",
            "--database names one database, and .*another",
        ),
        ("sql_alchemy_conn_cmd = cat url", "postgresql://c/d", "another under sql_alchemy_conn_cmd"),
        (
            "sql_alchemy_conn = postgresql://a/b\nsql_alchemy_conn_cmd = cat url",
            "",
            "under sql_alchemy_conn and sql_alchemy_conn_cmd: leave one of them out",
        ),
    ],
)
def test_two_names_of_a_database_are_refused_before_anything_is_written(
    home: UpHome, own: str, database: str, found: str
) -> None:
    (home.root / "own.cfg").write_text(f"[database]\n{own}\n")
    with pytest.raises(SpecError, match=found):
        replace(home, database=database).prepare()
    assert not (home.root / "airflow.cfg").exists()


def test_a_connection_to_a_named_postgresql_is_bounded(home: UpHome) -> None:
    """However it is named: else a server that is lost in the middle holds Airflow for hours."""
    bounded = "muster.ext.up.postgres.PATIENCE"
    assert "sql_alchemy_connect_args" not in configured(home), "its own ends with the machine"
    assert (
        configured(replace(home, database="postgresql+psycopg2://a/b"))["sql_alchemy_connect_args"] == bounded
    )
    own = home.root / "own.cfg"
    own.write_text("[database]\nsql_alchemy_conn = postgresql+psycopg2://a/b\n")
    assert configured(home)["sql_alchemy_connect_args"] == bounded
    own.write_text("[database]\nsql_alchemy_conn = sqlite:////tmp/a.db\n")
    assert "sql_alchemy_connect_args" not in configured(home), "psycopg2 alone knows them"
    own.unlink()
    assert "sql_alchemy_connect_args" not in configured(replace(home, database="sqlite:////tmp/a.db"))


def test_a_home_on_a_full_disk_is_said(home: UpHome, tmp_path: Path) -> None:
    with own_disk(tmp_path, size_mib=1) as disk:
        there = replace(home, settings=replace(home.settings, home=disk.mount / "muster"))
        there.make()
        disk.fill()
        with pytest.raises(SpecError, match=r"MUSTER_HOME .* cannot be written: .*No space left"):
            there.prepare()
