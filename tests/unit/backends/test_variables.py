"""The variables that ranks and model servers start with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from muster.backends.local.serving.process import environment_variables
from muster.backends.local.variables import NO_TELEMETRY, variables
from muster.core.job import JobSpec, Role
from muster.core.settings import Settings

ROLE = Role(command=("true",))


def of_a_job(cache: Path, env: Mapping[str, str]) -> dict[str, str]:
    job = JobSpec(name="a.b", image="python", image_digest=f"b3:{'0' * 64}", roles=(ROLE,), env=env)
    python = cache / "images" / "python" / "bin" / "python"
    return variables(job, python=python, settings=Settings(home=cache, cache=cache), secrets={})


def test_no_library_reports_home_or_writes_there(tmp_path: Path) -> None:
    found = of_a_job(tmp_path, {})
    assert found["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert found["ORT_DISABLE_TELEMETRY"] == found["DO_NOT_TRACK"] == "1"
    assert found["MPLCONFIGDIR"] == str(tmp_path / "matplotlib")


def test_the_author_has_the_last_word(tmp_path: Path) -> None:
    wanted = {"MLFLOW_DISABLE_TELEMETRY": "false", "MPLCONFIGDIR": "/mine", "HOME": "/elsewhere"}
    assert of_a_job(tmp_path, wanted).items() >= wanted.items()


def test_home_and_what_lies_there_stay_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    found = of_a_job(tmp_path, {})
    assert found["HOME"] == "/home/ann"
    assert not [name for name in found if name.startswith("XDG_")]


def test_a_model_server_reports_nothing_either() -> None:
    assert environment_variables().items() >= NO_TELEMETRY.items()
