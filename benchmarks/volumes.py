"""Commits, with the seal: against ``dvc add`` with hard links, against one read of the files, and against each other.

``python -m benchmarks.volumes [--pairs N] [--folder F] [--against CHECKOUT] [--json]``

"Hot" is a new version of files that are in the page cache; "cold" is one whose pages were dropped first
(posix_fadvise(2), DONTNEED). A second version with 99 of 100 bytes or files unchanged shares these with the first; with
MUSTER_COMPARE it reads them again. A commit into a volume of ten thousand versions should cost the same as into a new
one, also after a gc of all but three (:mod:`benchmarks.volumes_full`). ``--against`` names a clone of an earlier muster,
whose commits are measured beside ours.

The cold ratio says as much about the disk as about the commit. Both read the same bytes from it once (getrusage(2),
ru_inblock: 1000 MiB each), but on a virtual disk one plain read of 1 GB took 0.4 to 1.7 s within a minute, on an idle machine.
A disk with a steady rate, or many pairs, gives a ratio to trust.

Each other commit runs in a process of its own. All start from files that are on disk, and end when the result is on disk
(DVC does not sync, so its file system is synced after it). DVC gets its own virtual environment in the cache, once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from uv import find_uv_bin

from benchmarks.pairs import Ratio, compare, ratio, show
from benchmarks.volumes_commit import cool, warm
from muster.core.settings import Settings
from muster.volumes.durability import sync_all
from muster.volumes.tree import files_of, remove

DVC = "dvc==3.67.1"
BLOCK_BYTES = 1 << 20
COMMIT = Path(__file__).with_name("volumes_commit.py")
# name: number of files, bytes of each, and promised ratio to DVC
CASES = {"1 GB in 5 files": (5, 200 << 20, 8.0), "20,000 files of 8 KiB": (20_000, 8 << 10, 7.0)}
SECOND = {"1 GB in 100 files": (100, 10 << 20), "20,000 files of 8 KiB": (20_000, 8 << 10)}
ROWS = (33, 4 << 10)  # committed into a volume of ten thousand versions


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.volumes")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, help="a folder on the disk to measure; needs 6 GB (default: $TMPDIR)"
    )
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="a clone of an earlier muster")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    dvc = environment(Settings.load().cache / "benchmarks" / DVC.replace("==", "-"))
    ratios = measured(options.folder, dvc, options.against, pairs=options.pairs)
    return show("commit of a version", ratios, as_json=options.json)


def measured(base: Path | None, dvc: Path, against: Path | None, *, pairs: int) -> Iterator[Ratio]:
    """Yield each case's ratio as soon as it is known: each takes minutes."""
    for name, (files, size_bytes, times) in CASES.items():
        with original(base, files, size_bytes) as folder:
            yield from to_others(folder, dvc, name, pairs=pairs, limit=1 / times)
            if against:
                yield to_earlier(folder, against, f"{name}, hot, to an earlier muster", "new", pairs=pairs)
    for name, (files, size_bytes) in SECOND.items():
        with original(base, files, size_bytes) as folder:
            yield to_itself(folder, name, pairs=pairs)
            if against:
                case = f"{name}, 99 % equal, to an earlier muster"
                yield to_earlier(folder, against, case, "second", pairs=pairs)
    with original(base, *ROWS) as folder:
        yield from into_full(folder)


def to_others(folder: Path, dvc: Path, name: str, *, pairs: int, limit: float) -> Iterator[Ratio]:
    """Yield the ratios of a new version's commit to DVC, and to a read of its files."""
    (hot,) = compare(partial(add, folder, dvc), partial(commit, folder, "new"), pairs=pairs)
    yield ratio(f"{name}, hot, to DVC", *hot, unit="s", limit=limit)
    (cold,) = compare(partial(read, folder), partial(commit, folder, "new", "--cold"), pairs=pairs)
    yield ratio(f"{name}, cold, to a read", *cold, unit="s", limit=1.2)


def to_itself(folder: Path, name: str, *, pairs: int) -> Ratio:
    """Return the ratio of a second version's commit that reads shared files again to one that does not."""
    second = partial(commit, folder, "second")
    (found,) = compare(second, partial(commit, folder, "second", "--compare"), pairs=pairs)
    return ratio(f"{name}, 99 % equal, compared", *found, unit="s", limit=2.5)


