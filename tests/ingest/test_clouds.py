"""Object stores of Google and Azure, with servers of their protocols."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ingest.clouds import KEY, Azure, Cloud, Gcs
from tests.ingest.test_sources import contents

pytestmark = [pytest.mark.slow, pytest.mark.data, pytest.mark.nightly]
NPM = pytest.mark.skipif(shutil.which("npm") is None, reason="Azurite comes with npm")

BEFORE = {
    "lake/events/a.csv": "a",
    "lake/events/d/b.csv": "b",
    "lake/events/d/c.csv": "c",
    "lake/other/x": "x",
}
AFTER = {"lake/events/a.csv": "changed", "lake/events/d/b.csv": None, "lake/events/new.csv": "n"}


@pytest.fixture(
    scope="module", params=[pytest.param(Gcs, id="gs"), pytest.param(Azure, id="abfs", marks=NPM)]
)
def cloud(
    request: pytest.FixtureRequest, python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cloud]:
    folder = tmp_path_factory.mktemp("cloud") / "server"
    with request.param(python, folder) as server:
        yield server


def test_only_what_changed_is_fetched(ingest: Any, cloud: Cloud, tmp_path: Path) -> None:
    cloud.change(BEFORE, buckets=["lake"])
    source = cloud.url("lake", "events")
    first = ingest("one", source, fields=cloud.fields, extra=cloud.extra)
    assert first["files"] == 3, first
    assert contents(tmp_path / "one") == {"a.csv": "a", "d/b.csv": "b", "d/c.csv": "c"}
    cloud.change(AFTER)
    second = ingest("two", source, before="one", fields=cloud.fields, extra=cloud.extra)
    assert (second["fetched"], second["kept"], second["gone"]) == (2, 1, 1)
    assert contents(tmp_path / "two") == {"a.csv": "changed", "new.csv": "n"}


@pytest.mark.parametrize(("bucket", "prefix"), [("nowhere", "x"), ("lake", "none")])
def test_a_bucket_or_prefix_that_is_not_there_is_called_that(
    ingest: Any, cloud: Cloud, bucket: str, prefix: str
) -> None:
    said = ingest("one", cloud.url(bucket, prefix), fields=cloud.fields, extra=cloud.extra)
    assert "is not there" in said["message"], said


@NPM
def test_a_key_that_is_wrong_is_named_by_its_connection_and_not_shown(
    ingest: Any, python: Path, tmp_path: Path
) -> None:
    wrong = KEY.replace("Eby8", "Abc9")
    with Azure(python, tmp_path / "server") as server:
        server.change({}, buckets=["lake"])
        extra = {"connection_string": server.connection(wrong)}
        said = ingest("one", server.url("lake", "events"), extra=extra, connection="azure")
    assert said["error"] == "IngestError", said
    assert "refuses connection 'azure'" in said["message"]
    assert wrong[:20] not in str(said)
