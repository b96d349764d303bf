"""An ingest from S3, beside fsspec's own parallel copy with as many streams; and what nothing new costs beyond the list.

``python -m benchmarks.ingest [--pairs N] [--json]``

The S3 server, versitygw over a folder, runs on the same machine and shares its cores with both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.ingest.s3 import EXTRAS, ObjectStore

from benchmarks.pairs import Ratio, compare, ratio, show
from muster.core.settings import Settings
from muster.images.environment import Environments
from muster.images.folders import put_image
from muster.volumes.folder import FolderStore

ROOT = Path(__file__).parents[1]
IMAGE = ROOT / "images" / "ingest"
STREAMS = 16
SMALL, SMALL_BYTES = 1_000, 64 << 10
LARGE, LARGE_BYTES = 16, 8 << 20
MANY = 10_000
AT_LEAST, SECONDS = 0.8, 1.0


class Copies:
    """Copies of one server's buckets."""

    def __init__(self, lake: ObjectStore, folder: Path) -> None:
        self._lake, self._folder = lake, folder
        store = FolderStore(folder / "store")
        self._python = Environments(Settings.load().cache).ensure("ingest", IMAGE, put_image(store, IMAGE))

    def fill(self, bucket: str, count: int, size: int) -> None:
        """Make a bucket with objects of one size, in bytes."""
        for number in range(count):
            self._lake.put(f"{bucket}/d{number % 16}/{number}", os.urandom(size))

    def seconds(self, verb: str, bucket: str, *, target: str = "target", before: str = "") -> float:
        """Copy a bucket once, in a process of its own."""
        what = {"source": f"s3://{bucket}", "streams": STREAMS, "extras": EXTRAS}
        told = subprocess.run(
            [
                self._python,
                ROOT / "benchmarks" / "ingest_in_image.py",
                verb,
                json.dumps(what),
                self._folder / target,
                self._folder / before if before else "",
            ],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(IMAGE), **self._lake.variables()},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        return float(told.splitlines()[-1])


def measure(folder: Path, *, pairs: int) -> Iterator[Ratio]:
    """Measure both sizes of objects, then a bucket of which nothing is new."""
    with ObjectStore(folder / "s3") as lake:
        copies = Copies(lake, folder)
        for name, count, size in (("small", SMALL, SMALL_BYTES), ("large", LARGE, LARGE_BYTES)):
            copies.fill(name, count, size)
            ((base, ours),) = compare(
                lambda name=name: [1 / copies.seconds("fsspec", name)],  # type: ignore[misc]
                lambda name=name: [1 / copies.seconds("ingest", name)],  # type: ignore[misc]
                pairs=pairs,
            )
            yield ratio(
                f"S3 ingest, {count} of {size >> 10} KiB, fsspec's {STREAMS} streams",
                base,
                ours,
                unit="copies/s",
                limit=AT_LEAST,
                at_least=True,
            )
        copies.fill("many", MANY, 1)
        copies.seconds("ingest", "many", target="before")
        ((base, ours),) = compare(
            lambda: [copies.seconds("list", "many")],
            lambda: [copies.seconds("ingest", "many", before="before")],
            pairs=pairs,
        )
        beyond = [mine - theirs for theirs, mine in zip(base, ours, strict=True)]
        yield ratio(
            f"nothing new of {MANY} objects: seconds beyond the list, to {SECONDS:g} s",
            [SECONDS] * pairs,
            beyond,
            unit="s",
            limit=1.0,
        )


def main(arguments: Sequence[str]) -> int:
    """Measure and print; 1 if a promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingest")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="muster-ingest-") as folder:
        return show("S3 on this machine", measure(Path(folder), pairs=options.pairs), as_json=options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
