"""``muster images``: found where a Dag would find them, and built for real from an empty lock."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.conftest import empty_image

from muster.core.shipped import shipped

Run = Callable[..., Any]


@pytest.fixture
def bare(tmp_path: Path, home: Path) -> Path:
    """An image that needs nothing, beside the Dags of the working folder."""
    return empty_image(tmp_path, "bare")


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


def test_a_shipped_image_is_copied_and_not_locked_where_it_lies(
    muster: Run, tmp_path: Path, home: Path
) -> None:
    lock = shipped("images") / "tables" / "requirements.txt"
    before = lock.stat().st_mtime_ns
    answer = muster("images", "lock", "tables")
    assert (answer.code, answer.error) == (1, None)
    assert "`muster images copy tables mytables`" in " ".join(answer.err.split())
    assert lock.stat().st_mtime_ns == before
    assert muster("images", "copy", "tables", "mytables").code == 0
    assert (tmp_path / "images" / "mytables" / "requirements.txt").read_bytes() == lock.read_bytes()
    again = muster("images", "copy", "tables", "mytables")
    assert (again.code, "is there already" in " ".join(again.err.split())) == (1, True)
    (tmp_path / "images" / "mytables" / "data").symlink_to("gone")
    broken = muster("images", "copy", "mytables", "half")
    assert (broken.code, broken.error, "cannot be copied" in broken.err) == (1, None, True)
    assert [path.name for path in (tmp_path / "images").iterdir()] == ["mytables"]


@pytest.mark.parametrize("name", ["nothing", "../etl", "a\nb", "x" * 300])
def test_lock_of_what_is_not_there_is_refused(name: str, muster: Run, tmp_path: Path) -> None:
    answer = muster("images", "lock", name)
    assert (answer.code, answer.error) == (1, None)
    assert answer.err.startswith("muster: image ")


def test_lock_names_each_folder_in_which_it_looked_once(muster: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shipped("images").parent)
    said = muster("images", "lock", "nothing").err
    assert said.count(f"{shipped('images')};") == 1
    assert f"{shipped('images')}," not in said


@pytest.mark.parametrize("name", ["airflow", "muster"])
def test_an_image_in_which_no_job_runs_is_built_as_a_container_only(muster: Run, name: str) -> None:
    answer = muster("images", "build", name)
    assert (answer.code, answer.error) == (1, None)
    assert f"`muster images build {name} --container`" in " ".join(answer.err.split())


def test_images_lie_at_the_project_s_root_too(muster: Run, tmp_path: Path, home: Path) -> None:
    for folder in (tmp_path / "images" / "rooted", tmp_path / "dags" / "images" / "shared"):
        folder.mkdir(parents=True)
        (folder / "requirements.in").write_text("")
        assert "is locked, 0 packages" in muster("images", "lock", folder.name).out
        assert "built in" in muster("images", "build", folder.name).out
    said = muster("images", "lock", "nothing").err
    assert str(tmp_path / "dags" / "images" / "images") not in said
    for words in (("lock", "nothing"), ("build", "nothing")):
        said = muster("images", *words).err
        assert [str(folder) in said for folder in (tmp_path / "images", tmp_path / "dags" / "images")] == [
            True,
            True,
        ]


def test_requirements_without_hashes_are_no_lock(muster: Run, bare: Path) -> None:
    (bare / "requirements.txt").write_text("torch\ntqdm>=4  # bars\n")
    cure = "holds 'torch' without a hash, so it is no lock: rename it to requirements.in, and run `muster images lock bare`"
    listed = muster("images", "ls")
    assert [cure in listed.err, "none" in listed.out] == [True, True]
    (image,) = (each for each in muster("images", "ls", "--json").json() if each["name"] == "bare")
    assert [image["digest"], cure in image["trouble"]] == [None, True]
    assert cure in muster("images", "build", "bare").err
    assert cure in muster("images", "lock", "bare").err
    assert cure in muster("doctor").out


def test_a_lock_that_is_out_of_date_is_told_and_not_built(muster: Run, bare: Path) -> None:
    hashed = "six==1.17.0 \\\n    --hash=sha256:" + "0" * 64 + "\n"
    for wanted, lock, says in (
        ("six\npyarrow  # rows\n", hashed, "requirements.in names pyarrow, which the lock does not hold"),
        ("Six>=2\n", hashed, "requirements.in asks for Six>=2, and the lock holds 1.17.0"),
        ("six\n", None, "it is not locked"),
    ):
        (bare / "requirements.in").write_text(wanted)
        (bare / "requirements.txt").unlink()
        if lock:
            (bare / "requirements.txt").write_text(lock)
        answer = muster("images", "build", "bare")
        assert (answer.code, answer.error) == (1, None)
        assert f"image 'bare': {says}: run `muster images lock bare`" in answer.err
        (bare / "requirements.txt").touch()


@pytest.mark.slow
def test_a_package_of_one_s_own_is_built_and_hashed(muster: Run, bare: Path) -> None:
    package = bare / "my-lib"
    (package / "my_lib").mkdir(parents=True)
    (package / "my_lib" / "__init__.py").write_text("ANSWER = 42\n")
    build = '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
    (package / "pyproject.toml").write_text(f'{build}[project]\nname = "my-lib"\nversion = "1.0"\n')
    (bare / "requirements.in").write_text("./my-lib\n")
    assert "bare is locked, 1 packages" in muster("images", "lock", "bare").out
    lock = (bare / "requirements.txt").read_text()
    assert re.search(r"^./wheels/my_lib-1.0-\S+\.whl \\\n    --hash=sha256:", lock, re.MULTILINE)
    assert str(bare) not in lock
    assert "bare built in" in muster("images", "build", "bare").out
    (image,) = (each for each in muster("images", "ls", "--json").json() if each["name"] == "bare")
    python = [str(Path(image["path"], "bin", "python")), "-c", "import my_lib; print(my_lib.ANSWER)"]
    assert subprocess.run(python, capture_output=True, text=True, check=True).stdout == "42\n"
    (package / "my_lib" / "__init__.py").write_text("ANSWER = 43\n")
    assert (
        "./my-lib has changed since its wheel was built: run `muster images lock bare`"
        in muster("images", "build", "bare").err
    )


@pytest.mark.parametrize("line", ["mylib @ file:///opt/mylib", "../mylib", "-e ./mylib", "/opt/mylib"])
def test_a_package_outside_of_the_image_is_refused(line: str, muster: Run, bare: Path) -> None:
    (bare / "requirements.in").write_text(f"{line}\n")
    answer = muster("images", "lock", "bare")
    assert (answer.code, answer.error) == (1, None)
    assert "which does not travel with the image: put the package's folder or wheel into" in answer.err
