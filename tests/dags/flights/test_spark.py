"""The features of flights on Spark, a gang, have the rows of those on DuckDB."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.contract.one_machine import one_machine
from tests.dags.flights.conftest import ROOT, Probe
from tests.waiting import until

from muster.backends.base import Backend
from muster.backends.local.places import Places
from muster.core.data import OutputTarget
from muster.core.job import JobSpec, Launcher, Role
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.core.status import JobState
from muster.images.folders import put_image

pytestmark = [pytest.mark.slow, pytest.mark.data]

CODE = ("flights/__init__.py", "flights/etl.py", "flights/spark.py")
PATIENCE_SECONDS = 400.0  # forty stages of Spark, on two cores that others use


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    yield from one_machine(Places(tmp_path / "home"), Settings.load().cache, memory_gib=10)


def made(backend: Backend, image: str, entrypoint: str, launcher: Launcher, replicas: int) -> Path:
    """Run the stage for a month; return the folder that holds it, under its name."""
    role = Role(entrypoint=entrypoint, replicas=replicas, resources=Resources(cpus=1, memory_gib=2))
    spec = JobSpec(
        name="flights.features",
        image=image,
        image_digest=put_image(backend.store, ROOT / "images" / image),
        code=backend.store.put(ROOT / "dags", CODE),
        roles=(role,),
        launcher=launcher,
        params={"since": "2013-02", "month": "2013-02"},
        outputs={"features": OutputTarget(volume=f"{image}/features")},
    )
    backend.submit(spec, job_id=image)
    until(lambda: backend.status(image).state.ended, seconds=PATIENCE_SECONDS)
    status = backend.status(image)
    assert status.state is JobState.SUCCEEDED, backend.store.ledger.read(image)[0].decode()[-3000:]
    assert status.result is not None
    assert status.result.metrics["rows"] == 23_611
    (address,) = status.result.outputs["features"]
    return backend.store.path(address)


@pytest.mark.smoke
def test_the_stage_is_imported_in_the_image_of_spark(python_of: Callable[[str], Path]) -> None:
    words = [python_of("spark"), "-c", "import flights.spark"]
    subprocess.run(words, check=True, env={**os.environ, "PYTHONPATH": str(ROOT / "dags")})


@pytest.mark.nightly
def test_a_gang_of_spark_makes_the_rows_that_duckdb_makes(backend: Backend, probe: Probe) -> None:
    duckdb = made(backend, "etl", "flights.etl:features", Launcher.PLAIN, 1)
    spark = made(backend, "spark", "flights.spark:features", Launcher.SPARK, 3)
    assert probe("etl", "equal", duckdb, spark) == {
        "months": ["2013-02"],
        "others": ["2013-02"],
        "rows": 23_611,
        "differ": [],
    }
