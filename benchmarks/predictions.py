"""Requests that are kept, rows that are scored, drift that is found: what each costs and misses.

Three parts, side by side in one run:

- the CPU of a server's request with a log of a tenth and of all requests, as a ratio to the same server without one;
- rows a second of a scoring in one process, as a ratio to a loop by hand: pyarrow's batches into ONNX Runtime, one thread;
- of windows without a shift, those that are called drifted, and of windows with one, those that are not, in the image ``validate``.

``python -m benchmarks.predictions [--rounds N] [--requests N] [--rows N] [--windows N] [--json]``
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.serving import onnx_graph

from benchmarks.pairs import Ratio, ratio, show as show_ratios
from benchmarks.serving_site import Running, await_answer, ours, serve_image
from muster.core.shipped import shipped

LOG_LIMITS = {"a tenth is kept": 1.05, "all are kept": 1.25}
SCORE_LIMIT = 1 / 0.9
FOUND_LIMIT = 0.99
FALSE_LIMIT = 0.01
TURNS = 6
"""Each round of the log is measured in this many short turns, since the speed of a shared machine changes within seconds."""
SHARES = {"no log": None, "a tenth is kept": 0.1, "all are kept": 1.0}


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Windows judged: of `false` without a shift, and of those with one."""

    windows: int
    false_alarms: int
    shifts: int
    found: int

    @property
    def kept(self) -> bool:
        """Whether both promises were kept."""
        return self.found >= FOUND_LIMIT * self.shifts and self.false_alarms <= FALSE_LIMIT * self.windows


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predictions")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=6000)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--windows", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        python = serve_image(root)
        ratios = logged(root, python, rounds=options.rounds * TURNS, requests=options.requests // TURNS)
        ratios.append(scored(root, python, rounds=options.rounds, rows=options.rows))
        drift = judged(root, windows=options.windows)
    return show(ratios, drift, as_json=options.json)


def logged(root: Path, python: Path, *, rounds: int, requests: int) -> list[Ratio]:
    """Return what a log costs of a server's CPU, a ratio for each round."""
    model = onnx_graph.write_delays(root / "model")
    seen: dict[str, list[float]] = {way: [] for way in SHARES}
    with ExitStack() as servers:
        running = {}
        for way, share in SHARES.items():
            place = root / way.replace(" ", "-")
            server, port = servers.enter_context(ours(python, place))
            (place / "spool").mkdir(parents=True, exist_ok=True)
            order = {"folder": str(place / "spool"), "share": share, "leave_out": [], "hashed": [], "key": ""}
            server.load("1", model, log=order if share else None)
            server.share({"1": 100})
            server.open()
            await_answer(port, lambda: True, place / "server.log")
            running[way] = Running(server.pid, port)
        for turn in range(rounds + 1):
            for way in SHARES:
                cost, _ = running[way].measure(requests)
                if turn:  # the first round warms up
                    seen[way].append(cost)
    return [
        ratio(f"server CPU a request: {way}", seen["no log"], seen[way], unit="µs", limit=LOG_LIMITS[way])
        for way in SHARES
        if way != "no log"
    ]


def scored(root: Path, python: Path, *, rounds: int, rows: int) -> Ratio:
    """Return the CPU seconds of a scoring beside those of a loop by hand."""
    script = Path(__file__).with_name("predictions_by_hand.py")
    words = [*map(str, (python, script, root / "model", root / "scored", rounds, rows))]
    found = _last_line(words, shipped("serving"))
    return ratio("scoring, CPU", found["by_hand"], found["ours"], unit="s", limit=SCORE_LIMIT)


def judged(root: Path, *, windows: int) -> Drift:
    """Return how many windows were judged wrongly."""
    script = Path(__file__).with_name("predictions_windows.py")
    python = serve_image(root, "validate")
    return Drift(**_last_line([str(python), str(script), str(windows)], shipped("images") / "validate"))


def _last_line(words: Sequence[str], code: Path) -> Any:
    done = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": str(code)}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{words[1]}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def show(ratios: Sequence[Ratio], drift: Drift, *, as_json: bool) -> int:
    """Print lines, or JSON; return 1 if a promise is missed."""
    if as_json:
        kept = drift.kept and all(each.kept for each in ratios)
        told = [{**asdict(each), "kept": each.kept} for each in ratios]
        print(json.dumps({"ratios": told, "drift": {**asdict(drift), "kept": drift.kept}}))
        return 0 if kept else 1
    missed = show_ratios("requests that are kept, rows that are scored", ratios, as_json=False)
    print(
        f"drift: {drift.false_alarms} of {drift.windows} windows without a shift are called drifted (at most "
        f"{FALSE_LIMIT:.0%}); {drift.found} of {drift.shifts} shifts are found (at least {FOUND_LIMIT:.0%})"
    )
    return missed or (0 if drift.kept else 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
