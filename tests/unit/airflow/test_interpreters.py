"""Where Airflow's tasks learn which Python runs an image's jobs on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from muster.airflow.embedded.home import EmbeddedHome
from muster.airflow.site import interpreter_of, interpreter_path
from muster.core.errors import SpecError
from muster.core.settings import Settings


@pytest.fixture
def settings(tmp_path: Path, home: EmbeddedHome) -> Settings:
    return Settings.load({"MUSTER_HOME": str(tmp_path), "MUSTER_INTERPRETER_TRAIN": "/of/the/variable"})


def test_airflow_s_option_counts_where_no_variable_is_set(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TRAIN", "MY-ETL"):
        monkeypatch.setenv(f"AIRFLOW__MUSTER__INTERPRETER.{name}", "/of/the/option")
    assert interpreter_path("train", settings) == Path("/of/the/variable")
    assert interpreter_path("my-etl", settings) == Path("/of/the/option")
    assert interpreter_path("serve", settings) is None
    assert interpreter_of("serve", settings) is None


def test_a_cluster_does_not_look_at_it(tmp_path: Path, home: EmbeddedHome) -> None:
    settings = Settings.load(
        {"MUSTER_INTERPRETER_TRAIN": "/x", "MUSTER_CLUSTER": str(tmp_path / "site.toml")}
    )
    assert interpreter_path("train", settings) is None


def test_what_is_wrong_is_refused_before_a_job_is_submitted(settings: Settings) -> None:
    with pytest.raises(SpecError, match=r"/of/the/variable, is not there: set MUSTER_INTERPRETER_TRAIN"):
        interpreter_of("train", settings)
    with_python = Settings.load({"MUSTER_INTERPRETER_TRAIN": sys.executable})
    found = interpreter_of("train", with_python)
    assert found is not None
    assert found.path == sys.executable
