"""``muster images``: found where a Dag would find them, and built for real from an empty lock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.core.shipped import shipped

Run = Callable[..., Any]


@pytest.fixture
def bare(tmp_path: Path, home: Path) -> Path:
    """An image that needs nothing, beside the Dags of the working folder."""
    folder = tmp_path / "dags" / "mine" / "images" / "bare"
    folder.mkdir(parents=True)
    (folder / "requirements.txt").write_text("")
    return folder


def test_ls_has_the_dag_s_own_and_the_shipped(muster: Run, bare: Path) -> None:
    found = {image["name"]: image for image in muster("images", "ls", "--json").json()}
    assert found["bare"]["folder"] == str(bare)
    assert found["bare"]["built"] is False
    assert {"etl", "train", "serve", "validate"} <= set(found)
    assert "bare" in muster("images", "ls").out


def test_build_makes_it_once(muster: Run, bare: Path) -> None:
    first = muster("images", "build", "bare")
    assert (first.code, first.error) == (0, None)
    assert "bare built in" in first.out
    assert "bare is built already" in muster("images", "build", "bare").out
    image = next(image for image in muster("images", "ls", "--json").json() if image["name"] == "bare")
    assert image["built"] is True
    assert Path(image["path"], "bin", "python").exists()


@pytest.mark.parametrize("words", [(), ("bare", "--all")])
def test_build_wants_names_or_all(words: tuple[str, ...], muster: Run) -> None:
    assert muster("images", "build", *words).code == 2


@pytest.mark.parametrize("name", ["nothing", "../etl", "a\nb", "x" * 300])
def test_an_unknown_image_is_refused_before_anything_is_built(name: str, muster: Run, tmp_path: Path) -> None:
    answer = muster("images", "build", name)
    assert (answer.code, answer.error) == (1, None)
    assert answer.err.startswith("muster: image ")
    assert not (tmp_path / "cache").exists()


def test_lock_makes_a_lock_that_builds(muster: Run, bare: Path) -> None:
    (bare / "requirements.txt").unlink()
    (bare / "requirements.in").write_text("# nothing\n")
    locked = muster("images", "lock", "bare")
    assert (locked.code, locked.error) == (0, None)
    assert "bare is locked, 0 packages" in locked.out
    assert "bare built in" in muster("images", "build", "bare").out


def test_lock_says_what_uv_could_not_resolve_and_leaves_the_lock(muster: Run, bare: Path) -> None:
    (bare / "requirements.in").write_text("!! no requirement\n")
    (bare / "requirements.txt").write_text("# as it was\n")
    answer = muster("images", "lock", "bare")
    assert (answer.code, answer.error) == (1, None)
    assert "image bare: uv could not resolve" in answer.err
    assert "Mend requirements.in" in answer.err
    assert (bare / "requirements.txt").read_text() == "# as it was\n"


@pytest.mark.parametrize("name", ["nothing", "../etl", "a\nb", "x" * 300])
def test_lock_of_what_is_not_there_is_refused(name: str, muster: Run, tmp_path: Path) -> None:
    answer = muster("images", "lock", name)
    assert (answer.code, answer.error) == (1, None)
    assert answer.err.startswith("muster: image ")


def test_lock_names_each_folder_in_which_it_looked_once(muster: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shipped("images").parent)
    said = muster("images", "lock", "nothing").err
    assert said.count(str(shipped("images") / "nothing")) == 1
