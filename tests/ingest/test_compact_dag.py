"""A Dag that joins what another one ingests: the version is replaced in one step, and the next ingest goes on from it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.author import WARM, Author, stages

pytestmark = [pytest.mark.slow, pytest.mark.data]

DAGS = """
from airflow.sdk import dag
from muster.airflow import CompactOperator, IngestOperator, JobOperator


@dag(schedule=None)
def pull():
    IngestOperator(
        task_id="raw", source="sql://shop", query="select * from orders", watermark="id", volume="raw/orders",
    )


@dag(schedule=None)
def join():
    joined = CompactOperator(task_id="join", volume="raw/orders", keep=1)
    JobOperator(
        task_id="count", image="python", inputs={"orders": joined.versions["data"]}, outputs={"n": "raw/count"},
        command=["sh", "-c", "ls {inputs.orders} | wc -l > {outputs.n}/n"], cache=True,
    )


pull()
join()
"""


@pytest.fixture
def author(tmp_path: Path) -> Iterator[Author]:
    folder = tmp_path / "author"
    folder.mkdir()
    connection = {"conn_type": "sqlite", "host": str(tmp_path / "shop.db")}
    with Author(folder, AIRFLOW_CONN_SHOP=json.dumps(connection), **WARM) as author:
        author.write("orders", DAGS)
        yield author


def test_the_joined_version_replaces_what_it_joins(author: Author, tmp_path: Path) -> None:
    assert stages(author.ask("run", "join"))["join"]["state"] == "skipped", "there is no version yet"
    for number in range(3):
        with sqlite3.connect(tmp_path / "shop.db") as opened:
            opened.execute("create table if not exists orders (id integer)")
            opened.execute("insert into orders values (?)", (number,))
        opened.close()
        author.ask("run", "pull")
    joined = stages(author.ask("run", "join"))
    assert joined["join"]["versions"] == {"data": ["volume://raw/orders@4"]}
    found = {version["number"]: version["retired"] for version in author.ask("volumes", "log", "raw/orders")}
    assert found == {4: None, 3: "replaced by raw/orders@4", 2: None, 1: "replaced by raw/orders@4"}
    assert [stage["does"] for stage in author.ask("plan", "join")["stages"]] == ["runs", "maybe"]
    again = stages(author.ask("run", "join"))
    assert again["join"]["versions"] == joined["join"]["versions"], "nothing is left to join"
    assert again["count"]["versions"] == {"n": ["volume://raw/count@1"]}
    kept = stages(author.ask("run", "pull"))
    assert kept["raw"]["versions"] == {"data": ["volume://raw/orders@4"]}
    assert author.muster("volumes", "pin", "raw/orders@4", "--reason", "report").returncode == 0
    pinned = author.muster("run", "join")
    assert pinned.returncode != 0
    assert "raw/orders@4 is pinned (report), so nothing retires it" in pinned.stdout + pinned.stderr
    assert author.is_clean()
