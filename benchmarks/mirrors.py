"""Mirrors of a folder into a folder, against rsync followed by a sync; a mirror with nothing to do; what a change moves.

``python -m benchmarks.mirrors [--pairs N] [--folder F] [--json]``

Both begin with warm files and an empty target, and end when the bytes are on the disk; neither reads what it wrote again. rsync
copies the version's folder; muster makes a version of it with manifest, record and commit. Without rsync (Debian: ``rsync``) the first
part is left out. The mirror with nothing to do lists ten thousand versions on both sides; it runs in this process, since a
command's start is measured elsewhere. The last is a share of bytes: 1 % inserted into a file that is sent to a store service.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.unit.volumes.service.process import Service

from benchmarks.pairs import LEFT_OUT, Ratio, compare, ratio, show
from muster.ext.mirrors.copying import Copying
from muster.ext.mirrors.folder import FolderHome
from muster.ext.mirrors.service_home import ServiceHome
from muster.volumes.durability import sync_all
from muster.volumes.folder import FolderStore
from muster.volumes.tree import remove

CASES = {"500 MB in 5 files": (5, 100 << 20), "10,000 files of 8 KiB": (10_000, 8 << 10)}
SLOWEST = 1 / 0.8  # of rsync's time
VERSIONS = 10_000
NOTHING_SECONDS = 1.0
CHANGED = 0.015


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mirrors")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, help="a folder on the disk to measure; needs 4 GB (default: $TMPDIR)"
    )
    parser.add_argument("--versions", type=int, default=VERSIONS, help="of the mirror with nothing to do")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rsync = shutil.which("rsync")
    code = show("mirror", measured(options, rsync), as_json=options.json)
    if rsync is None:
        print("rsync is not on PATH: the copies were left out", file=sys.stderr)
    return code or (LEFT_OUT if rsync is None else 0)


def measured(options: argparse.Namespace, rsync: str | None) -> Iterator[Ratio]:
    """Yield each ratio as soon as it is known."""
    for name, (files, size) in CASES.items() if rsync else ():
        with folder(options.folder) as home:
            store = filled(home, files, size)
            ours, base = partial(mirrored, home, store), partial(copied, home, store, str(rsync))
            ((theirs, mine),) = compare(base, ours, pairs=options.pairs)
            yield ratio(name, theirs, mine, unit="s", limit=SLOWEST)
    with folder(options.folder) as home:
        took = nothing_to_do(home, options.versions)
        yield ratio(
            f"nothing to do at {options.versions} versions, against {NOTHING_SECONDS:g} s",
            [NOTHING_SECONDS] * len(took),
            took,
            unit="s",
            limit=1.0,
        )
    with folder(options.folder) as home:
        yield ratio("1 % inserted, share of bytes sent", *changed(home), unit="bytes", limit=CHANGED)


def filled(home: Path, files: int, size: int) -> FolderStore:
    """Make a store with one version."""
    (home / "rows").mkdir()
    for number in range(files):
        (home / f"rows/{number:05d}").write_bytes(os.urandom(size))
    store = FolderStore(home / "store")
    store.add("rows", home / "rows")
    return store


def timed(target: Path, act: Callable[[], object]) -> list[float]:
    sync_all(target.parent)
    began = time.perf_counter()
    act()
    took = time.perf_counter() - began
    remove(target)
    sync_all(target.parent)
    return [took]


def mirrored(home: Path, store: FolderStore) -> list[float]:
    target = home / "mirror"
    return timed(
        target,
        lambda: Copying(FolderHome(store), FolderHome(FolderStore(target)), verify=False).run(),
    )


def copied(home: Path, store: FolderStore, rsync: str) -> list[float]:
    target = home / "copy"

    def act() -> None:
        subprocess.run([rsync, "--archive", f"{store.layout.root}/v/rows/1/", f"{target}/"], check=True)
        sync_all(home)

    return timed(target, act)


def nothing_to_do(home: Path, versions: int) -> list[float]:
    """Mirror many small versions, and then again with nothing to do."""
    store = FolderStore(home / "store")
    (home / "row").mkdir()
    (home / "row/a").write_text("1")
    for number in range(versions):
        store.add(f"rows/v{number % 10}", home / "row")
    target = FolderStore(home / "mirror")
    Copying(FolderHome(store), FolderHome(target), verify=False).run()
    took = []
    for _ in range(3):
        began = time.perf_counter()
        done = Copying(
            FolderHome(FolderStore(home / "store")), FolderHome(FolderStore(home / "mirror"))
        ).run()
        took.append(time.perf_counter() - began)
        assert done.present == versions
    return took


def changed(home: Path) -> tuple[list[float], list[float]]:
    """Return the bytes of a file, and those that are sent after 1 % more was inserted into it."""
    data = os.urandom(100 << 20)
    (home / "rows").mkdir()
    (home / "served").mkdir()
    store = FolderStore(home / "store")
    sent = []
    with Service(home / "served") as service:
        for content in (data, data[: 40 << 20] + os.urandom(len(data) // 100) + data[40 << 20 :]):
            (home / "rows/table").write_bytes(content)
            store.add("rows", home / "rows")
            target = ServiceHome(service.client())
            sent.append(Copying(FolderHome(store), target, verify=False).run().sent_bytes)
            target.close()
    return [float(len(data))], [float(sent[1])]


@contextmanager
def folder(base: Path | None) -> Iterator[Path]:
    """Lend an empty folder."""
    home = Path(tempfile.mkdtemp(dir=base))
    try:
        yield home
    finally:
        remove(home)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
