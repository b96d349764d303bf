"""A mirror in an S3 bucket, by s3fs, whose packages are installed once into the cache: muster itself needs none of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.packages import installed

HERE = Path(__file__).parent
LOCK = HERE / "s3" / "requirements.txt"
REGION = {"AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.fixture(scope="session")
def packages() -> Path:
    """What the lock names, in a folder of the cache."""
    return installed(LOCK)


@pytest.mark.data
@pytest.mark.smoke
@pytest.mark.parametrize(
    ("marks", "seconds"), [("not soak", 600), pytest.param("soak", 3600, marks=pytest.mark.soak)]
)
def test_the_contract_of_mirrors_holds_on_s3(
    marks: str, seconds: float, packages: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", "-m", marks),
            *("--basetemp", str(tmp_path / "s3"), str(HERE / "mirrors_on_s3.py")),
        ],
        env={**os.environ, **REGION, "PYTHONPATH": str(packages)},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    print(done.stdout[-2000:])
