"""A model in workers: CPU of front and worker over the bare call, and batches.

One row of twelve numbers a request. CPU is user and system time of all processes of a server. The bare call is timed in
a process of the same environment, in the same round. The model of the batches takes 2 ms a call, whatever its rows, and
64 connections ask it.

``python -m benchmarks.serving_workers [--rounds N] [--requests N] [--kinds KIND …] [--json]``
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.serving.load import Load

from benchmarks.serving_site import (
    DEADLINE_SECONDS,
    NAME,
    PACE_SECONDS,
    cpu_seconds,
    ours,
    serve_image,
)
from muster.core.shipped import shipped

OVER_BARE_MICROSECONDS = 150.0
BY_BATCHES = 3.0
CONNECTIONS = 64
SCRIPT = Path(__file__).with_name("serving_bare.py")
KINDS = ("code", "sklearn", "xgboost")
REQUEST = {
    "inputs": [
        {"name": "x", "datatype": "FP64", "shape": [1, 12], "data": [round(i / 11, 6) for i in range(12)]}
    ]
}


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One promise: the median over the rounds, and whether it is kept."""

    what: str
    unit: str
    value: float
    limit: float
    at_least: bool
    rounds: int

    @property
    def kept(self) -> bool:
        """Whether the promise was kept."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit


@dataclass(frozen=True)
class Asked:
    """What a server took for some requests."""

    cpu_microseconds: float
    requests_per_second: float
    p99_milliseconds: float


@dataclass(frozen=True)
class Server:
    """A server and all its processes."""

    pid: int
    port: int
    request: Mapping[str, Any] = field(default_factory=lambda: REQUEST)

    def measure(self, requests: int, *, connections: int = 8) -> Asked:
        """Ask it `requests` times, or a few more."""
        pids = [self.pid, *children(self.pid)]
        before, began = sum(map(cpu_seconds, pids)), time.perf_counter()
        path = f"/v2/models/{NAME}/infer"
        with Load(self.port, path, self.request, pause_seconds=0, connections=connections) as load:
            while load.sent < requests:
                time.sleep(PACE_SECONDS)  # the pace of looking at what was sent
        seconds, cpu = time.perf_counter() - began, sum(map(cpu_seconds, pids)) - before
        if load.failed:
            raise SystemExit(f"requests failed: {load.failed}")
        p99 = statistics.quantiles(load.seconds, n=100)[-1]
        return Asked(cpu / load.sent * 1e6, load.sent / seconds, p99 * 1e3)


def children(pid: int) -> list[int]:
    """Return the processes that a process started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(each) for each in text.split()]


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving_workers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), options.kinds, options.rounds, options.requests)
    if options.json:
        print(json.dumps({"figures": [{**asdict(f), "kept": f.kept} for f in figures]}))
    else:
        for f in figures:
            promised = f"{'≥' if f.at_least else '≤'} {f.limit:g}{'' if f.kept else '  MISSED'}"
            print(f"{f.what:64} {f.value:8.2f} {f.unit:3}  {promised}")
    return 0 if all(f.kept for f in figures) else 1


def measure(root: Path, kinds: Sequence[str], rounds: int, requests: int) -> list[Figure]:
    """Run every server in turns, and return what was promised of them."""
    serve, tables = serve_image(root), serve_image(root, "tables")
    fit(root, tables)
    over: dict[str, list[float]] = {kind: [] for kind in kinds}
    faster: list[float] = []
    with ExitStack() as running:
        mine = {
            kind: running.enter_context(in_workers(serve, root, root / "models" / kind, kind, tables))
            for kind in kinds
        }
        slow = root / "models" / "slow"
        alone = running.enter_context(in_workers(serve, root, slow, "alone", tables))
        together = running.enter_context(
            in_workers(serve, root, slow, "together", tables, most=64, wait_ms=5.0)
        )
        for turn in range(rounds + 1):
            for kind in kinds:
                bare = _bare(tables, root / "models" / kind)
                asked = mine[kind].measure(requests)
                if turn:  # the first round warms up
                    over[kind].append(asked.cpu_microseconds - bare)
            one, several = (
                each.measure(requests // 3, connections=CONNECTIONS) for each in (alone, together)
            )
            if turn:
                faster.append(several.requests_per_second / one.requests_per_second)
    figures = [
        _figure(f"{kind}: CPU over the bare call, front and worker", "µs", over[kind], OVER_BARE_MICROSECONDS)
        for kind in kinds
    ]
    return [
        *figures,
        _figure("batches of 64 at 64 connections, a call of 2 ms", "x", faster, BY_BATCHES, True),
    ]


def _figure(what: str, unit: str, values: list[float], limit: float, at_least: bool = False) -> Figure:
    value = statistics.median(values)
    return Figure(what=what, unit=unit, value=value, limit=limit, at_least=at_least, rounds=len(values))


def fit(root: Path, tables: Path) -> None:
    """Write the versions, and the files of the same models for others, below ``models``. :param tables: its Python."""
    subprocess.run([tables, SCRIPT, "fit", root / "models"], env=_environment(), check=True)


@contextmanager
def in_workers(
    python: Path, root: Path, model: Path, name: str, workers: Path, **setup: Any
) -> Iterator[Server]:
    """Run our server with a version in one worker. :param workers: the Python of its environment."""
    told = {"python": str(workers), "cpus": 1.0, "load_seconds": DEADLINE_SECONDS, **setup}
    with ours(python, root / name) as (server, port):
        server.load("1", model, told)
        server.share({"1": 100})
        server.open()
        yield Server(server.pid, port)


def _bare(python: Path, model: Path) -> float:
    told = subprocess.run(
        [python, SCRIPT, model, "3000"],
        env={**_environment(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=True,
    )
    return float(told.stdout)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(shipped("serving"))}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
