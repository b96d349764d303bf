"""The pipeline whose features a gang of Spark makes, unchanged, on the cluster; and the same rows by DuckDB beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.cluster import author, kubectl, left
from tests.cluster.deploying import Served
from tests.cluster.places import places, ran
from tests.cluster.test_flights_search import copy_dags
from tests.dags.flights.conftest import Probe, probe, python_of  # noqa: F401 - fixtures
from tests.e2e.author import Author, stages

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

SECONDS = 2400.0  # a year by Spark on a machine that other things share
MONTHS, ROWS = 12, 327_346
RAN = "flights_spark on the cluster: each stage's seconds, and where its pods ran"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copy_dags(tmp_path)
    return tmp_path


def test_it_runs_from_the_rows_to_a_prediction_and_has_the_rows_of_duckdb(
    served: Served,
    folder: Path,
    probe: Probe,  # noqa: F811
    record_property: Callable[[str, object], None],
) -> None:
    file = author.write_file(served.of, folder, **served.written())
    with (
        Author(folder, MUSTER_CLUSTER=str(file)) as user,
        places(served.of, folder / "places") as seen,
    ):

        def run(*words: str) -> dict[str, dict[str, object]]:
            done = user.muster("run", *words, "--json", seconds=SECONDS)
            print(done.stderr[-20_000:])
            assert done.returncode == 0, done.stderr[-4000:]
            return stages(json.loads(done.stdout))

        spark = run("flights_spark")
        duckdb = run("flights")
    for name, stage in spark.items():
        nodes = ", ".join(sorted(ran(seen).get(str(stage.get("job_id")), set())))
        record_property(RAN, f"{name:10} {stage['seconds']:7.1f} s  {nodes}")
    pairs = [months(served, folder / each, made) for each, made in (("spark", spark), ("duckdb", duckdb))]
    found = probe("etl", "equal", *pairs)
    assert (len(found["months"]), found["others"]) == (MONTHS, found["months"])
    assert (found["rows"], found["differ"]) == (ROWS, [])
    kubectl.until("nothing is left", lambda: not left.of_anybody(served.of))


def months(served: Served, folder: Path, made: dict[str, dict[str, object]]) -> Path:
    """Return a folder with the versions of the features, each under its partition."""
    folder.mkdir()
    versions = made["features"]["versions"]
    assert isinstance(versions, dict)
    addresses: Sequence[str] = versions["features"]
    for address in addresses:
        partition = served.store.record(address).partition
        assert partition is not None
        (folder / partition).symlink_to(served.store.path(address))
    return folder
