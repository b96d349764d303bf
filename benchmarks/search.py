"""What a search finds and what it costs, on simulated workers: ``python -m benchmarks.search [--json]``.

- **Replay**: the grid of 81 networks in ``benchmarks/recorded/digits.json``, 27 epochs each, is searched with rungs 1, 3, 9 and 27 by 4
  workers, in 20 seeded orders. The best that it ends with is compared with the best of the full grid at its last epoch,
  and the epochs that it trained with those of the full grid.
- **Workers**: 6,000 trials of a made curve by 1 and by 64 workers, with 0.1 epochs for each start and each stop. How much
  faster 64 are, of 64 times; and the share of their time in which they have nothing to do, until no trial is left to start.
- **CPU**: state, rules and sampling of 10,000 trials, and the time to read their events after a restart.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster.ext.search.simulation import Costs, Played, play
from muster.ext.search.space import choice, loguniform
from muster.ext.search.spec import EventKind, Sampler, SearchSpec
from muster.ext.search.state import SearchState

RECORDED = Path(__file__).parent / "recorded" / "digits.json"
SEEDS, WORKERS, MANY, TRIALS = 20, 4, 64, 6_000
BAR_WORSE, BAR_SHARE, BAR_LINEAR, BAR_IDLE = 0.001, 1 / 3, 0.9, 0.05


def main() -> int:
    """Print the figures; return 1 if a bar is missed."""
    found = replay() | workers() | cpu()
    if "--json" in sys.argv:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{value:10.4g}  {name}")
    missed = [
        name
        for name, good in (
            (
                "the best of the replay is worse",
                found["replay: worse than the full grid, median"] <= BAR_WORSE,
            ),
            (
                "the replay trains too much",
                found["replay: share of the full grid's epochs, median"] <= BAR_SHARE,
            ),
            ("64 workers", found["workers: speed-up of 64, of 64 times"] >= BAR_LINEAR),
            ("idle workers", found["workers: idle while trials want them"] <= BAR_IDLE),
        )
        if not good
    ]
    if missed:
        print(f"MISSED: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


def replay() -> dict[str, float]:
    """Search the recorded grid."""
    table = {_key(each["params"]): each["auc"] for each in json.loads(RECORDED.read_text())}
    params = [json.loads(key) for key in table]
    space = {name: choice(*dict.fromkeys(each[name] for each in params)) for name in params[0]}
    best = max(curve[-1] for curve in table.values() if curve[-1] is not None)

    def curve(point: Mapping[str, Any], epoch: float) -> float | None:
        value: float | None = table[_key(point)][int(epoch) - 1]
        return value

    worse, share = [], []
    for seed in range(SEEDS):
        spec = SearchSpec(
            space=space, metric="auc", trials=81, rungs=(1, 3, 9, 27), sampler=Sampler.GRID, seed=seed
        )
        played = play(spec, curve, workers=WORKERS)
        worse.append(best - (played.value or 0.0))
        share.append(played.state.resource / (81 * 27))
    return {
        "replay: worse than the full grid, median": statistics.median(worse),
        "replay: worse than the full grid, most": max(worse),
        "replay: share of the full grid's epochs, median": statistics.median(share),
        "replay: share of the full grid's epochs, most": max(share),
    }


def workers() -> dict[str, float]:
    """Search with one worker and with many."""
    spec = SearchSpec(
        space={"rate": loguniform(1e-4, 1e-1), "width": choice(64, 128)},
        metric="auc",
        trials=TRIALS,
        rungs=(1, 3, 9, 27),
    )
    costs = Costs(start=0.1, stop=0.1)
    one, many = (play(spec, made, workers=count, costs=costs) for count in (1, MANY))
    return {
        "workers: speed-up of 64, of 64 times": one.seconds / many.seconds / MANY,
        "workers: idle while trials want them": _idle(many),
    }


def cpu() -> dict[str, float]:
    """Search among many trials."""
    spec = SearchSpec(
        space={"rate": loguniform(1e-4, 1e-1)}, metric="auc", trials=10_000, rungs=(1, 3, 9, 27)
    )
    began = time.process_time()
    played = play(spec, made, workers=MANY)
    all_of_it, began = time.process_time() - began, time.process_time()
    SearchState(spec, played.events)
    return {
        "CPU s of 10,000 trials": all_of_it,
        "CPU s to read their events": time.process_time() - began,
        "their events": len(played.events),
    }


def made(params: Mapping[str, Any], epoch: float) -> float:
    """A curve that rises with the epochs, best at a rate of 0.01."""
    return (1 - abs(math.log10(params["rate"]) + 2) / 4) * (1 - math.exp(-epoch / 6))


def _idle(played: Played) -> float:
    """The share of the workers' time without work, until the last new trial was asked for."""
    until = max(event.at for event in played.events if event.what is EventKind.ASKED)
    busy, began = 0.0, dict[int, float]()
    for event in played.events:
        if event.what is EventKind.STARTED:
            began[event.trial] = event.at
        elif event.what in (EventKind.PAUSED, EventKind.ENDED, EventKind.FAILED) and event.trial in began:
            stop = 0.1 if event.what is EventKind.PAUSED else 0.0
            busy += max(0.0, min(event.at + stop, until) - began.pop(event.trial))
    busy += sum(max(0.0, until - at) for at in began.values())
    return max(0.0, 1 - busy / (MANY * until))


def _key(params: Mapping[str, Any]) -> str:
    return json.dumps(dict(params), sort_keys=True)


if __name__ == "__main__":
    sys.exit(main())
