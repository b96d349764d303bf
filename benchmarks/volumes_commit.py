"""One measured commit, in a process of its own: by the muster on PYTHONPATH, or else this one.

``python volumes_commit.py CASE FOLDER [--compare] [--cold]`` prints the seconds from the end of the author's code to the
acknowledged version (seal and commit). The job writes the files of FOLDER/original. CASE is ``new`` (a new
volume) or ``second`` (a hundredth of the files changed since the first version).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from muster.core.data import OutputTarget
from muster.core.job import JobSpec, Role
from muster.core.replica import Replica
from muster.volumes.durability import sync_all
from muster.volumes.folder import FolderStore
from muster.volumes.tree import files_of, remove
from muster.worker.seal import seal

DIGEST = "b3:" + "0" * 64
SPEC = JobSpec(
    name="benchmark",
    image="none",
    image_digest=DIGEST,
    roles=(Role(entrypoint="none:none"),),
    outputs={"data": OutputTarget(volume="data")},
)


def main(arguments: Sequence[str]) -> int:
    """Prepare, measure, print the seconds, and delete everything."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.volumes_commit")
    parser.add_argument("case", choices=["new", "second"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--cold", action="store_true")
    asked = parser.parse_args(arguments)
    root = asked.folder / "store"
    store = FolderStore(root, compare=True) if asked.compare else FolderStore(root)
    prepare = cool if asked.cold else warm
    if asked.case == "second":
        commit(store, asked.folder, "benchmark-0", warm)
    seconds = commit(store, asked.folder, "benchmark-1", prepare, changed=asked.case == "second")
    print(json.dumps(seconds))
    remove(root)
    return 0


def commit(
    store: FolderStore, folder: Path, job_id: str, prepare: Callable[[Path], None], *, changed: bool = False
) -> float:
    """Run a job that writes the files of `folder`, and commit it; return the seconds of seal and commit."""
    store.ledger.create(job_id, SPEC)
    staging = store.stage(job_id)
    output = staging.output("main", 0, "data")
    output.parent.mkdir(parents=True)
    shutil.copytree(folder / "original", output)
    if changed:
        change(output)
    sync_all(folder)
    prepare(output)
    began = time.perf_counter()
    seal(
        Replica(
            job_id=job_id,
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
    store.commit(job_id, attempt=1)
    return time.perf_counter() - began


def change(output: Path) -> None:
    """Change the last byte of a hundredth of the files, and of at least one."""
    files = sorted(entry.path for entry in files_of(output))
    for path in files[: max(1, len(files) // 100)]:
        with Path(path).open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"!")


def warm(folder: Path) -> None:
    """Read every page into the page cache."""
    for entry in files_of(folder):
        Path(entry.path).read_bytes()


def cool(folder: Path) -> None:
    """Drop every page from the page cache."""
    for entry in files_of(folder):
        fd = os.open(entry.path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
