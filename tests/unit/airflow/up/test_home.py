"""What `muster up` tells Airflow, and what an own.cfg says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.airflow.up.api import FoundDags
from muster.airflow.up.home import UpHome
from muster.cli.up import Screen
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
