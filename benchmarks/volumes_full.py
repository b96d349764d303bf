"""Commits into a volume of ten thousand versions, before and after a gc, each in turns with commits into a new volume.

``python -m benchmarks.volumes_full FOLDER [--turns N]`` prints the seconds of each commit, from the end of the author's
code to the acknowledged version (seal and commit): before the gc and after it, into a new volume and into the full one.
The store is opened again for each commit, and the files of FOLDER/original are new in each turn, so that no commit shares
them with the version before.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.pairs import compare
from benchmarks.volumes_commit import commit, warm
from muster.core import wire
from muster.volumes.durability import sync_all
from muster.volumes.folder import FolderStore
from muster.volumes.manifest import digest_of
from muster.volumes.tree import files_of, remove

VERSIONS = 10_000


def main(arguments: Sequence[str]) -> int:
    """Prepare, measure in turns, print the seconds, and delete everything."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.volumes_full")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--turns", type=int, default=15)
    asked = parser.parse_args(arguments)
    full = asked.folder / "full"
    many(FolderStore(full), asked.folder)
    before = in_turns(asked.folder, full, turns=asked.turns)
    FolderStore(full).collect()
    after = in_turns(asked.folder, full, turns=asked.turns)
    print(json.dumps([before, after]))
    remove(full)
    return 0


def in_turns(folder: Path, full: Path, *, turns: int) -> list[tuple[list[float], list[float]]]:
    """Return the seconds of commits into new volumes, and of those into the full one."""
    job_ids = map("benchmark-{}".format, itertools.count(time.time_ns()))

    def into(root: Path) -> list[float]:
        for entry in files_of(folder / "original"):
            Path(entry.path).write_bytes(os.urandom(entry.stat().st_size))
        return [commit(FolderStore(root), folder, next(job_ids), warm)]

    def into_new() -> list[float]:
        seconds = into(folder / "new")
        remove(folder / "new")
        return seconds

    return compare(into_new, lambda: into(full), pairs=turns)


def many(store: FolderStore, folder: Path) -> None:
    """Make ten thousand versions as commits do, without syncs."""
    (folder / "row").write_text("row")
    store.add("data", folder / "row")
    first = store.layout.version("data", 1)
    record = wire.loads(type(store.record("data@1")), (first / "RECORD.json").read_bytes())
    for number in range(2, VERSIONS + 1):
        version, job_id = store.layout.version("data", number), f"put-{number:016x}"
        (version / "data").mkdir(parents=True)
        (version / "data" / "row").write_text("row")
        (version / "data" / "row").chmod(0o444)
        shutil.copy(first / "MANIFEST", version / "MANIFEST")
        text = wire.dumps(replace(record, number=number, job_id=job_id))
        (version / "RECORD.json").write_text(text)
        outputs = {"outputs": {"": [["data", number]]}, "at": 0.0}
        records = {"records": {f"data@{number}": digest_of(text.encode())}}
        store.layout.commit(job_id).write_text(json.dumps(outputs | records))
    sync_all(folder)
    store.add("data", folder / "row")  # the first commit into the volume lists its folder


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
