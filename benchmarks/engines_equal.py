"""Both engines over the same rows as jobs, once each: how long, how much memory, and whether the rows are equal.

``python -m benchmarks.engines_equal FOLDER [--rows N] [--engines duckdb spark] [--months N] [--keep-gib N]``, by default 100 million.
The rows and what was found of each engine are kept below FOLDER, where a later call finds them: delete it afterwards. A run is ended where less than
`--keep-gib` are free on its disk.

DuckDB spills 0.9 GB for each million rows of a query of the whole year; with ``--months 1`` it makes a month at a time, with a sixth of that. For
100 million its 2 GB of memory are not enough (ADR 46).
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
from muster.volumes.tree import remove

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
    parser.add_argument("--months", type=int, default=12, help="months of one query of DuckDB")
    parser.add_argument("--keep-gib", type=float, default=8.0)
    options = parser.parse_args(arguments)
    folder: Path = options.folder.resolve() / str(options.rows)
    make_rows(folder, options.rows)
    for engine in options.engines:
        found = run(folder, engine, options.keep_gib, options.months)
        (folder / f"{engine}.json").write_text(json.dumps(found))
        print(
            engine, json.dumps({name: each for name, each in found.items() if name != "months"}), flush=True
        )
    there = [folder / f"{engine}.json" for engine in ENGINES]
    sums = [json.loads(path.read_text())["months"] for path in there if path.is_file()]
    rows = sum(count for count, _ in sums[0].values())
    same = all(each == sums[0] for each in sums)
    print(f"{len(sums)} results of {rows:,} rows in {len(sums[0])} months:", "equal" if same else "DIFFERENT")
    return 0 if same else 1


def make_rows(folder: Path, rows: int) -> None:
    """Make the rows, where they are not there."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "rows").is_dir():
        return
    began = time.perf_counter()
    make(folder / "part", rows)
    (folder / "part").rename(folder / "rows")
    print(f"{rows:,} rows made in {time.perf_counter() - began:.0f} s", flush=True)


def run(folder: Path, engine: str, keep_gib: float, months_at_once: int) -> dict[str, Any]:
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
        words = (str(months_at_once),) if engine == "duckdb" else ()
        job = threads.submit(runs.job, ENGINES[engine], *words)
        peak = watched(job, runs, home, keep_gib)
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
