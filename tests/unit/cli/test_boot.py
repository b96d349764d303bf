"""``muster deployments install-service``: what systemd would do at a boot."""

from __future__ import annotations

import getpass
import pwd
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.cli import boot
from muster.core.errors import SpecError
from muster.core.settings import Settings

Run = Callable[..., Any]


@pytest.fixture(autouse=True)
def config(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders of systemd, and a store."""
    (home / "store").mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home.parent / "config"))
    monkeypatch.setattr(boot, "SYSTEM_UNITS", home.parent / "system")
    monkeypatch.setattr(boot, "LINGERING", home.parent / "linger")
    return home.parent


@pytest.mark.parametrize(
    ("words", "folder", "target"),
    [([], "config/systemd/user", "default.target"), (["--system"], "system", "multi-user.target")],
)
def test_a_unit_is_written_and_enabled(
    muster: Run, config: Path, words: list[str], folder: str, target: str
) -> None:
    for _ in range(2):  # written anew, it is the same one
        assert muster("deployments", "install-service", *words).code == 0
    (path,) = (config / folder).glob("*.service")
    assert (config / folder / f"{target}.wants" / path.name).resolve() == path
    text = path.read_text()
    assert f'"MUSTER_HOME={config / ".muster"}"' in text
    assert '"-m" "muster" "deployments" "keep"\n' in text
    assert (f"User={getpass.getuser()}\n" in text) is bool(words)
    verify(path)


def test_it_is_shown_and_removed(muster: Run, config: Path) -> None:
    shown = muster("deployments", "install-service", "--show")
    assert not list(config.rglob("*.service"))
    assert muster("deployments", "install-service").code == 0
    (path,) = (config / "config/systemd/user").glob("*.service")
    assert path.read_text() == shown.out
    assert path.name in muster("deployments", "install-service", "--remove").err
    assert not [each for each in config.rglob("muster-*") if each.is_file() or each.is_symlink()]


def test_to_show_and_to_remove_at_once_is_refused(muster: Run, config: Path) -> None:
    assert muster("deployments", "install-service").code == 0
    refused = muster("deployments", "install-service", "--show", "--remove")
    assert (refused.code, "--show or --remove, not both" in refused.err) == (1, True)
    assert list(config.rglob("*.service"))


def test_a_line_of_cron_escapes_its_line_break(
    muster: Run, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot, "RUNNING", config / "run")
    monkeypatch.setenv("MUSTER_CACHE", "/cache 100%")
    assert r"'MUSTER_CACHE=/cache 100\%'" in " ".join(muster("deployments", "install-service").err.split())


def test_without_systemd_it_says_what_cron_runs(
    muster: Run, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot, "RUNNING", config / "run")
    said = " ".join(muster("deployments", "install-service").err.split())
    assert f"@reboot env MUSTER_HOME={config / '.muster'} " in said
    assert said.count("-m muster deployments keep") == 1
    (config / "run").mkdir()
    assert "cron" not in muster("deployments", "install-service").err


@pytest.mark.parametrize("name", ["a b", 'q"o', "50%h", "$HOME", "back\\slash", "é"])
def test_any_path_is_written_as_systemd_reads_it(config: Path, name: str) -> None:
    home = config / name
    home.mkdir()
    path = config / "x.service"
    path.write_text(boot.unit(Settings(home=home, cache=config), "default.target"))
    verify(path)


def test_a_path_that_no_unit_can_hold_is_refused(config: Path) -> None:
    with pytest.raises(SpecError, match="cannot hold this path"):
        boot.unit(Settings(home=config / "a\nExecStart=b", cache=config), "default.target")


def test_a_unit_that_root_writes_has_the_owner_s_cache(
    muster: Run, config: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sudo` has root's HOME; and in a container the owner may have no name."""
    monkeypatch.delenv("MUSTER_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwall", list)
    assert muster("deployments", "install-service", "--system").code == 0
    text = next((config / "system").glob("*.service")).read_text()
    assert "MUSTER_CACHE" not in text
    assert f"User={home.stat().st_uid}\n" in text


def test_a_user_who_does_not_linger_is_told(muster: Run, config: Path) -> None:
    assert "loginctl enable-linger" in muster("deployments", "install-service").err
    (config / "linger").mkdir()
    (config / "linger" / getpass.getuser()).touch()
    assert "linger" not in muster("deployments", "install-service").err


def test_a_unit_of_the_machine_says_how_root_writes_it(
    muster: Run, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setenv("MUSTER_CACHE", "/my cache")
    refused = muster("deployments", "install-service", "--system")
    assert refused.code == 1
    assert f"sudo env MUSTER_HOME={config / '.muster'} 'MUSTER_CACHE=/my cache'" in " ".join(
        refused.err.split()
    )


def verify(path: Path) -> None:
    """Have systemd read it, where there is one."""
    if program := shutil.which("systemd-analyze"):
        ran = subprocess.run([program, "verify", path], text=True, capture_output=True, check=False)
        assert (ran.returncode, ran.stderr) == (0, "")
