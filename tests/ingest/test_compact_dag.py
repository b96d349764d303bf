"""A Dag that joins what another one ingests: the version is replaced in one step, and the next ingest goes on from it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.e2e.author import WARM, Author, stages
from tests.waiting import eventually

from muster.backends.base import Backend
from muster.backends.local.machine import Machine
from muster.backends.local.place import MachinePlace
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.core.status import JobState
from muster.core.verdict import Cause
from muster.images.folders import find_image, image_folders, put_image

pytestmark = [pytest.mark.slow, pytest.mark.data]

DAGS = """
from datetime import timedelta

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


@dag(schedule=None)
def both():
    often = {"retries": 3, "retry_delay": timedelta(seconds=0.1)}
    IngestOperator(
        task_id="raw", source="sql://shop", query="select * from orders", watermark="id", volume="raw/orders", **often
    )
    CompactOperator(task_id="join", volume="raw/orders", **often)


pull()
join()
both()
"""
READS = (
    "import sys, pyarrow.parquet; print(sorted(pyarrow.parquet.read_table(sys.argv[1])['id'].to_pylist()))"
)


@pytest.fixture
def author(tmp_path: Path) -> Iterator[Author]:
    folder = tmp_path / "author"
    folder.mkdir()
    connection = {"conn_type": "sqlite", "host": str(tmp_path / "shop.db")}
    with Author(folder, AIRFLOW_CONN_SHOP=json.dumps(connection), **WARM) as author:
        author.write("orders", DAGS)
        yield author


@pytest.mark.nightly  # test_compact.py joins, and the retry below commits
def test_the_joined_version_replaces_what_it_joins(author: Author, tmp_path: Path) -> None:
    assert stages(author.ask("run", "join"))["join"]["state"] == "skipped", "there is no version yet"
    for number in range(3):
        sell(tmp_path, number)
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


def test_the_retry_of_an_overtaken_commit_begins_with_the_version_that_overtook_it(
    author: Author, tmp_path: Path, python: Path
) -> None:
    """Both tasks have chosen version 2 when another one comes; then each may overtake the other."""
    for number in range(2):
        sell(tmp_path, number)
        author.ask("run", "pull")
    sell(tmp_path, 2)
    settings = Settings(home=author.home, cache=Settings.load().cache)
    with closing(Backend(MachinePlace(settings))) as backend:
        with whole_machine(backend, settings):
            run = author.start("run", "both")
            eventually(lambda: len(waiting(backend)) == 2)
            backend.store.copy("raw/orders@2", "raw/orders", request="0" * 16)
        assert run.wait(300) == 0, author.log.read_text()[-4000:]
        last, *before = reversed(backend.store.versions("raw/orders"))
        for task in ("both.raw", "both.join"):
            said = refusals(backend, task)[0]
            assert "was to come after volume://raw/orders@2, and volume://raw/orders@3 is there" in said
        read = subprocess.check_output([python, "-c", READS, backend.store.path(last.address)], text=True)
        assert read == "[0, 1, 2]\n", "no row is lost, and none is there twice"
        assert [version.retired is None for version in before if version.number < 3] == [True, True]
        assert [version.retired for version in before if version.retired], "what was joined is replaced"
    assert author.is_clean()


def sell(tmp_path: Path, number: int) -> None:
    """Add a row to the database."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as opened, opened:
        opened.execute("create table if not exists orders (id integer)")
        opened.execute("insert into orders values (?)", (number,))


@contextmanager
def whole_machine(backend: Backend, settings: Settings) -> Iterator[None]:
    """Have all other jobs wait."""
    image = find_image("python", image_folders(settings))
    role = Role(command=("sleep", "600"), resources=Resources(memory_gib=Machine.here().memory_gib - 0.5))
    digest = put_image(backend.store, image)
    backend.submit(JobSpec(name="a.hold", image="python", image_digest=digest, roles=(role,)), job_id="hold")
    eventually(lambda: backend.status("hold").state is JobState.RUNNING)
    try:
        yield
    finally:
        backend.cancel("hold")


def waiting(backend: Backend) -> list[str]:
    """The jobs that are queued."""
    ledger = backend.store.ledger
    return [job.job_id for job in ledger.statuses(ledger.jobs()) if job.state is JobState.QUEUED]


def refusals(backend: Backend, name: str) -> list[str]:
    """Why commits of a task's tries were refused, the first one first."""
    ledger = backend.store.ledger
    tried = [each.verdict for each in ledger.statuses(ledger.jobs()) if ledger.spec(each.job_id).name == name]
    failed = [verdict for verdict in tried if verdict is not None]
    assert {verdict.cause for verdict in failed} == {Cause.COMMIT_FAILED}
    return [verdict.message for verdict in failed]
