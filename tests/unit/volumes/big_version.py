"""A version of many files: ``python big_version.py FOLDER FILES BYTES STEP`` does one step, and prints what it cost as JSON.

``write`` has a job write and seal FILES sparse files of BYTES in all, ``commit`` commits it; ``again`` has a second job change three of the files and take the others over;
``look`` reads the version as commands and the page do, ``check`` as ``muster volumes fsck``, and ``fetch URL`` as a client of the store service. Each is a
process of its own: `peak_bytes` is the most memory that it had, without what Python and muster need.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

if (root := str(Path(__file__).parents[3])) not in sys.path:
    sys.path.append(root)

from tests.contract.test_store import seal_written
from tests.unit.volumes.conftest import Work

from muster.core.data import CARRIED, OutputTarget
from muster.volumes.lineage import compare
from muster.volumes.service.client import ServiceStore

VOLUME = "raw/rows"
CHANGED = 3


def path_of(number: int) -> str:
    """The path of one file: a thousand are in a folder."""
    return f"part-{number // 1000:04d}/rows-{number:07d}.bin"


def main(arguments: list[str]) -> None:
    """Do one step, and print what it cost."""
    folder, files, size_bytes, step = Path(arguments[0]), int(arguments[1]), int(arguments[2]), arguments[3]
    work = Work(folder / "store")
    steps: dict[str, Callable[[], object]] = {
        "write": lambda: write(work, files, size_bytes // files),
        "commit": lambda: work.store.commit("job-1", attempt=1),
        "again": lambda: again(work, files),
        "look": lambda: look(work, files),
        "check": lambda: check(work, files),
        "fetch": lambda: fetch(folder, files, *arguments[4:]),
    }
    print(json.dumps(cost(steps[step]) if step != "look" else look(work, files)))


def cost(act: Callable[[], object]) -> dict[str, float]:
    """Do something, and return the seconds, the bytes that were read, and the memory that it took."""
    began, read, before = time.monotonic(), bytes_read(), peak_bytes()
    act()
    return {
        "seconds": round(time.monotonic() - began, 2),
        "read_bytes": bytes_read() - read,
        "peak_bytes": peak_bytes() - before,
    }


def bytes_read() -> int:
    """All that this process has read of files and sockets."""
    return int(Path("/proc/self/io").read_text().split()[1])


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def write(work: Work, files: int, size_bytes: int) -> None:
    spec = work.spec(out=VOLUME)
    work.store.ledger.create("job-1", spec)
    staging = work.store.stage("job-1")
    out = staging.output("main", 0, "out")
    for number in range(files):
        one(out / path_of(number), b"%d" % number, size_bytes)
    seal_written(staging, spec)


def one(path: Path, begins: bytes, size_bytes: int) -> None:
    """Write a file of which only the first bytes take room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb", buffering=0) as file:
        file.write(begins)
        os.ftruncate(file.fileno(), max(size_bytes, len(begins)))


def again(work: Work, files: int) -> None:
    """Make the version that follows: the second file is changed, the third is gone, one is new."""
    (base,) = work.store.resolve(f"{VOLUME}@1")
    spec = work.spec(inputs={"before": base}, out=OutputTarget(volume=VOLUME, base="before"))
    work.store.ledger.create("job-2", spec)
    staging = work.store.stage("job-2")
    out = staging.output("main", 0, "out")
    one(out / path_of(1), b"changed", 10)
    one(out / "part-0000/new.bin", b"new", 3)
    carried = (path_of(number) for number in range(files) if number not in (1, 2))
    (out / CARRIED).write_text("".join(f"{path}\n" for path in carried))
    seal_written(staging, spec)
    work.store.commit("job-2", attempt=1)


def look(work: Work, files: int) -> dict[str, dict[str, float]]:
    """Return what each look costs."""
    store, middle = work.store, path_of(files // 2)
    store.record(f"{VOLUME}@1")
    store.record(f"{VOLUME}@2")

    def page() -> None:
        assert len(list(islice(store.manifest(f"{VOLUME}@1").values(), 200))) == 200
        assert len(store.manifest(f"{VOLUME}@1")) == files

    def folder() -> None:
        assert len(dict(store.manifest(f"{VOLUME}@1").names("part-0001"))) == 1000

    def diff() -> None:
        found = compare(store.manifest(f"{VOLUME}@1"), store.manifest(f"{VOLUME}@2"))
        assert len(found.added) + len(found.removed) + len(found.changed) == CHANGED
        assert found.same_files == files - 2

    def one_file() -> None:
        assert store.manifest(f"{VOLUME}@1")[middle].path == middle
        assert store.path(f"{VOLUME}@1/{middle}").is_file()

    return {
        "resolve": cost(lambda: store.resolve(VOLUME)),
        "log": cost(lambda: store.records([each.address for each in store.newest(VOLUME, limit=20)])),
        "page": cost(page),
        "folder": cost(folder),
        "one file": cost(one_file),
        "diff": cost(diff),
    }


def check(work: Work, files: int) -> None:
    report = work.store.check()
    assert (report.problems, report.files) == ((), 2 * files)


def fetch(folder: Path, files: int, url: str, token: str) -> None:
    with ServiceStore(url, token=token, cache=folder / "cache") as store:
        middle = path_of(files // 2)
        assert store.path(f"{VOLUME}@1/{middle}").read_bytes().startswith(b"%d" % (files // 2))


if __name__ == "__main__":
    main(sys.argv[1:])
