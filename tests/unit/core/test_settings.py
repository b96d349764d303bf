from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.core.errors import SpecError
from muster.core.settings import Settings, project_folder


def test_the_nearest_home_above_is_found(tmp_path):
    inner = tmp_path / "project" / "deep"
    inner.mkdir(parents=True)
    assert Settings.load({}, start=inner).home == inner / ".muster"
    (tmp_path / "project" / ".muster").mkdir()
    assert Settings.load({}, start=inner).home == tmp_path / "project" / ".muster"


def test_the_environment_wins_and_paths_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = Settings.load({"MUSTER_HOME": "h", "MUSTER_CACHE": "c", "MUSTER_IMAGES": "a::b"})
    assert settings.home == tmp_path / "h"
    assert settings.cache == tmp_path / "c"
    assert settings.images == (tmp_path / "a", tmp_path / "b")
    assert settings.store == tmp_path / "h" / "store"
    assert settings.cluster is None
    assert Settings.load({"MUSTER_CLUSTER": "site.toml"}).cluster == tmp_path / "site.toml"


def test_a_flag_that_is_neither_is_refused():
    with pytest.raises(SpecError, match="expected 0 or 1"):
        Settings.load({"MUSTER_REQUIRE_GPUS": "yes"})


def test_a_new_home_is_its_owners_alone_and_one_that_is_there_stays_as_it_is(tmp_path):
    for name, before, after in (("new/.muster", None, 0o700), ("old", 0o755, 0o755)):
        if before is not None:
            (tmp_path / name).mkdir()
            (tmp_path / name).chmod(before)
        Settings(home=tmp_path / name, cache=tmp_path).make_home()
        assert (tmp_path / name).stat().st_mode & 0o777 == after


def test_what_a_commit_compares_is_a_setting():
    assert Settings.load({"MUSTER_COMPARE": "1"}).compare
    assert not Settings.load({}).compare
    with pytest.raises(SpecError, match="MUSTER_COMPARE is 'yes': expected 0 or 1"):
        Settings.load({"MUSTER_COMPARE": "yes"})


def test_an_image_may_run_with_a_python_that_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = Settings.load({"MUSTER_INTERPRETER_MY_TRAIN": "venv/bin/python", "MUSTER_INTERPRETER_ETL": ""})
    assert settings.interpreter("my-train") == tmp_path / "venv" / "bin" / "python"
    assert settings.interpreter("etl") is None
    assert settings.interpreter("train") is None
    hash(settings)


def test_git_ignores_a_home(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    home = Settings(home=tmp_path / ".muster", cache=tmp_path)
    home.make_home()
    (home.home / "passwords.json").write_text("{}")
    (tmp_path / "dag.py").write_text("")
    subprocess.run(["git", "-C", str(tmp_path), "add", "-A"], check=True)
    added = subprocess.run(
        ["git", "-C", str(tmp_path), "ls-files"], capture_output=True, text=True, check=True
    )
    assert added.stdout == "dag.py\n"


def test_git_goes_on_to_see_a_home_of_another_name(tmp_path: Path) -> None:
    Settings(home=tmp_path, cache=tmp_path).make_home()
    assert list(tmp_path.iterdir()) == []


def test_a_project_is_found_from_its_subfolders(tmp_path: Path) -> None:
    (tmp_path / "dags" / "flats").mkdir(parents=True)
    (tmp_path / "notes").mkdir()
    (tmp_path / ".muster").mkdir()
    assert project_folder(tmp_path) == tmp_path
    assert project_folder(tmp_path / "notes") == tmp_path
    assert project_folder(tmp_path / "dags" / "flats") == tmp_path
    (tmp_path / "notes" / "dags").mkdir()
    assert project_folder(tmp_path / "notes") == tmp_path / "notes"


@pytest.mark.parametrize("begin", [lambda here: Settings.load({}, start=here), project_folder])
def test_a_home_of_another_user_is_refused_unless_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: Callable[[Path], object]
) -> None:
    home, here = tmp_path / ".muster", tmp_path / "work"
    for folder in (home, here):
        folder.mkdir()
    begin(here)
    monkeypatch.setattr(os, "geteuid", lambda: home.stat().st_uid + 1)
    with pytest.raises(SpecError) as refused:
        begin(here)
    message = str(refused.value)
    assert message.startswith(f"{home} belongs to {pwd.getpwuid(home.stat().st_uid).pw_name}, and you are ")
    assert f"MUSTER_HOME={home} says that you trust" in message
    assert f"MUSTER_HOME={here / '.muster'} begins" in message
    with pytest.raises(SpecError, match=r"MUSTER_HOME=~/\.muster begins"):
        begin(tmp_path)
    assert Settings.load({"MUSTER_HOME": str(home)}, start=here).home == home


def test_a_home_that_others_may_write_is_refused_unless_it_is_named(tmp_path: Path) -> None:
    home = tmp_path / "my models" / ".muster"
    home.mkdir(parents=True)
    for mode in (0o777, 0o775, 0o702):
        home.chmod(mode)
        with pytest.raises(SpecError, match=f"may write into .*mode {mode:o}.*chmod go-w '{home}'`"):
            Settings.load({}, start=home.parent)
    assert Settings.load({"MUSTER_HOME": str(home)}).home == home
    home.chmod(0o755)
    assert Settings.load({}, start=home.parent).home == home


def test_a_link_of_another_user_to_a_home_of_ones_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / ".muster").symlink_to("mine")
    assert Settings.load({}, start=tmp_path).home == tmp_path / ".muster"
    theirs = (tmp_path / "mine").stat()
    other = os.stat_result((*theirs[:4], theirs.st_uid + 1, *theirs[5:]))
    monkeypatch.setattr(Path, "lstat", lambda _: other)
    with pytest.raises(SpecError, match="belongs to"):
        Settings.load({}, start=tmp_path)


def test_a_user_without_a_home_folder_names_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a container, whose number is in no /etc/passwd."""

    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(SpecError, match=r"^user \d+ has no home folder: set HOME, or MUSTER_CACHE$"):
        Settings.load({"MUSTER_HOME": "/home"}, start=tmp_path)
    assert Settings.load({"MUSTER_HOME": "/home", "MUSTER_CACHE": "/c"}, start=tmp_path).cache == Path("/c")
