"""``muster init``: what it writes, and what it never touches."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.fixture
def folder(home: Path) -> Path:
    return home.parent


def test_it_writes_a_dag_with_its_image_and_its_test(muster: Run, folder: Path) -> None:
    answer = muster("init", "flats")
    assert answer.code == 0, answer.err
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert written == {
        "dags/flats/dag.py",
        "dags/flats/work.py",
        "dags/flats/smoke.json",
        "dags/flats/images/flats/requirements.in",
        "dags/flats/images/flats/requirements.txt",
        "tests/test_flats.py",
    }
    assert written <= set(answer.out.split())
    assert "muster run flats" in answer.out
    for name in written:
        text = (folder / name).read_text()
        assert "starter" not in text
        if name.endswith(".py"):
            ast.parse(text)
    assert "--hash=sha256:" in (folder / "dags/flats/images/flats/requirements.txt").read_text()


def test_the_folder_of_dags_may_be_another(muster: Run, folder: Path) -> None:
    answer = muster("init", "flats", "--dags", "pipelines")
    assert (folder / "pipelines" / "flats" / "dag.py").is_file()
    assert 'DAGS = PROJECT / "pipelines"' in (folder / "tests" / "test_flats.py").read_text()
    assert "muster run flats --dags pipelines" in answer.out


def test_what_it_says_comes_next_can_be_typed(
    muster: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = muster("init", "flats", "--dags", "my work/dags")
    steps = [line.strip().split("  ")[0] for line in answer.out.partition("Next:")[2].splitlines()]
    _, run, work, dag, lock, test = [shlex.split(step) for step in steps]
    assert run == ["muster", "run", "flats", "--dags", "my work/dags"]
    assert all((folder / path).is_file() for path in (*work, *dag, test[-1]))
    variable, *words = lock
    assert words == ["muster", "images", "lock", "flats"]
    monkeypatch.setenv(*variable.split("="))
    assert "flats" in [image["name"] for image in muster("images", "ls", "--json").json()]


@pytest.mark.parametrize("there", ["dags", "tests"])
def test_all_is_written_or_nothing(muster: Run, folder: Path, there: str) -> None:
    (folder / there).write_text("a file")
    assert "cannot be written" in muster("init", "flats").err
    assert [path for path in folder.rglob("*") if path.is_file()] == [folder / there]
    (folder / there).unlink()
    assert muster("init", "flats").code == 0


@pytest.mark.parametrize("there", ["dags/flats/notes.txt", "tests/test_flats.py"])
def test_it_overwrites_nothing(muster: Run, folder: Path, there: str) -> None:
    (folder / there).parent.mkdir(parents=True)
    (folder / there).write_text("mine")
    answer = muster("init", "flats")
    assert answer.code == 1
    assert "already exists: choose another name" in answer.err
    assert [path for path in folder.rglob("*") if path.is_file()] == [folder / there]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Flats", "lower-case letters and digits"),
        ("my_flats", "lower-case letters and digits"),
        ("../flats", "lower-case letters and digits"),
        ("2flats", "first a letter"),
        ("lambda", "it is a keyword of Python"),
        ("queue", "a Python package has that name"),
        ("airflow", "a Python package has that name"),
        ("images", "the folder of that name holds images for all Dags"),
    ],
)
def test_a_name_that_cannot_be_all_of_it_is_refused(muster: Run, folder: Path, name: str, why: str) -> None:
    answer = muster("init", name)
    assert answer.code == 1
    assert why in answer.err
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["sklearn", "torch", "mlflow", "pandas"])
def test_a_name_that_would_hide_a_package_of_an_image_is_refused(muster: Run, name: str) -> None:
    answer = muster("init", name)
    assert answer.code == 1
    assert "a Python package has that name" in answer.err


def test_a_word_of_a_package_s_name_is_free(muster: Run, folder: Path) -> None:
    assert muster("init", "ml").code == 0  # ml-dtypes is imported as ml_dtypes