def to_earlier(folder: Path, checkout: Path, name: str, case: str, *, pairs: int) -> Ratio:
    """Return the ratio of a commit to that of an earlier muster."""
    theirs = partial(commit, folder, case, checkout=checkout.absolute())
    (found,) = compare(theirs, partial(commit, folder, case), pairs=pairs)
    return ratio(name, *found, unit="s", limit=1.15)


def into_full(folder: Path) -> Iterator[Ratio]:
    """Yield the ratios of commits into a full volume to commits into a new one, before and after a gc."""
    command = [sys.executable, "-m", "benchmarks.volumes_full", folder]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    for when, ((new, full),) in zip(("", " after a gc"), json.loads(ran.stdout), strict=True):
        yield ratio(f"into 10,000{when}, to a new volume", new, full, unit="s", limit=1.2)


def commit(folder: Path, *words: str, checkout: Path | None = None) -> list[float]:
    """Seconds that one commit takes; `checkout` is an earlier muster's, whose script knows its names."""
    environment = dict(os.environ, PYTHONPATH=str(checkout / "operators")) if checkout else None
    case, *options = words
    script = checkout / "benchmarks" / COMMIT.name if checkout else COMMIT
    command = [sys.executable, script, case, folder, *options]
    ran = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    return [float(json.loads(ran.stdout))]


def add(folder: Path, dvc: Path) -> list[float]:
    """Seconds that ``dvc add`` takes in a new repository."""
    repository = folder / "repository"
    repository.mkdir()
    tell = partial(
        subprocess.run, cwd=repository, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    for words in (
        ["init", "--no-scm"],
        ["config", "cache.type", "hardlink"],
        ["config", "core.analytics", "false"],
    ):
        tell([dvc, *words])
    copy(folder, repository / "data")
    warm(repository / "data")
    began = time.perf_counter()
    tell([dvc, "add", "--quiet", "data"])
    sync_all(repository)
    seconds = time.perf_counter() - began
    remove(repository)
    return [seconds]


def read(folder: Path) -> list[float]:
    """Seconds to read every file once from the disk."""
    copy(folder, folder / "copy")
    cool(folder / "copy")
    buffer = bytearray(BLOCK_BYTES)
    began = time.perf_counter()
    for entry in files_of(folder / "copy"):
        with Path(entry.path).open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    seconds = time.perf_counter() - began
    remove(folder / "copy")
    return [seconds]


def copy(folder: Path, target: Path) -> None:
    """Copy the original to `target`, and sync it."""
    shutil.copytree(folder / "original", target)
    sync_all(folder)


def write(folder: Path, *, files: int, size_bytes: int) -> None:
    """Write random files, a thousand to a folder."""
    for number in range(files):
        inner = folder / f"{number // 1000:03}"
        inner.mkdir(parents=True, exist_ok=True)
        (inner / f"part-{number:05}.bin").write_bytes(os.urandom(size_bytes))


def environment(folder: Path) -> Path:
    """Return DVC's command; install it into `folder` if needed."""
    command, uv = folder / "bin" / "dvc", find_uv_bin()  # uv is a requirement, and not on PATH
    if not command.exists():
        new = folder.with_name(f"{folder.name}.{os.getpid()}")
        run = partial(subprocess.run, check=True)
        run([uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, new])
        run([uv, "pip", "install", "--quiet", "--python", new / "bin" / "python", DVC])
        new.rename(folder)
    return command


@contextmanager
def original(base: Path | None, files: int, size_bytes: int) -> Iterator[Path]:
    """Yield a folder with the files to commit in its ``original``."""
    with scratch(base) as folder:
        write(folder / "original", files=files, size_bytes=size_bytes)
        yield folder


@contextmanager
def scratch(base: Path | None) -> Iterator[Path]:
    """Yield a folder that is deleted afterwards, with its read-only files."""
    folder = Path(tempfile.mkdtemp(prefix="muster-volumes-", dir=base))
    try:
        yield folder
    finally:
        remove(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
