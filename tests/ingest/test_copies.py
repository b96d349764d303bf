"""``muster volumes put`` and ``get`` from and to an object store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.author import Author
from tests.ingest.s3 import WORD, ObjectStore
from tests.ingest.test_sources import Quiet, cloud

pytestmark = [pytest.mark.slow, pytest.mark.data]


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[ObjectStore]:
    with ObjectStore(tmp_path / "s3") as lake:
        for name in ("a", "d/b"):
            lake.put(f"lake/events/{name}", name)
        yield lake


@pytest.fixture
def author(tmp_path: Path, lake: ObjectStore) -> Iterator[Author]:
    extra = {"endpoint_url": lake.url, "region_name": "us-east-1"}
    connection = {"conn_type": "aws", "login": "muster-test", "password": WORD, "extra": extra}
    folder = tmp_path / "author"
    folder.mkdir()
    with Author(folder, AIRFLOW_CONN_LAKE=json.dumps(connection)) as author:
        yield author


@pytest.mark.nightly  # contract/test_ingest.py fetches, test_sources.py sends
def test_there_and_back(author: Author, lake: ObjectStore) -> None:
    put = author.muster("volumes", "put", "s3://lake/events", "raw/events", "--connection", "lake")
    assert put.stdout == "volume://raw/events@1\n", put.stderr
    assert "put from s3://lake/events" in author.muster("volumes", "log", "raw/events").stdout

    words = ("volumes", "get", "raw/events", "s3://lake/copy", "--connection", "lake")
    got = author.muster(*words)
    assert "2 files, 2 of them sent" in got.stderr, got.stderr
    assert (lake.folder / "lake/copy/d/b").read_text() == "d/b"
    (lake.folder / "lake/copy/a").unlink()  # as if the copy had been interrupted
    again = author.muster(*words)
    assert "2 files, 1 of them sent" in again.stderr, again.stderr
    put = author.muster("volumes", "put", "s3://lake/copy", "raw/back", "--connection", "lake")
    assert put.returncode == 0, put.stderr
    lake.put("lake/copy/other", "x")
    refused = author.muster(*words)
    assert refused.returncode != 0
    assert "holds 'other', which is not of this version" in refused.stderr


class Busy(Quiet):
    """Serves one file, to those who ask often enough."""

    refused = 0

    def _answer(self) -> bytes:
        Busy.refused += 1
        self.send_response(503 if Busy.refused < 4 else 200)
        self.send_header("Content-Length", "1")
        self.send_header("ETag", "tag")
        self.end_headers()
        return b"a"


def test_a_source_that_does_not_answer_is_told_of(author: Author) -> None:
    with cloud(Busy) as where:
        put = author.muster("volumes", "put", f"{where}/a.csv", "raw/web")
    assert put.stdout == "volume://raw/web@1\n", put.stderr
    assert put.stderr.count(f"{where}/a.csv does not answer (ClientResponseError at ") == 1, put.stderr
    assert "asking again for up to 300 s" in put.stderr


def test_what_cannot_be_copied_is_said_and_nothing_is_there(author: Author) -> None:
    for words, said in (
        (("s3://lake/none", "raw/x", "--connection", "lake"), "s3://lake/none is not there"),
        (("s3://lake/events", "raw/x", "--connection", "nowhere"), "no Airflow connection 'nowhere'"),
    ):
        ran = author.muster("volumes", "put", *words)
        assert ran.returncode != 0
        assert said in ran.stderr, ran.stderr
        assert WORD not in ran.stderr
    assert author.ask("volumes", "ls") == []
