"""The clock of Airflow's scheduler: a write to the database ends its sleep, and nothing else does."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.waiting import GUARD_SECONDS

from muster.airflow.up.component import WakingClock


@pytest.fixture(params=["wal", "delete"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "airflow.db", check_same_thread=False)) as made:
        made.execute(f"PRAGMA journal_mode={request.param}")
        made.execute("CREATE TABLE run (id INTEGER)")
        made.commit()
        yield made


def test_a_write_ends_the_sleep(database: sqlite3.Connection, tmp_path: Path) -> None:
    clock = WakingClock(tmp_path / "airflow.db")
    asleep, awake = threading.Event(), threading.Event()

    def sleep() -> None:
        asleep.set()
        clock.sleep(GUARD_SECONDS)
        awake.set()

    threading.Thread(target=sleep, daemon=True).start()
    assert asleep.wait(GUARD_SECONDS)
    number = 0
    while not awake.wait(0.1):  # the first write may come before it has looked
        number += 1
        database.execute("INSERT INTO run VALUES (?)", (number,))
        database.commit()
        assert number < 100


def test_what_only_reads_does_not_end_it(database: sqlite3.Connection, tmp_path: Path) -> None:
    clock, began = WakingClock(tmp_path / "airflow.db"), time.monotonic()
    stop = threading.Event()

    def read() -> None:
        while not stop.wait(0.01):
            database.execute("SELECT count(*) FROM run").fetchall()

    reading = threading.Thread(target=read)
    reading.start()
    clock.sleep(0.3)
    stop.set()
    reading.join()
    assert time.monotonic() - began >= 0.3


def test_a_missing_database_is_waited_for(tmp_path: Path) -> None:
    began = time.monotonic()
    WakingClock(tmp_path / "airflow.db").sleep(0.1)
    assert time.monotonic() - began >= 0.1


def test_all_else_is_that_of_time(tmp_path: Path) -> None:
    assert WakingClock(tmp_path / "airflow.db").monotonic is time.monotonic
