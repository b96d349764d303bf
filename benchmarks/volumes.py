"""Commits, seal included: hot against ``dvc add`` with hard links, cold against reading the same files once.

``python -m benchmarks.volumes [--pairs N] [--folder F] [--json]``

Both start from files that are on disk already and end when their result is (DVC does not sync, so
its file system is synced after it). DVC gets a virtual environment of its own in the cache, once.
Cold means that the files' pages were given up first (posix_fadvise(2), DONTNEED).
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

from benchmarks.pairs import Ratio, compare, ratio, show
from muster.core.job import JobSpec, Output, Role
from muster.core.replica import Replica
from muster.core.settings import Settings
from muster.volumes.durability import sync_all
from muster.volumes.folder import FolderStore
from muster.volumes.tree import files_of, remove
from muster.worker.seal import seal

DVC = "dvc==3.67.1"
BLOCK_BYTES = 1 << 20
DIGEST = "b3:" + "0" * 64
SPEC = JobSpec(
    name="benchmark",
    image="none",
    image_digest=DIGEST,
    roles=(Role(entrypoint="none:none"),),
    outputs={"data": Output(volume="data")},
)
CASES = {"1 GB in 5 files": (5, 200 << 20), "20,000 files of 8 KiB": (20_000, 8 << 10)}


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 where a promise was not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.volumes")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; needs 4 GB (default: $TMPDIR)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    dvc = environment(Settings.load().cache / "benchmarks" / DVC.replace("==", "-"))
    ratios: list[Ratio] = []
    for name, (files, size_bytes) in CASES.items():
        with scratch(options.folder) as folder:
            write(folder / "original", files=files, size_bytes=size_bytes)
            ratios += measure(folder, dvc, name, pairs=options.pairs)
    return show("commit of a new version", ratios, as_json=options.json)


def measure(folder: Path, dvc: Path, name: str, *, pairs: int) -> list[Ratio]:
    """Return the ratios of one case, hot and cold."""
    (hot,) = compare(partial(add, folder, dvc), partial(commit, folder, warm), pairs=pairs)
    (cold,) = compare(partial(read, folder), partial(commit, folder, cool), pairs=pairs)
    return [
        ratio(f"{name}, hot, to DVC", *hot, unit="s", limit=1 / 8),
        ratio(f"{name}, cold, to a read", *cold, unit="s", limit=1.2),
    ]


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
    copy(folder, repository / "data", warm)
    began = time.perf_counter()
    tell([dvc, "add", "--quiet", "data"])
    sync_all(repository)
    seconds = time.perf_counter() - began
    remove(repository)
    return [seconds]


def commit(folder: Path, prepare: Callable[[Path], None]) -> list[float]:
    """Seconds from the end of the author's code to the acknowledged version: seal and commit."""
    store = FolderStore(folder / "store")
    store.ledger.create("benchmark-1", SPEC)
    staging = store.stage("benchmark-1")
    output = staging.output("main", 0, "data")
    output.parent.mkdir(parents=True)
    copy(folder, output, prepare)
    began = time.perf_counter()
    seal(
        Replica(
            job_id="benchmark-1",
            spec=SPEC,
            attempt=1,
            role="main",
            index=0,
            code=None,
            inputs={},
            staging={"data": str(output)},
            checkpoints=str(staging.checkpoints),
            scratch=str(folder),
            sealed=str(staging.sealed("main", 0)),
            report=str(folder / "report"),
        )
    )
    store.commit("benchmark-1", attempt=1)
    seconds = time.perf_counter() - began
    remove(folder / "store")
    return [seconds]


def read(folder: Path) -> list[float]:
    """Seconds to read every file once, from the disk, and do nothing with it."""
    copy(folder, folder / "copy", cool)
    buffer = bytearray(BLOCK_BYTES)
    began = time.perf_counter()
    for entry in files_of(folder / "copy"):
        with Path(entry.path).open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    seconds = time.perf_counter() - began
    remove(folder / "copy")
    return [seconds]


def copy(folder: Path, target: Path, prepare: Callable[[Path], None]) -> None:
    """Copy the original to `target`, bring it to disk, and warm or cool it."""
    shutil.copytree(folder / "original", target)
    sync_all(folder)
    prepare(target)


def warm(folder: Path) -> None:
    """Have every page in memory."""
    for entry in files_of(folder):
        Path(entry.path).read_bytes()


def cool(folder: Path) -> None:
    """Have no page in memory."""
    for entry in files_of(folder):
        fd = os.open(entry.path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def write(folder: Path, *, files: int, size_bytes: int) -> None:
    """Write random files, a thousand in a folder."""
    for number in range(files):
        inner = folder / f"{number // 1000:03}"
        inner.mkdir(parents=True, exist_ok=True)
        (inner / f"part-{number:05}.bin").write_bytes(os.urandom(size_bytes))


def environment(folder: Path) -> Path:
    """Return DVC's command, installed into `folder` if it is not there."""
    command = folder / "bin" / "dvc"
    if not command.exists():
        new = folder.with_name(f"{folder.name}.{os.getpid()}")
        run = partial(subprocess.run, check=True)
        run(["uv", "venv", "--quiet", "--relocatable", new])
        run(["uv", "pip", "install", "--quiet", "--python", new / "bin" / "python", DVC])
        new.rename(folder)
    return command


@contextmanager
def scratch(base: Path | None) -> Iterator[Path]:
    """Give a folder that is gone afterwards, read-only files included."""
    folder = Path(tempfile.mkdtemp(prefix="muster-volumes-", dir=base))
    try:
        yield folder
    finally:
        remove(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
