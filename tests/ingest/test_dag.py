"""A Dag that ingests: what changed goes through all of it, and where nothing did its stages are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.author import WARM, Author, stages
from tests.ingest.s3 import WORD, ObjectStore

pytestmark = [pytest.mark.slow, pytest.mark.data, pytest.mark.smoke]

DAG = """
from datetime import timedelta

from airflow.sdk import dag
from muster.airflow import IngestOperator, JobOperator


@dag(schedule=None)
def pull():
    raw = IngestOperator(
        task_id="raw", source="s3://lake/events", volume="raw/events", connection="lake",
        patience=timedelta(seconds=1), retries=1, retry_delay=timedelta(seconds=0.1),
    )
    JobOperator(
        task_id="count", image="python", inputs={"events": raw.versions["data"]}, outputs={"n": "raw/count"},
        command=["sh", "-c", "ls {inputs.events} | wc -l > {outputs.n}/n"], cache=True,
    )


pull()
"""


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[ObjectStore]:
    with ObjectStore(tmp_path / "s3") as lake:
        lake.put("lake/events/a", "1")
        lake.put("lake/events/b", "2")
        yield lake


@pytest.fixture
def author(tmp_path: Path, lake: ObjectStore) -> Iterator[Author]:
    connection = {
        "conn_type": "aws",
        "login": "muster-test",
        "password": WORD,
        "extra": {"endpoint_url": lake.url, "region_name": "us-east-1"},
    }
    folder = tmp_path / "author"
    folder.mkdir()
    with Author(folder, AIRFLOW_CONN_LAKE=json.dumps(connection), **WARM) as author:
        author.write("pull", DAG)
        yield author


def test_a_dag_goes_on_where_something_is_new(author: Author, lake: ObjectStore) -> None:
    first = stages(author.ask("run", "pull"))
    assert first["raw"]["versions"] == {"data": ["volume://raw/events@1"]}
    again = stages(author.ask("run", "pull"))
    assert again["raw"]["versions"] == {"data": ["volume://raw/events@1"]}
    assert again["count"]["versions"] == {"n": ["volume://raw/count@1"]}
    lake.put("lake/events/c", "3")
    third = stages(author.ask("run", "pull"))
    assert third["count"]["versions"] == {"n": ["volume://raw/count@2"]}
    plan = author.ask("plan", "pull")
    assert [stage["does"] for stage in plan["stages"]] == ["runs", "maybe"]
    assert author.is_clean()
    assert not [
        path for path in author.home.rglob("*") if path.is_file() and WORD.encode() in path.read_bytes()
    ]

    lake.stop()
    before = len(author.jobs())
    ended = author.muster("run", "pull")
    assert ended.returncode != 0
    assert "SourceAway: s3://lake/events does not answer" in ended.stdout + ended.stderr
    assert len(author.jobs()) == before + 2, "another try may find it again"
