"""Which waiting process may serve a command: nothing that its imports may depend on is left out."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from muster.airflow.embedded.home import EmbeddedHome
from muster.cli.warm.client import key_of, signature
from muster.core.settings import Settings


@pytest.fixture
def home(tmp_path: Path) -> EmbeddedHome:
    settings = Settings(home=tmp_path / "home", cache=tmp_path / "cache")
    settings.make_home()
    return EmbeddedHome(settings=settings, dags=tmp_path / "dags")


def key(home: EmbeddedHome) -> str:
    return key_of(home)


def test_the_same_place_and_user_have_the_same_key(
    home: EmbeddedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key(home)
    for name in ("PWD", "OLDPWD", "COLUMNS"):
        monkeypatch.setenv(name, "/elsewhere")
    monkeypatch.chdir("/")
    assert key(home) == before


@pytest.mark.parametrize(
    "name", ["ANYTHING", "TZ", "LC_ALL", "PYTHONPATH", "AIRFLOW_CONN_X", "HTTPS_PROXY", "PATH"]
)
def test_each_variable_counts(home: EmbeddedHome, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(home)
    monkeypatch.setenv(name, "other")
    changed = key(home)
    assert changed != before
    monkeypatch.delenv(name)
    assert key(home) != changed


def test_a_package_that_is_installed_or_removed_counts(
    home: EmbeddedHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
    before = key(home)
    installed = packages / "thing-2.dist-info"
    installed.mkdir()
    assert key(home) != before


def test_home_dags_interpreter_and_airflow_s_own_files_count(
    home: EmbeddedHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {key(home), key(EmbeddedHome(settings=home.settings, dags=tmp_path / "others"))}
    other = Settings(home=tmp_path / "other", cache=tmp_path / "cache")
    other.make_home()
    keys.add(key(EmbeddedHome(settings=other, dags=home.dags)))
    (home.root / "plugins").mkdir(parents=True)
    keys.add(key(home))
    (home.root / "airflow.cfg").write_text("[core]\n")
    keys.add(key(home))
    monkeypatch.setattr(sys, "executable", "/usr/bin/python-of-another")
    keys.add(key(home))
    assert len(keys) == 6


def test_a_limit_of_the_shell_counts(home: EmbeddedHome) -> None:
    """As ``ulimit`` and ``nice`` set them; looked at in a child, since they cannot be taken back."""
    import resource

    before, (read, write) = key(home), os.pipe()
    pid = os.fork()
    if pid == 0:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, most))
        os.write(write, key(home).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        assert told.read() not in ("", before)
    os.waitpid(pid, 0)


def test_a_file_that_is_written_replaced_or_gone_has_another_signature(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("one")
    found = [signature(path)]
    os.utime(path, ns=(1, 1))
    found.append(signature(path))
    other = tmp_path / "other.py"
    other.write_text("two")
    os.utime(other, ns=(1, 1))
    other.replace(path)
    found.append(signature(path))
    path.unlink()
    found.append(signature(path))
    assert len(set(found)) == 4
    assert found[-1] == ""
