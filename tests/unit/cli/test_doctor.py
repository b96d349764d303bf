"""``muster doctor``: what it looks at, and what it makes of bad news."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.backends.local import checks
from muster.cli.checks.command import cache_disk, old_runs
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


@pytest.mark.parametrize(
    ("found", "state"), [("3.3.2", "ok"), ("3.4.0b2", "ok"), ("3.3.1", "bad"), ("3.5.0", "bad")]
)
def test_an_airflow_is_one_that_muster_is_installed_with(
    muster: Run, monkeypatch: pytest.MonkeyPatch, found: str, state: str
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: found)
    checks = {check["name"]: check for check in muster("doctor", "--json").json()["checks"]}
    assert checks["Airflow"]["state"] == state


def test_for_people_each_check_is_a_line(muster: Run) -> None:
    lines = muster("doctor").out.splitlines()
    assert lines[0].split() == ["state", "what", "found"]
    assert any(line.split()[1] == "Python" for line in lines[1:])


def _database(home: Path) -> Path:
    """Return where the home's Airflow has its database: a file, for which SQLite does."""
    (home / "up").mkdir(parents=True)
    database = home / "up" / "airflow.db"
    url = f"sqlite:///{database}".replace("%", "%25").replace("?", "%3F").replace("#", "%23")
    text = f"[database]\nsql_alchemy_conn = {url}\n".replace("%", "%%")
    (home / "up" / "airflow.cfg").write_text(text)
    return database


@pytest.mark.parametrize(("counts", "state"), [(0, "warn"), (1, "ok")])
def test_a_pool_that_does_not_count_deferred_tasks_is_named(
    muster: Run, home: Path, counts: int, state: str
) -> None:
    with closing(sqlite3.connect(_database(home))) as airflow:
        airflow.execute("CREATE TABLE slot_pool (pool TEXT, slots INTEGER, include_deferred BOOLEAN)")
        airflow.execute("INSERT INTO slot_pool VALUES ('default_pool', 128, 0), ('gpu', 1, ?)", (counts,))
        airflow.commit()
    (found,) = [each for each in muster("doctor", "--json").json()["checks"] if each["name"] == "pools"]
    assert found["state"] == state
    assert ("gpu" in found["found"]) is (state == "warn")
    assert ("Include Deferred" in found["advice"]) is (state == "warn")


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


def test_a_home_that_others_may_enter_is_told(muster: Run, home: Path, history: FolderStore) -> None:
    def rights() -> dict[str, str]:
        return next(
            check for check in muster("doctor", "--json").json()["checks"] if check["name"] == "rights"
        )

    home.chmod(0o755)
    assert (rights()["state"], rights()["advice"].split(":")[0]) == ("warn", f"chmod 700 {home}")
    home.chmod(0o700)
    assert rights()["state"] == "ok"


@pytest.mark.parametrize(
    ("folder", "kind"), [("/", "ext4"), ("/tmp", "tmpfs"), ("/tmpfile", "ext4"), ("/mnt/my share/a", "nfs4")]
)
def test_the_file_system_is_that_of_the_deepest_mount(folder: str, kind: str) -> None:
    assert checks.kind_of(Path(folder), MOUNTS) == kind


def test_a_cache_that_holds_environments_needs_little_more(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 2 << 30})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    settings = Settings(home=home, cache=tmp_path / "cache")
    assert cache_disk(settings).state == "bad"
    (settings.cache / "images").mkdir(parents=True)
    assert cache_disk(settings).state == "ok"


def test_a_full_disk_is_bad(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 100 << 20})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    check = checks.home_disk(Settings.load())
    assert (check.state, check.found) == ("bad", f"0.1 GiB free at {home}")


@pytest.mark.parametrize(
    ("rows", "last", "state", "found"),
    [
        ([], "success", "ok", "has no Dag muster_maintenance"),
        ([("muster_maintenance", True)], "success", "warn", "muster_maintenance is paused"),
        ([("muster_maintenance", False)], "success", "ok", "runs once an hour"),
        (
            [("muster_maintenance", False)],
            "failed",
            "warn",
            "the last run of the Dag muster_maintenance failed",
        ),
    ],
)
def test_it_says_whether_anything_deletes_old_versions(
    muster: Run, home: Path, rows: list[tuple[str, bool]], last: str, state: str, found: str
) -> None:
    with closing(sqlite3.connect(_database(home))) as database, database:
        database.execute("CREATE TABLE dag (dag_id TEXT, is_paused BOOLEAN, is_stale BOOLEAN DEFAULT 0)")
        database.executemany("INSERT INTO dag (dag_id, is_paused) VALUES (?, ?)", rows)
        database.execute("CREATE TABLE dag_run (dag_id TEXT, run_id TEXT, state TEXT, end_date TEXT)")
        runs = [("running", None), (last, "2026-01-02"), ("failed", "2026-01-01")]
        database.executemany("INSERT INTO dag_run VALUES ('muster_maintenance', 'hourly', ?, ?)", runs)
    checks = muster("doctor", "--json").json()["checks"]
    line = next(check for check in checks if check["name"] == "maintenance")
    assert line["state"] == state
    assert found in line["found"]
    assert ("airflow dags unpause muster_maintenance" in line["advice"]) == ("paused" in found)


