"""What a store holds after many small runs: its size is bounded by the retention, and not by how many runs there were.

``python -m benchmarks.year [--runs N]… [--step N] [--stays N] [--json]``

A year of one run a minute is 525,600 runs. Here a run is a job of the ledger and a commit of one small version, an hour's partition for
each 60 of them, through the store's own calls. After each step garbage is collected as RetentionOperator does it: the newest version of
each of the last partitions stays, and the jobs of the last step. For each number of runs, most last: the store's bytes and inodes, how many
versions and jobs stay, the CPU seconds of the last collection, this process's memory, and the page's first screen, of an api-server
that has answered before. Airflow's own rows and logs are not in it: `[muster] run_days` deletes them.

For example ``python -m benchmarks.year --runs 5000 --runs 20000 --json`` (some minutes, on a machine that does nothing else).
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.page import running
from muster.core.data import OutputTarget
from muster.core.job import JobSpec, Role
from muster.core.origin import Origin
from muster.core.status import JobState, JobStatus
from muster.volumes.folder import FolderStore

VOLUME = "minutes/rows"
FIRST = "/muster/api/first"
MOST_GC_SECONDS, MOST_FIRST_MS, MOST_MEMORY_MIB = 5.0, 20.0, 150.0
GROWTH = 1.25
"""How much larger the store may be after the most runs than after the fewest."""
LOOKS = 20
DAY_SECONDS = 86_400


@dataclass(frozen=True)
class Held:
    """What the home holds after a number of runs."""

    runs: int
    store_mib: float
    inodes: int
    versions: int
    jobs: int
    gc_seconds: float
    memory_mib: float
    first_ms: float

    @property
    def kept(self) -> bool:
        """Whether it keeps the promises that one number of runs can break."""
        return (
            self.gc_seconds <= MOST_GC_SECONDS
            and self.first_ms <= MOST_FIRST_MS
            and self.memory_mib <= MOST_MEMORY_MIB
        )


def run(store: FolderStore, number: int, rows: Path) -> None:
    """Enter a job that ended, and commit its version."""
    now = time.time()
    spec = JobSpec(
        name="minutes.rows",
        image="etl",
        image_digest="b3:" + "0" * 64,
        roles=(Role(replicas=1, entrypoint="minutes:rows"),),
        outputs={"rows": OutputTarget(volume=VOLUME)},
        origin=Origin(instance="benchmark", dag_id="minutes", run_id=f"run_{number}", task_id="rows"),
    )
    job_id = f"rows-{number:07d}"
    store.ledger.create(job_id, spec)
    rows.write_text(f"{number}\n")
    store.add(VOLUME, rows, partition=f"hour-{number // 60:06d}")
    done = JobStatus(job_id=job_id, state=JobState.SUCCEEDED, submitted=now, started=now, ended=time.time())
    store.ledger.update(done)


def collect(store: FolderStore, *, stays: int, since: float) -> float:
    """Collect garbage, jobs that ended before a moment among it; return the CPU seconds."""
    before = time.process_time()
    store.collect(keep_last=1, keep_partitions=stays, job_days=(time.time() - since) / DAY_SECONDS, now=True)
    return time.process_time() - before


def measure(home: Path, store: FolderStore, *, runs: int, gc_seconds: float) -> Held:
    """Look at what there is."""
    root = home / "store"  # the first screen starts an Airflow in the home
    paths = [root, *root.rglob("*")]
    with running(home) as server:
        server.milliseconds(FIRST)
        first_ms = median(server.milliseconds(FIRST) for _ in range(LOOKS))
    return Held(
        runs=runs,
        store_mib=sum(path.lstat().st_blocks for path in paths) / 2048,
        inodes=len(paths),
        versions=len(store.versions(VOLUME)),
        jobs=len(store.ledger.jobs()),
        gc_seconds=gc_seconds,
        memory_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        first_ms=first_ms,
    )


def _show(each: Held, *, first: bool) -> None:
    if first:
        print(
            f"{'runs':>8} {'store':>10} {'inodes':>8} {'versions':>8} {'jobs':>6} {'gc':>8} {'memory':>9} {'first':>9}"
        )
    print(
        f"{each.runs:8} {each.store_mib:6.1f} MiB {each.inodes:8} {each.versions:8} {each.jobs:6} {each.gc_seconds:6.2f} s"
        f" {each.memory_mib:5.0f} MiB {each.first_ms:6.1f} ms{'' if each.kept else '  MISSED'}",
        flush=True,
    )


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.year", description=__doc__)
    parser.add_argument(
        "--runs", type=int, action="append", help="after how many runs to look; may be repeated"
    )
    parser.add_argument("--step", type=int, default=500, help="runs between two collections")
    parser.add_argument("--stays", type=int, default=24, help="partitions that stay")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    looks, held, gc_seconds = sorted(options.runs or [5_000, 20_000]), list[Held](), 0.0
    with tempfile.TemporaryDirectory() as folder:
        home, began = Path(folder) / "home", time.time()
        store = FolderStore(home / "store")
        for number in range(1, looks[-1] + 1):
            run(store, number, Path(folder) / "rows.csv")
            if number % options.step == 0 or number in looks:
                gc_seconds = collect(store, stays=options.stays, since=began)
                began = time.time()
            if number in looks:
                held.append(measure(home, store, runs=number, gc_seconds=gc_seconds))
                if not options.json:
                    _show(held[-1], first=len(held) == 1)
    bounded = held[-1].store_mib <= GROWTH * held[0].store_mib and held[-1].inodes <= GROWTH * held[0].inodes
    if options.json:
        print(
            json.dumps({"looks": [{**asdict(each), "kept": each.kept} for each in held], "bounded": bounded})
        )
    else:
        print(
            f"promised: gc ≤ {MOST_GC_SECONDS:g} CPU-s, memory ≤ {MOST_MEMORY_MIB:g} MiB, first ≤ {MOST_FIRST_MS:g} ms; store and"
            f" inodes after the most runs ≤ {GROWTH:g} times those after the fewest{'' if bounded else ': MISSED'}"
        )
    return 0 if bounded and all(each.kept for each in held) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
