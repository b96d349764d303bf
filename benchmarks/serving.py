"""Server CPU per request for a model like the flights model: our server beside KServe's default and a bare loop.

Twelve inputs, three of them embedded, 28-128-64-1, one row a request over eight kept connections, one
process. The servers take short turns, since the speed of a shared machine changes within seconds; CPU is user and system
time of the server's process. The model is untrained and made for the benchmark. The cost of metrics and shares is the ratio to
the same server without metrics and with one revision.

``python -m benchmarks.serving [--rounds N] [--requests N] [--json]``
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from tests.serving import onnx_graph

from benchmarks.pairs import Ratio, ratio
from benchmarks.serving_site import Running, RunningGrpc, await_answer, by_hand, ours, serve_image

LIMIT_MICROSECONDS = 120.0
LIMIT_RATIO = 1.05


class Way(NamedTuple):
    """One of the compared servers.

    :param shares: percent by revision, for our server as deployed.
    :param fewer: it gets one request in this number, since it is slow.
    :param grpc: whether it is asked over gRPC, with the tensors' bytes.
    """

    title: str
    shares: Mapping[str, int] | None = None
    limit: float | None = None
    fewer: int = 1
    grpc: bool = False


WAYS = {
    "bare": Way("bare ASGI loop, nothing checked"),
    "plain": Way("muster: nothing counted, no shares"),
    "ours": Way("muster: metrics on", {"1": 100}, limit=LIMIT_MICROSECONDS),
    "shared": Way("muster: metrics on, shares 80 and 20", {"1": 80, "2": 20}, limit=LIMIT_MICROSECONDS),
    "grpc": Way("muster: metrics on, over gRPC", {"1": 100}, fewer=4, grpc=True),
    "kserve": Way("KServe's default", fewer=10),
}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one server's requests; the middle half of the rounds is between `low` and `high`."""

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


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving")
    parser.add_argument("--rounds", type=int, default=36)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        seen = measure(Path(folder), rounds=options.rounds, requests=options.requests)
    return show(seen, as_json=options.json)


def measure(root: Path, *, rounds: int, requests: int) -> dict[str, list[tuple[float, float]]]:
    """Run every server in turns; return CPU microseconds a request and requests a second of each round."""
    python, kserve = serve_image(root), serve_image(root, "kserve")
    model = onnx_graph.write_delays(root / "model")
    seen: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    with ExitStack() as servers:
        running = {way: servers.enter_context(serving(way, python, kserve, model, root)) for way in WAYS}
        for turn in range(rounds + 1):
            for way in WAYS:
                figures = running[way].measure(requests // WAYS[way].fewer)
                if turn:  # the first round warms up
                    seen[way].append(figures)
    return seen


@contextmanager
def serving(way: str, python: Path, kserve: Path, model: Path, root: Path) -> Iterator[Running]:
    """Run one server while the block runs. :param kserve: the Python that has KServe's SDK, and the messages of gRPC's clients."""
    shares = WAYS[way].shares
    if shares is None:
        with by_hand(way, kserve if way == "kserve" else python, model, root) as running:
            yield running
        return
    with ExitStack() as opened:
        grpc = (
            opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=2048))
            if WAYS[way].grpc
            else None
        )
        server, port = opened.enter_context(ours(python, root / way, grpc=grpc))
        for revision in shares:
            server.load(revision, model)
        server.share(shares)
        server.open()
        await_answer(port, lambda: True, root / way / "server.log")
        yield (RunningGrpc(server.pid, grpc.getsockname()[1], kserve) if grpc else Running(server.pid, port))


def summary(way: str, figures: Sequence[tuple[float, float]]) -> Cost:
    """Return the medians of one server's rounds."""
    costs = [cost for cost, _ in figures]
    low, _, high = statistics.quantiles(costs, n=4) if len(costs) > 1 else costs * 3
    return Cost(
        server=WAYS[way].title,
        cpu_microseconds=statistics.median(costs),
        low=low,
        high=high,
        requests_per_second=statistics.median(rate for _, rate in figures),
        rounds=len(figures),
        limit=WAYS[way].limit,
    )


def beside_plain(seen: Mapping[str, Sequence[tuple[float, float]]], way: str) -> Ratio:
    """Return the cost of metrics and shares, as a ratio for each round."""
    plain, mine = ([cost for cost, _ in seen[each]] for each in ("plain", way))
    return ratio(WAYS[way].title, plain, mine, unit="µs", limit=LIMIT_RATIO)


def show(seen: Mapping[str, Sequence[tuple[float, float]]], *, as_json: bool) -> int:
    """Print a table, or JSON; return 1 if a promise is missed."""
    title = "server CPU per request, one row, 8 connections, one process"
    costs = [summary(way, figures) for way, figures in seen.items()]
    ratios = [beside_plain(seen, way) for way in ("ours", "shared")]
    kept = all(one.kept for one in [*costs, *ratios])
    if as_json:
        figures = {
            "servers": [{**asdict(c), "kept": c.kept} for c in costs],
            "beside_plain": [{**asdict(r), "kept": r.kept} for r in ratios],
        }
        print(json.dumps({"title": title, **figures}))
        return 0 if kept else 1
    print(f"{title}: medians of {costs[0].rounds} interleaved rounds")
    print(f"{'':36} {'µs':>6}  {'middle half':>13} {'requests/s':>11}  promised")
    for c in costs:
        bound = f"≤ {c.limit:g} µs{'' if c.kept else '  MISSED'}" if c.limit else ""
        middle = f"{c.low:.0f} to {c.high:.0f}"
        print(f"{c.server:36} {c.cpu_microseconds:6.0f}  {middle:>13} {c.requests_per_second:11.0f}  {bound}")
    print("\nbeside the same server with nothing counted and one revision: the ratio of each round")
    for r in ratios:
        bound = f"≤ {r.limit:g}{'' if r.kept else '  MISSED'}"
        print(f"{r.name:36} {r.ratio:6.3f}  {f'{r.low:.3f} to {r.high:.3f}':>13} {'':11}  {bound}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
