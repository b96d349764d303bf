"""Makes the flights of the engines' benchmark: ``python -m benchmarks.flights_rows FOLDER [--rows N]``, by default 100 million.

How they are made of the real rows stands in :mod:`benchmarks.engine_jobs.rows`. 100 million take some 2 GB and a few minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from muster.core.settings import Settings
from muster.images.environment import Environments
from muster.images.folders import find_image, image_digest, image_folders

HERE = Path(__file__).parent
JOBS, DAGS = HERE / "engine_jobs", HERE.parent / "dags"
ROWS = 100_000_000


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flights_rows")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=ROWS)
    options = parser.parse_args(arguments)
    make(options.folder, options.rows)
    return 0


def make(folder: Path, rows: int) -> None:
    """Write `rows` flights, with their weather, planes and airports, below a folder."""
    command = [python_of("etl"), JOBS / "rows.py", folder, str(rows)]
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(DAGS)}
    )


def python_of(image: str) -> Path:
    """Return the Python of an image of this checkout, built where the cache lacks it."""
    settings = Settings.load()
    folder = find_image(image, image_folders(settings))
    return Environments(settings.cache).ensure(
        image, folder, image_digest(folder), lambda line: print(line, file=sys.stderr)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
