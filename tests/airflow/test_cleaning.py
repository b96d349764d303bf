"""What ended runs left goes after some days, and nothing that a run still needs does."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.author import Author
from tests.waiting import until

from muster.airflow.embedded.cleaning import DAY_SECONDS, DAYS, MARKER, delete_logs

HELLO = """
    from datetime import datetime
    from airflow.sdk import dag, task

    @dag(schedule=None, start_date=datetime(2024, 1, 1))
    def hello():
        @task
        def greet():
            return "hello"

        greet()

    hello()
"""
OLD, NEW = "2020-01-01 00:00:00.000000", "2120-01-01 00:00:00.000000"


class Rows:
    """The rows of the one run that was made, and copies of them."""

    def __init__(self, database: Path) -> None:
        self._airflow = sqlite3.connect(database, timeout=30, isolation_level=None)
        self._airflow.row_factory = sqlite3.Row
        self._ids = {"dag_run": "id", "task_instance": "id"}
        if self.count(
            "sqlite_master", "name = 'xcom'"
        ):  # those of Airflow 3.4 go with their task's row, by a foreign key
            self._ids["xcom"] = "dag_run_id"
        self._of = {name: dict(self._one(name)) for name in self._ids}
        self._next = 1000

    def _one(self, table: str) -> sqlite3.Row:
        (row,) = self._airflow.execute(f"SELECT * FROM {table}").fetchall()
        return row

    def add(self, table: str, **values: Any) -> None:
        row = {**self._of.get(table, {}), **values}
        marks = ", ".join("?" * len(row))
        self._airflow.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))

    def run(self, dag_id: str, *, began: str, state: str = "success", task_began: str = "") -> int:
        """Add a run with a task and its result."""
        self._next += 1
        of = {"dag_id": dag_id, "run_id": f"run-{self._next}"}
        self.add("dag_run", id=self._next, start_date=began, logical_date=None, state=state, **of)
        at = task_began or began
        self.add("task_instance", id=f"{self._next:032x}", start_date=at, **of)
        if "xcom" in self._ids:
            self.add("xcom", dag_run_id=self._next, timestamp=at, **of)
        return self._next

    def left(self) -> dict[str, set[int]]:
        """The runs that are there, by the table that has a row of them."""
        return {
            table: {
                row[0] if isinstance(row[0], int) else int(row[0], 16)
                for row in self._airflow.execute(f"SELECT {name} FROM {table} WHERE run_id LIKE 'run-%'")
            }
            for table, name in self._ids.items()
        }

    def count(self, table: str, where: str) -> int:
        return int(self._airflow.execute(f"SELECT count(*) FROM {table} WHERE {where}").fetchone()[0])

    def close(self) -> None:
        self._airflow.close()


@pytest.fixture
def author(tmp_path: Path) -> Iterator[Author]:
    with Author(tmp_path) as author:
        author.write("hello", HELLO)
        assert author.ask("run", "hello")["state"] == "success"
        yield author


def test_rows_of_old_runs_go_and_what_a_run_needs_stays(author: Author) -> None:
    home = author.home / "airflow"
    with closing(Rows(home / "airflow.db")) as rows:
        gone = {rows.run("daily", began=OLD), rows.run("daily", began=OLD, state="failed")}
        stays = {
            rows.run("daily", began=NEW),
            rows.run("dormant", began=OLD),  # the last run of a Dag, which another schedule continues
            rows.run("waits", began=OLD, state="running"),
            rows.run("waits", began=NEW),
            rows.run("cleared", began=NEW, state="running", task_began=OLD),
            rows.run("cleared_and_ended", began=NEW, task_began=OLD),
        }
        for event in (1, 2):
            rows.add("asset_event", id=event, asset_id=event, extra="{}", timestamp=OLD)
        (waiting,) = (
            run
            for run in stays
            if rows.count("dag_run", f"id = {run} AND state = 'running' AND dag_id = 'waits'")
        )
        rows.add("dagrun_asset_event", dag_run_id=waiting, event_id=1)
        rows.add("log", id=1000, dttm=OLD, event="of no Dag")
        os.utime(home / MARKER, (1, 1))
        assert author.ask("run", "hello")["state"] == "success"
        log = home / "logs" / "cleaning.log"
        assert until(lambda: not rows.left()["dag_run"] & gone and author.is_quiet()), log.read_text()
        assert rows.left() == dict.fromkeys(rows.left(), stays), log.read_text()
        assert rows.count("log", "id = 1000") == 0, log.read_text()
        assert rows.count("asset_event", "1") == 2, "a run that goes on began by the oldest"
        assert rows.count("sqlite_master", "name LIKE '_airflow_deleted%'") == 0
    assert time.time() - (home / MARKER).stat().st_mtime < DAY_SECONDS


def test_old_logs_go_with_their_folders_and_those_of_what_still_runs_stay(tmp_path: Path) -> None:
    old = time.time() - (DAYS + 1) * DAY_SECONDS
    gone = ["dag_id=a/run_id=1/task_id=t/attempt=1.log", "dag_processor/2020-01-01/a.py.log", "scheduler.old"]
    stay = ["dag_id=b/run_id=1/task_id=t/attempt=1.log", "scheduler.log"]
    for name in (*gone, *stay):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (old, old))
    (tmp_path / "dag_id=a/run_id=2").mkdir()
    (tmp_path / "dag_id=a/run_id=2/new.log").touch()
    delete_logs(tmp_path, before=time.time() - DAYS * DAY_SECONDS, but={"b"})
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()} == {
        *stay,
        "dag_id=a/run_id=2/new.log",
    }
    assert not (tmp_path / "dag_id=a/run_id=1").exists()
