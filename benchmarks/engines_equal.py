"""Both engines over the same rows as jobs: how long, how much memory, and whether the rows are equal.

``python -m benchmarks.engines_equal FOLDER [--rows N] [--engines duckdb spark] [--months N] [--since M] [--until M] [--keep-gib N]``, by default
100 million rows. Each job makes `--months` months of the year, all twelve by default, from the whole year's rows: of 100 million, two months take
DuckDB a quarter of an hour on two cores. The rows and what each job found are kept below FOLDER, and a later call makes only the jobs that are
missing: delete it afterwards. A job is ended where less than `--keep-gib` are free on its disk.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.engines import Runs
from benchmarks.flights_rows import JOBS, ROWS, make, python_of
from muster.backends.local import processes
from muster.core.job import Launcher
from muster.volumes.durability import write_whole
from muster.volumes.tree import remove

MONTHS = range(1, 13)
ENGINES = {"duckdb": Launcher.PLAIN, "spark": Launcher.SPARK}

_GIB, _LOOK_SECONDS = 1 << 30, 2.0
_PSS = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)


@dataclass
class Peak:
    """What a run used at most.

    :ivar memory_mib: of all its processes together, each with its share of what several have mapped.
    :ivar disk_gib: less free space than at its start, with its result.
    """

    memory_mib: float = 0.0
    disk_gib: float = 0.0


def main(arguments: Sequence[str]) -> int:
    """Run, print, and return 1 if rows differ."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines_equal")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--months", type=int, choices=MONTHS, default=12, help="months of one job")
    parser.add_argument("--since", type=int, choices=MONTHS, default=1, help="first month of 2013")
    parser.add_argument("--until", type=int, choices=MONTHS, default=12, help="last month of 2013")
    parser.add_argument("--keep-gib", type=float, default=8.0)
    options = parser.parse_args(arguments)
    folder: Path = options.folder.resolve() / str(options.rows)
    make_rows(folder, options.rows)
    for engine in options.engines:
        for first in range(options.since, options.until + 1, options.months):
            last = min(first + options.months - 1, options.until)
            record = folder / f"{engine}-{first:02}-{last:02}.json"
            if not record.is_file():
                found = run(folder, engine, f"2013-{first:02}", f"2013-{last:02}", options.keep_gib)
                write_whole(record, json.dumps(found))
                told = {name: each for name, each in found.items() if name != "months"}
                print(record.stem, json.dumps(told), flush=True)
    return compare(folder)


def compare(folder: Path) -> int:
    """Print what each engine's jobs took together, and whether the months that both made are equal; return 1 if not."""
    made: list[dict[str, Any]] = []
    for engine in ENGINES:
        jobs = [json.loads(path.read_text()) for path in sorted(folder.glob(f"{engine}-*.json"))]
        made.append({month: sums for job in jobs for month, sums in job["months"].items()})
        if jobs:
            print(
                f"{engine}: {len(jobs)} jobs, {sum(count for count, _ in made[-1].values()):,} rows in {len(made[-1])} months, "
                f"{sum(job['whole_s'] for job in jobs):.0f} s, at most {max(job['memory_mib'] for job in jobs):.0f} MiB of memory "
                f"and {max(job['disk_gib'] for job in jobs):.1f} GiB of disk"
            )
    both = sorted(set.intersection(*map(set, made)))
    if not both:
        print("no month was made by both: nothing is compared")
        return 0
    different = [month for month in both if len({json.dumps(each[month]) for each in made}) > 1]
    print(f"both made {len(both)} months:", f"{', '.join(different)} DIFFERENT" if different else "equal")
    return bool(different)


def make_rows(folder: Path, rows: int) -> None:
    """Make the rows, where they are not there."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "rows").is_dir():
        return
    began = time.perf_counter()
    make(folder / "part", rows)
    (folder / "part").rename(folder / "rows")
    print(f"{rows:,} rows made in {time.perf_counter() - began:.0f} s", flush=True)


def run(folder: Path, engine: str, since: str, month: str, keep_gib: float) -> dict[str, Any]:
    """Run an engine's job; return its seconds, its peaks, and the number and the sum of all rows' hashes of each month.

    :raises RuntimeError: it failed, or was ended.
    """
    home = folder / engine
    if home.exists():
        remove(home)
    home.mkdir()
    (home / "rows").symlink_to(folder / "rows")
    with ThreadPoolExecutor() as threads:
        runs = Runs(home)
        job = threads.submit(runs.job, ENGINES[engine], since, month)
        try:
            peak = watched(job, runs, home, keep_gib)
        except BaseException:  # Ctrl-C, too: the thread is waited for, and it waits for the job
            runs.cancel()
            raise
    first, seconds, *_ = job.result()
    words = [python_of("etl"), JOBS / "sums.py", runs.made()]
    months = json.loads(subprocess.check_output(words, text=True))
    remove(home)
    return {"first_task_s": round(first, 1), "whole_s": round(seconds, 1), **asdict(peak), "months": months}


def watched(job: Future[list[float]], runs: Runs, home: Path, keep_gib: float) -> Peak:
    """Look at a job until it ends; return what it used at most."""
    peak, free = Peak(), shutil.disk_usage(home).free
    while not job.done():
        mine = processes.marked(runs.mark())
        peak.memory_mib = max(peak.memory_mib, sum(map(memory_mib, mine)))
        now = shutil.disk_usage(home).free
        peak.disk_gib = max(peak.disk_gib, (free - now) / _GIB)
        if now < keep_gib * _GIB:
            runs.cancel()
        time.sleep(_LOOK_SECONDS)  # the pace of looking
    return peak


def memory_mib(pid: int) -> float:
    """Return a process's proportional set size; 0 where it has ended."""
    with suppress(OSError):
        found = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
        return int(found[1]) / 1024 if found else 0.0
    return 0.0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