def test_it_says_how_long_the_disk_lasts_by_what_was_written_lately(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.load()
    FolderStore(settings.store)
    assert "the disk lasts" not in checks.home_disk(settings).found, "a day is the least to judge by"
    for path in (path for path in home.rglob("*") if path.is_file()):
        path.write_bytes(b"")
    for name, days in (("store/VOLUME.json", 30), ("old", 30), ("new", 1)):
        (home / name).write_bytes(bytes(1 << 20))
        os.utime(home / name, (time.time() - days * 86_400,) * 2)
    (home / "again").hardlink_to(home / "new")
    total = shutil.disk_usage(home).total

    def leave(free: int) -> None:
        usage = SimpleNamespace(total=total, used=total - free, free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    leave(100 << 30)
    assert "the disk lasts for years" in checks.home_disk(settings).found
    leave(10 << 20)
    monkeypatch.setattr(checks, "HOME_GIB", 0.0)
    check = checks.home_disk(settings)
    assert (check.state, "lasts for 70 days" in check.found) == ("ok", True), check
    leave(1 << 20)
    check = checks.home_disk(settings)
    assert (check.state, "lasts for 7 days" in check.found) == ("warn", True), check


def test_it_says_after_how_many_days_rows_and_logs_of_runs_go(home: Path) -> None:
    (home / "up").mkdir(parents=True)
    assert "go after 30 days" in old_runs(Settings.load()).found
    (home / "up" / "cleaned").touch()
    assert "once a day, last " in old_runs(Settings.load()).found
    (home / "up" / "airflow.cfg").write_text("[muster]\nrun_days = 0\n")
    assert old_runs(Settings.load()).state == "warn"


@pytest.mark.parametrize("name", ["maintenance", "pools"])
def test_a_database_of_airflow_s_that_is_none_is_one_line_of_the_report(
    muster: Run, home: Path, name: str
) -> None:
    _database(home).write_text("no database" * 100)
    checks = muster("doctor", "--json").json()["checks"]
    (line,) = [check for check in checks if check["name"] == name]
    assert line["state"] == "warn"
    assert "cannot be read" in line["found"]


def test_airflow_s_database_is_found_in_a_home_of_any_name(
    muster: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "which? 100%23 #1"
    with closing(sqlite3.connect(_database(home))) as airflow, airflow:
        airflow.execute("CREATE TABLE dag (dag_id TEXT, is_paused BOOLEAN, is_stale BOOLEAN DEFAULT 0)")
        airflow.execute("INSERT INTO dag VALUES ('muster_maintenance', 1, 0)")
        airflow.execute("CREATE TABLE slot_pool (pool TEXT, slots INTEGER, include_deferred BOOLEAN)")
    monkeypatch.setenv("MUSTER_HOME", str(home))
    checks = muster("doctor", "--json").json()["checks"]
    found = {check["name"]: check for check in checks}
    assert (found["maintenance"]["state"], found["pools"]["state"]) == ("warn", "ok")
    advice = found["maintenance"]["advice"]
    assert f"AIRFLOW_HOME='{home / 'up'}' " in advice
    assert "airflow dags unpause" in advice


def test_each_interpreter_that_is_set_is_shown(
    muster: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_INTERPRETER_TRAIN", sys.executable)
    monkeypatch.setenv("MUSTER_INTERPRETER_TRIAN", sys.executable)
    (home / "up").mkdir(parents=True)
    (home / "up" / "airflow.cfg").write_text("[muster]\ninterpreter.etl = /nothing\ninline_wait = 1\n")
    answer = muster("doctor", "--json")
    found = {check["name"]: check for check in answer.json()["checks"] if "interpreter" in check["name"]}
    assert {name: check["state"] for name, check in found.items()} == {
        "interpreter of etl": "bad",
        "interpreter of train": "ok",
        "interpreter TRIAN": "warn",
    }
    assert f" at {sys.executable}, without torch" in found["interpreter of train"]["found"]
    assert "/nothing, is not there: set MUSTER_INTERPRETER_ETL" in found["interpreter of etl"]["found"]
    assert f"run with {sys.executable}, not with its lock" in muster("images", "ls").err
    images = {image["name"]: image["interpreter"] for image in muster("images", "ls", "--json").json()}
    assert (images["train"], images["serve"]) == (sys.executable, None)
