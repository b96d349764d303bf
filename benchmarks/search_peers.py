"""A search beside Ray Tune's ASHA, on the recorded curves of ``benchmarks.search``: ``python -m benchmarks.search_peers [--json]``.

- **Played**: 81 networks, 2 slots, 20 seeded orders, the same for both; an epoch takes a second, and a start and a stop of a
  trial a tenth. Ray's own scheduler object decides at each epoch whether a trial goes on (its ASHA stops trials, where muster's pauses
  them and takes them up again); the slots are simulated for both. The ratio of the times, and what each ends with.
- **Real**: once each, Ray Tune and muster run the first of these orders on this machine, with trials that sleep 5 s an epoch. Ray's are
  actors that write no checkpoint; muster's are jobs that do. Seconds are from the first trial's start on: Ray's own start is
  not counted. CPU seconds are of all processes, from the first to the last, as a control group counts them (root, cgroup
  v2; left out elsewhere): the trials only sleep, so nearly all of it is for control, starts and ends.

Ray has a virtual environment of its own in the cache, as the peers of ``benchmarks.stages_peers`` have.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.pairs import LEFT_OUT
from benchmarks.search import RECORDED, SEEDS
from benchmarks.stages_peers import peers_python
from muster.core.patience import Patience
from muster.core.settings import Settings
from muster.core.wire import dumps
from muster.ext.search.sampling import Sampling
from muster.ext.search.simulation import Costs, Played, play
from muster.ext.search.space import choice
from muster.ext.search.spec import Event, EventKind, Sampler, SearchSpec
from muster.ext.search.state import SearchState

OURS = (sys.executable, "-m", "benchmarks.search_run")
CGROUPS = Path("/sys/fs/cgroup")  # or below it, where the first version is there, too
RAY = "ray[tune]==2.60.0"
RUNGS, SLOTS, SLEEP, COST = (1, 3, 9, 27), 2, 5.0, 0.1
BAR_TIME, BAR_CPU, BAR_WORSE = 1.0, 0.5, 0.001

PLAY = """\
import heapq, json, sys
from types import SimpleNamespace
from ray.tune.schedulers import AsyncHyperBandScheduler, TrialScheduler

asked = json.load(sys.stdin)
found = []
for order in asked["orders"]:
    scheduler = AsyncHyperBandScheduler(
        time_attr="epoch", metric="auc", mode="max", max_t=27, grace_period=1, reduction_factor=3
    )
    waiting, coming, now, epochs, last = list(reversed(order)), [], 0.0, 0, {}
    free = [(0.0, slot) for slot in range(asked["slots"])]
    while waiting or coming:
        while free and waiting:
            index = waiting.pop()
            free.pop()
            trial = SimpleNamespace(trial_id=str(index), index=index)
            scheduler.on_trial_add(None, trial)
            heapq.heappush(coming, (now + asked["cost"] + 1, index, 1, trial))
        now, index, epoch, trial = heapq.heappop(coming)
        if trial is None:
            free.append((now, 0))
            continue
        epochs += 1
        last[index] = asked["table"][index][epoch - 1]
        result = {"epoch": epoch, "auc": last[index]}
        over = epoch == 27 or scheduler.on_trial_result(None, trial, result) == TrialScheduler.STOP
        if over:
            scheduler.on_trial_complete(None, trial, result)
            heapq.heappush(coming, (now + asked["cost"], index, 0, None))
        else:
            heapq.heappush(coming, (now + 1, index, epoch + 1, trial))
    found.append({"seconds": now, "epochs": epochs, "best": max(last.values())})
print(json.dumps(found))
"""
RUN = """\
import json, os, sys, time

