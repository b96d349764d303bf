"""SQLite as every process sets it that shares an Airflow's database here."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from muster.airflow.up import sqlite

FULL, NORMAL = 2, 1  # https://www.sqlite.org/pragma.html#pragma_synchronous
ASKED = text("PRAGMA synchronous")


def test_a_commit_of_airflows_waits_for_no_disk(tmp_path: Path) -> None:
    assert asked_of(tmp_path / "airflow.db", connect_args=sqlite.PATIENCE) == NORMAL


def test_nor_does_one_of_the_api_server(tmp_path: Path) -> None:
    async def asked() -> int:
        engine = create_async_engine(
            f"sqlite+aiosqlite:///{tmp_path / 'airflow.db'}", connect_args=sqlite.PATIENCE
        )
        async with engine.connect() as connection:
            found = int(await connection.scalar(ASKED))
        await engine.dispose()
        return found

    assert asyncio.run(asked()) == NORMAL


def test_other_databases_of_the_process_stay_as_they_are(tmp_path: Path) -> None:
    assert asked_of(tmp_path / "mine.db") == FULL


def asked_of(database: Path, **words: Any) -> int:
    engine = create_engine(f"sqlite:///{database}", **words)
    with engine.connect() as connection:
        found = int(connection.scalar(ASKED))
    engine.dispose()
    return found
