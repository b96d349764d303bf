"""``muster doctor``: what it looks at, and what it makes of bad news."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.cli import checks
from muster.core.settings import Settings
from muster.volumes.folder import FolderStore

Run = Callable[..., Any]
MOUNTS = """\
/dev/sda / ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
server:/x /mnt/my\\040share nfs4 rw 0 0
"""


def test_it_looks_at_everything_and_makes_nothing(muster: Run, home: Path) -> None:
    report = muster("doctor", "--json").json()
    names = {check["name"] for check in report["checks"]}
    assert names >= {"Python", "system", "uv", "Airflow", "memory", "GPUs", "store", "jobs", "loopback"}
    assert {check["state"] for check in report["checks"]} <= {"ok", "warn", "bad"}
    assert all(check["advice"] for check in report["checks"] if check["state"] != "ok")
    assert not home.exists()


def test_for_people_each_check_is_a_line(muster: Run) -> None:
    lines = muster("doctor").out.splitlines()
    assert lines[0].split() == ["state", "what", "found"]
    assert any(line.split()[1] == "Python" for line in lines[1:])


def test_a_damaged_store_is_bad_and_the_exit_code_says_so(muster: Run, history: FolderStore) -> None:
    path = history.path("flights/model@1") / "card.md"
    path.chmod(0o644)
    path.write_bytes(b"")
    answer = muster("doctor")
    assert answer.code == 1
    assert "muster volumes fsck" in answer.out


def test_a_store_that_is_no_store_is_one_line_of_the_report(muster: Run, home: Path) -> None:
    (home / "store").mkdir(parents=True)
    (home / "store" / "VOLUME.json").write_text("{}")
    store = next(check for check in muster("doctor", "--json").json()["checks"] if check["name"] == "store")
    assert store["state"] == "bad"


@pytest.mark.parametrize(
    ("folder", "kind"), [("/", "ext4"), ("/tmp", "tmpfs"), ("/tmpfile", "ext4"), ("/mnt/my share/a", "nfs4")]
)
def test_the_file_system_is_that_of_the_deepest_mount(folder: str, kind: str) -> None:
    assert checks._kind_of(Path(folder), MOUNTS) == kind


def test_a_cache_that_holds_environments_needs_little_more(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 2 << 30})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    settings = Settings(home=home, cache=tmp_path / "cache")
    assert checks._cache_disk(settings).state == "bad"
    (settings.cache / "images").mkdir(parents=True)
    assert checks._cache_disk(settings).state == "ok"


def test_a_full_disk_is_bad(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 100 << 20})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    check = checks._home_disk(Settings.load())
    assert (check.state, check.found) == ("bad", f"0.1 GiB free at {home}")
