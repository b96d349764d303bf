"""Whether large volumes cost no more for each part than small ones: partitions of a commit, looks at versions, pages of files.

``python -m benchmarks.big_volumes [--small N] [--large N] [--json]``

All figures are CPU seconds of this process, so they need no quiet machine. Every look lists the names in the volume, 1 µs each. A look is what the page and the command do: the newest
20 versions with their records, one version by its number, and what differs between the files of two. The files of a version
are entries of a manifest, in memory; none is written.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from tests.unit.volumes.conftest import Work

from benchmarks.pairs import Ratio, ratio, show
from muster.core.data import OutputTarget
from muster.volumes.folder import FolderStore
from muster.volumes.lineage import compare
from muster.volumes.listing import parse
from muster.volumes.manifest import Entry, render
from muster.volumes.tree import remove

ROUNDS = 20
PAGE_SECONDS = 0.3  # of a million files: their manifest is read and hashed


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.big_volumes")
    parser.add_argument("--small", type=int, default=200, help="partitions of the small commit")
    parser.add_argument("--large", type=int, default=2_000, help="of the large one")
    parser.add_argument("--files", type=int, default=1_000_000, help="of the large version")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    return show("big volumes", measured(options), as_json=options.json)


def measured(options: argparse.Namespace) -> Iterator[Ratio]:
    """Yield the cost of large ones against small ones."""
    home = Path(tempfile.mkdtemp())
    try:
        each, looks = [], []
        for count in (options.small, options.large):
            work = Work(home / str(count))
            spec = work.spec(months=OutputTarget(volume="months", partition="*"))
            work.seal("job-1", spec, {"months": {f"p-{n:05d}/rows": b"x%d" % n for n in range(count)}})
            each.append([cpu(lambda work=work: work.store.commit("job-1", attempt=1)) / count])
            store = FolderStore(home / str(count))
            look(store, count)
            looks.append([cpu(lambda store=store, count=count: look(store, count)) for _ in range(ROUNDS)])
        yield ratio("a partition of a large commit", *each, unit="s", limit=1.5)
        yield ratio("a look at a large volume", *looks, unit="s", limit=3.0)
    finally:
        remove(home)
    text = manifest_of(options.files)
    pages = [cpu(lambda: page(text)) for _ in range(3)]
    yield ratio(
        f"a page of {options.files:,} files, against {PAGE_SECONDS} s",
        [PAGE_SECONDS] * 3,
        pages,
        unit="s",
        limit=1.0,
    )


def look(store: FolderStore, count: int) -> None:
    newest = store.newest("months", limit=20)
    store.records([version.address for version in newest])
    store.resolve(f"months@{count // 2}")
    compare(store.manifest("months@1"), store.manifest(f"months@{count}"))


def manifest_of(files: int) -> bytes:
    entries = (Entry(f"part-{n // 1000:04d}/rows-{n:07d}.parquet", "ab" * 32, 200_000) for n in range(files))
    return render(entries)


def page(text: bytes) -> None:
    files = parse(text, where="the manifest")
    list(islice(files.values(), 200))
    assert "part-0000/rows-0000123.parquet" in files
    assert len(files)


def cpu(act: Callable[[], object]) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