os.environ |= {"RAY_AIR_NEW_OUTPUT": "0", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
import ray
from ray import tune
from ray.tune.schedulers import AsyncHyperBandScheduler

asked = json.load(sys.stdin)


def trial(config):
    for epoch, auc in enumerate(asked["table"][config["index"]], start=1):
        time.sleep(asked["sleep"])  # the epoch itself
        tune.report({"epoch": epoch, "auc": auc})


ray.init(num_cpus=asked["slots"], include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
scheduler = AsyncHyperBandScheduler(time_attr="epoch", max_t=27, grace_period=1, reduction_factor=3)
began = time.monotonic()
found = tune.Tuner(
    tune.with_resources(trial, {"cpu": 1}),
    param_space={"index": tune.grid_search(asked["orders"][0])},
    tune_config=tune.TuneConfig(metric="auc", mode="max", scheduler=scheduler, max_concurrent_trials=asked["slots"]),
    run_config=tune.RunConfig(verbose=0, storage_path=os.environ["RAY_TMPDIR"]),
).fit()
seconds = time.monotonic() - began
epochs = sum(each.metrics["epoch"] for each in found)
print(json.dumps({"seconds": seconds, "epochs": epochs, "best": found.get_best_result().metrics["auc"]}))
"""


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 where a promise was not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search_peers")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    table = [(each["params"], each["auc"]) for each in json.loads(RECORDED.read_text())]
    specs = [_spec(table, seed) for seed in range(SEEDS)]
    try:
        python = peers_python(Settings.load().cache / "benchmarks" / "ray-2.60.0", RAY)
    except subprocess.CalledProcessError as error:
        print(f"left out: Ray cannot be installed here ({error})", file=sys.stderr)
        return LEFT_OUT
    asked = {
        "orders": [_order(table, spec) for spec in specs],
        "table": [curve for _, curve in table],
        "slots": SLOTS,
        "cost": COST,
        "sleep": SLEEP,
    }
    theirs = _ask([str(python), "-c", PLAY], asked)
    costs = Costs(start=COST, stop=COST)
    ours = [play(spec, _curve(table), workers=SLOTS, costs=costs) for spec in specs]
    found = _played(table, theirs, ours)
    found |= _real(_cost([str(python), "-c", RUN], asked), _cost(OURS, _ours(table, specs[0])))
    for name, value in found.items() if not options.json else ():
        print(f"{value:10.4g}  {name}")
    if options.json:
        print(json.dumps(found))
    kept = (
        found["time, of Ray's, median"] <= BAR_TIME
        and found["worse than the full grid, muster, most"] <= BAR_WORSE
        and found["real: time, of Ray's"] <= BAR_TIME
        and found.get("real: CPU, of Ray's", 0.0) <= BAR_CPU
    )
    return 0 if kept else 1


def _played(
    table: list[tuple[Any, list[float]]], theirs: list[dict[str, float]], ours: list[Played]
) -> dict[str, float]:
    best = max(curve[-1] for _, curve in table)
    times = [mine.seconds / their["seconds"] for mine, their in zip(ours, theirs, strict=True)]
    return {
        "time, of Ray's, median": statistics.median(times),
        "time, of Ray's, least": min(times),
        "time, of Ray's, most": max(times),
        "epochs, muster, median": statistics.median(mine.state.resource for mine in ours),
        "epochs, Ray, median": statistics.median(their["epochs"] for their in theirs),
        "worse than the full grid, muster, most": max(best - (mine.value or 0.0) for mine in ours),
        "worse than the full grid, Ray, most": max(best - their["best"] for their in theirs),
        "starts of jobs, muster, median": statistics.median(
            sum(len(trial.jobs) for trial in mine.state.trials) for mine in ours
        ),
        "starts of trials, Ray": float(len(table)),
    }


def _real(ray: dict[str, float], ours: dict[str, float]) -> dict[str, float]:
    each = {"muster": ours, "Ray": ray}
    found = {"real: time, of Ray's": ours["seconds"] / ray["seconds"]}
    if "cpu" in ours:
        found["real: CPU, of Ray's"] = ours["cpu"] / ray["cpu"]
        found |= {f"real: CPU seconds, {name}": one["cpu"] for name, one in each.items()}
    for name, one in each.items():
        found[f"real: seconds, {name}"] = one["seconds"]
        found[f"real: epochs, {name}"] = one["epochs"]
        found[f"real: seconds of these epochs on its slots, {name}"] = one["epochs"] * SLEEP / SLOTS
    return found


def _ours(table: list[tuple[dict[str, Any], list[float]]], spec: SearchSpec) -> dict[str, Any]:
    curves = {",".join(str(params[name]) for name in spec.space): curve for params, curve in table}
    until = replace(spec, until="epochs")
    return {"spec": json.loads(dumps(until)), "curves": curves, "slots": SLOTS, "sleep": SLEEP}


def _spec(table: list[tuple[dict[str, Any], list[float]]], seed: int) -> SearchSpec:
    space = {name: choice(*dict.fromkeys(params[name] for params, _ in table)) for name in table[0][0]}
    return SearchSpec(
        space=space, metric="auc", trials=len(table), rungs=RUNGS, sampler=Sampler.GRID, seed=seed
    )


def _order(table: list[tuple[dict[str, Any], list[float]]], spec: SearchSpec) -> list[int]:
    """The order in which muster asks for the points, as places in the table."""
    state, sampling, points = SearchState(spec), Sampling(spec), list[Mapping[str, Any]]()
    while (point := sampling.ask(state)) is not None:
        state.apply(Event(what=EventKind.ASKED, at=0, trial=len(points), params=point))
        points.append(point)
    places = {_key(params): place for place, (params, _) in enumerate(table)}
    return [places[_key(point)] for point in points]


def _curve(table: list[tuple[dict[str, Any], list[float]]]) -> Any:
    curves = {_key(params): curve for params, curve in table}
    return lambda params, epoch: curves[_key(params)][int(epoch) - 1]


def _key(params: Mapping[str, Any]) -> str:
    return json.dumps(dict(params), sort_keys=True)


def _cost(command: Sequence[str], asked: Mapping[str, Any]) -> dict[str, float]:
    """Run a command; return its JSON, and the CPU seconds of all its processes where they can be counted."""
    root = next(
        (each for each in (CGROUPS, CGROUPS / "unified") if (each / "cgroup.procs").exists()), CGROUPS
    )
    group = root / f"muster-benchmark-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        print(f"CPU is left out: no control group can be made ({error.strerror})", file=sys.stderr)
        return dict(_ask(command, asked))
    try:
        found = _ask(["sh", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "sh", *command], asked)
        patience = Patience(60, first=0.1)
        while "populated 1" in (group / "cgroup.events").read_text():  # what still ends in the background
            if not patience.wait():
                raise RuntimeError(f"processes of {command[0]} go on")
        used = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
        return {**found, "cpu": int(used["usage_usec"]) / 1e6}
    finally:
        group.rmdir()


def _ask(command: Sequence[str], asked: Mapping[str, Any]) -> Any:
    """Run a command; return the JSON of its last line."""
    return json.loads(_lines(command, asked)[-1])


def _lines(command: Sequence[str], asked: Mapping[str, Any]) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        ended = subprocess.run(
            command,
            input=json.dumps(asked),
            env=os.environ | {"RAY_TMPDIR": folder, "TMPDIR": folder},
            capture_output=True,
            text=True,
            check=False,
        )
    if ended.returncode:
        raise RuntimeError(f"{command[0]} ended with {ended.returncode}:\n{ended.stderr[-2000:]}")
    return ended.stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
