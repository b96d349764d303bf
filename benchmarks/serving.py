"""Server CPU per request for a model of the flights model's shape: ours beside KServe's own way and a bare loop.

Twelve inputs, three of them embedded, 28-128-64-1, one row a request over eight kept connections, one
process. The servers take turns; CPU is user and system time of the server's process from
``/proc/PID/stat``. The model is untrained and written on the spot.

``python -m benchmarks.serving [--rounds N] [--requests N] [--json]``
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.serving import onnx_graph
from tests.serving.load import Load

from muster.backends.local.environments import Environments, find_image, image_folders, put_image
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.volumes.folder import FolderStore

LIMIT_MICROSECONDS = 120.0
JSON = {"Content-Type": "application/json"}
OURS = "muster: validation and metrics on"
# The slow ones are sent a tenth: their time is not what is asked here.
WAYS = {"bare": ("bare ASGI loop, nothing checked", 1), "ours": (OURS, 1), "kserve": ("KServe's default", 10)}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one server's requests cost; `low` and `high` hold the middle half of the rounds."""

    server: str
    cpu_microseconds: float
    low: float
    high: float
    requests_per_second: float
    rounds: int
    limit: float | None = None

    @property
    def kept(self) -> bool:
        """Whether the promise, if there is one, was kept."""
        return self.limit is None or self.cpu_microseconds <= self.limit


@dataclass(frozen=True)
class Running:
    """One server that is up."""

    pid: int
    port: int

    def measure(self, requests: int) -> tuple[float, float]:
        """Send so many requests or a few more; return CPU microseconds a request and requests a second."""
        before, began = cpu_seconds(self.pid), time.perf_counter()
        with Load(self.port, "/v2/models/flights/infer", request()) as load:
            while load.sent < requests:
                time.sleep(0.01)  # the pace of asking; the load has a thread of its own
        seconds, cpu = time.perf_counter() - began, cpu_seconds(self.pid) - before
        if load.failed:
            raise SystemExit(f"requests failed: {load.failed}")
        return cpu / load.sent * 1e6, load.sent / seconds


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 where the promise was not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=8000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        costs = measure(Path(folder), rounds=options.rounds, requests=options.requests)
    return show(costs, as_json=options.json)


def measure(root: Path, *, rounds: int, requests: int) -> list[Cost]:
    """Run every server in turns and return what each cost."""
    settings = Settings.load()
    image = find_image("serve", image_folders(settings))
    python = Environments(settings.cache).ensure(
        "serve", image, put_image(FolderStore(root / "store"), image), print
    )
    model = onnx_graph.write_delays(root / "model")
    seen: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    with ExitStack() as servers:
        running = {way: servers.enter_context(serving(way, python, model, root)) for way in WAYS}
        for turn in range(rounds + 1):
            for way, (_, fewer) in WAYS.items():
                figures = running[way].measure(requests // fewer)
                if turn:  # the first round warms up
                    seen[way].append(figures)
    return [summary(way, figures) for way, figures in seen.items()]


@contextmanager
def serving(way: str, python: Path, model: Path, root: Path) -> Iterator[Running]:
    """Run one server until it is left."""
    port = free_port()
    words: list[Any] = [python, "-P"]
    if way == "ours":
        words += ["-m", "muster_serving", "flights", "--model", model, "--port", port]
    else:
        words += [Path(__file__).with_name("serving_by_hand.py"), way, model, port]
    environment = {**os.environ, "PYTHONPATH": str(shipped("serving"))}
    with (root / f"{way}.log").open("wb") as log:
        process = subprocess.Popen(list(map(str, words)), env=environment, stdout=log, stderr=log)
    try:
        await_answer(port, process, root / f"{way}.log")
        yield Running(process.pid, port)
    finally:
        process.kill()
        process.wait()


def await_answer(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when the server answers a real request."""
    deadline = time.monotonic() + 60
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("POST", "/v2/models/flights/infer", json.dumps(request()), JSON)
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        except (OSError, http.client.HTTPException):
            pass  # not up yet
        finally:
            connection.close()
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("\n".join(log.read_text().splitlines()[-20:]))
        time.sleep(0.05)  # the pace of asking, until the deadline above


def request() -> dict[str, Any]:
    """One row, as a client writes it."""
    whole = {"carrier": 3, "origin": 1, "dest": 50}
    inputs = [{"name": n, "datatype": "INT64", "shape": [1], "data": [v]} for n, v in whole.items()]
    inputs += [{"name": f"number_{i}", "datatype": "FP32", "shape": [1], "data": [0.1 * i]} for i in range(9)]
    return {"inputs": inputs}


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far; fields 14 and 15 of proc(5)'s stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def summary(way: str, figures: Sequence[tuple[float, float]]) -> Cost:
    costs = [cost for cost, _ in figures]
    low, _, high = statistics.quantiles(costs, n=4) if len(costs) > 1 else costs * 3
    return Cost(
        server=WAYS[way][0],
        cpu_microseconds=statistics.median(costs),
        low=low,
        high=high,
        requests_per_second=statistics.median(rate for _, rate in figures),
        rounds=len(figures),
        limit=LIMIT_MICROSECONDS if way == "ours" else None,
    )


def show(costs: Sequence[Cost], *, as_json: bool) -> int:
    """Print a table for people or one object for scripts; return 1 where the promise was not kept."""
    title = "server CPU per request, one row, 8 connections, one process"
    if as_json:
        print(json.dumps({"title": title, "servers": [{**asdict(c), "kept": c.kept} for c in costs]}))
    else:
        print(f"{title}: medians of {costs[0].rounds} interleaved rounds")
        print(f"{'':34} {'µs':>6}  {'middle half':>13} {'requests/s':>11}  promised")
        for c in costs:
            bound = f"≤ {c.limit:g} µs{'' if c.kept else '  MISSED'}" if c.limit else ""
            middle = f"{c.low:.0f} to {c.high:.0f}"
            print(
                f"{c.server:34} {c.cpu_microseconds:6.0f}  {middle:>13} {c.requests_per_second:11.0f}  {bound}"
            )
    return 0 if all(c.kept for c in costs) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
