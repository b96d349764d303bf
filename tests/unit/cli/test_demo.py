"""``muster demo``: which Dag it runs, and that it promises what that Dag does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from muster.cli import demo
from muster.core.shipped import shipped


def test_a_checkout_s_own_dag_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dags" / "flights").mkdir(parents=True)
    (tmp_path / "dags" / "flights" / "dag.py").write_text("mine")
    assert demo.dags_folder() == tmp_path / "dags"
    assert (tmp_path / "dags" / "flights" / "dag.py").read_text() == "mine"


def test_elsewhere_the_shipped_one_is_copied_to_be_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert demo.dags_folder() == tmp_path / "dags"
    copied = {path.name for path in (tmp_path / "dags" / "flights").iterdir()}
    assert {"dag.py", "train.py", "smoke.json"} <= copied
    assert "__pycache__" not in copied
    assert "read it and change it" in capsys.readouterr().out


def test_what_it_says_is_what_the_dag_does() -> None:
    folder = shipped("dags") / "flights"
    source = (folder / "dag.py").read_text()
    stages = re.findall(r'task_id="(\w+)"', source)
    named = re.findall(r"^  (\w+) {2,}\w", demo.INTRO, re.MULTILINE)
    assert stages
    assert set(stages) <= set(named)
    assert set(re.findall(r'image="(\w+)"', source)) <= set(demo.IMAGES)
