"""Five trivial stages that pass on 10 MB, in turns: plain processes, kfp's local runner, Metaflow, ``dag.test()``, muster.

``python -m benchmarks.stages_peers [--rounds N] [--json]``. Airflow's is with a process for each task. muster runs cold, with
nothing that waits and Airflow to import, and warm, after another run; the CPU of the process that waits is counted.
Each of the peers has a virtual environment of its own in the cache, as DVC has for ``benchmarks.volumes``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from uv import find_uv_bin

from benchmarks.pairs import Ratio, ratio, show
from benchmarks.stages import MUSTER, TEST, Place, airflow, bare, environment
from muster.airflow.embedded.home import EmbeddedHome
from muster.cli.warm.place import waiting
from muster.core.settings import Settings

KFP, METAFLOW = "kfp==2.17.3", "metaflow==2.19.39"
STAGES = 5
FURTHER_SECONDS = 0.20
TICKS = os.sysconf("SC_CLK_TCK")

KFP_PIPELINE = """\
from kfp import dsl, local
from kfp.dsl import Dataset, Input, Output

local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root="kfp-root", raise_on_error=True)


@dsl.component(install_kfp_package=False)
def start(out: Output[Dataset]):
    open(out.path, "wb").write(bytes(10 << 20))


@dsl.component(install_kfp_package=False)
def go(data: Input[Dataset], out: Output[Dataset]):
    open(out.path, "wb").write(open(data.path, "rb").read())


@dsl.pipeline
def stages():
    before = start()
    before = go(data=before.outputs["out"])
    before = go(data=before.outputs["out"])
    before = go(data=before.outputs["out"])
    go(data=before.outputs["out"])


stages()
"""
METAFLOW_FLOW = """\
import tempfile
from pathlib import Path

from metaflow import FlowSpec, step


def copied(before):
    path = Path(tempfile.mkdtemp(dir=".")) / "data"
    path.write_bytes(Path(before).read_bytes() if before else bytes(10 << 20))
    return str(path)


class Stages(FlowSpec):
    @step
    def start(self):
        self.path = copied("")
        self.next(self.one)

    @step
    def one(self):
        self.path = copied(self.path)
        self.next(self.two)

    @step
    def two(self):
        self.path = copied(self.path)
        self.next(self.three)

    @step
    def three(self):
        self.path = copied(self.path)
        self.next(self.end)

    @step
    def end(self):
        self.path = copied(self.path)


if __name__ == "__main__":
    Stages()
"""

Cost = tuple[float, float]  # seconds on the clock, and of CPU


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 where a promise was not kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stages_peers")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, _nothing_waits_after(Path(folder)):
        place = Place.make(Path(folder))
        ways = _ways(place)
        found = _in_turns(ways, rounds=options.rounds)
        further = [_further(place) for _ in range(options.rounds)]
    if not options.json:
        _table(found)
    return show("five trivial stages in one run", _ratios(found, further), as_json=options.json)


def _ways(place: Place) -> dict[str, Callable[[], Cost]]:
    cache = Settings.load().cache / "benchmarks"
    (place.root / "kfp_stages.py").write_text(KFP_PIPELINE)
    (place.root / "flow.py").write_text(METAFLOW_FLOW)
    kfp, metaflow = (peers_python(cache / name.replace("==", "-"), name) for name in (KFP, METAFLOW))
    quiet = {
        "METAFLOW_USER": "bench",
        "USERNAME": "bench",
        "KFP_DISABLE_EXECUTION_CACHING_BY_DEFAULT": "true",
    }
    return {
        "plain": partial(_plain, place),
        "kfp": partial(_cost, [str(kfp), "kfp_stages.py"], place, quiet),
        "metaflow": partial(_cost, [str(metaflow), "flow.py", "--quiet", "run"], place, quiet),
        "dag.test": partial(
            _cost, [sys.executable, "-c", TEST, "plain", "plain"], place, airflow(place, "plain")
        ),
        "muster cold": partial(_muster, place, cold=True),
        "muster warm": partial(_muster, place, cold=False),
        "muster alone": partial(_cost, [str(MUSTER), "run", "stages"], place, {"MUSTER_NO_WARM": "1"}),
        "typo in a Param": partial(_typo, place),
    }


def _in_turns(ways: Mapping[str, Callable[[], Cost]], *, rounds: int) -> dict[str, list[Cost]]:
    """Measure each way once a round, after one round that is not counted."""
    found: dict[str, list[Cost]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            cost = way()
            if number:
                found[name].append(cost)
    return found


def _ratios(found: Mapping[str, list[Cost]], further: Sequence[tuple[float, float]]) -> Iterator[Ratio]:
    for name, limit in (("muster warm", 0.3), ("muster cold", 0.45)):
        for column, unit in ((0, "s"), (1, "s CPU")):
            theirs = [cost[column] for cost in found["dag.test"]]
            yield ratio(
                f"{name}, to dag.test()",
                theirs,
                [cost[column] for cost in found[name]],
                unit=unit,
                limit=limit,
            )
    allowed, took = zip(*further, strict=True)
    yield ratio(f"further stage, to bare + {FURTHER_SECONDS}", allowed, took, unit="s", limit=1.0)
    typo = [cpu for _, cpu in found["typo in a Param"]]
    yield ratio("a typo in a Param, warm, to 0.5 s", [0.5] * len(typo), typo, unit="s CPU", limit=1.0)


def _table(found: Mapping[str, list[Cost]]) -> None:
    plain = statistics.median(seconds for seconds, _ in found["plain"])
    print(f"{'':16} {'seconds':>8} {'x plain':>8} {'s a stage':>10} {'CPU s':>7}")
    for name, costs in found.items():
        seconds, cpu = (statistics.median(column) for column in zip(*costs, strict=True))
        print(
            f"{name:16} {seconds:8.2f} {seconds / plain:8.1f} {(seconds - plain) / STAGES:10.2f} {cpu:7.2f}"
        )
    print()


def _plain(place: Place) -> Cost:
    """The five stages as processes, one after the other."""
    with tempfile.TemporaryDirectory(dir=place.root) as folder:
        outs = [f"{folder}/{number}" for number in range(STAGES)]
        commands = [
            [str(place.python), str(place.stage), *outs[max(0, n - 1) : n + 1]] for n in range(STAGES)
        ]
        costs = [_cost(command, place) for command in commands]
    return sum(seconds for seconds, _ in costs), sum(cpu for _, cpu in costs)


def _muster(place: Place, *, cold: bool, words: Sequence[str] = ("run", "stages", "--json")) -> Cost:
    if cold:
        _end_waiting(place)
    before = _waited(place)
    seconds, cpu = _cost([str(MUSTER), *words], place)
    return seconds, cpu + _waited(place) - before


def _typo(place: Place) -> Cost:
    before = _waited(place)
    seconds, cpu = _cost([str(MUSTER), "run", "stages", "--param", "no=1"], place, fails=True)
    return seconds, cpu + _waited(place) - before


def _further(place: Place) -> tuple[float, float]:
    """Seconds of a stage after the first: as a bare process with what is allowed, and under a warm ``muster run``."""
    ended = subprocess.run(
        [str(MUSTER), "run", "stages", "--json"],
        cwd=place.root,
        env=environment(place),
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads(ended.stdout)
    took = (result["seconds"] - result["stages"][0]["seconds"]) / (STAGES - 1)
    return bare(place) + FURTHER_SECONDS, took


def _cost(
    command: Sequence[str], place: Place, more: Mapping[str, str] | None = None, *, fails: bool = False
) -> Cost:
    """Seconds and CPU of a command and of all processes that it waits for."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    ended = subprocess.run(
        command,
        cwd=place.root,
        env=environment(place) | dict(more or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if bool(ended.returncode) is not fails:
        raise RuntimeError(f"{command} ended with {ended.returncode}:\n{ended.stderr[-2000:]}")
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _waited(place: Place) -> float:
    """CPU seconds so far of the processes that wait, and of all forks of theirs that have ended."""
    found = 0.0
    for note in waiting(place.root / ".muster"):
        fields = Path(f"/proc/{note.pid}/stat").read_text().rpartition(")")[2].split()
        found += sum(map(int, fields[11:15])) / TICKS
    return found


def _end_waiting(place: Place) -> None:
    for note in waiting(place.root / ".muster"):
        ended = os.pidfd_open(note.pid)  # in /proc it stays where no init reaps it, as in a container
        os.kill(note.pid, signal.SIGTERM)
        select.select([ended], [], [])
        os.close(ended)


@contextmanager
def _nothing_waits_after(root: Path) -> Iterator[None]:
    home = EmbeddedHome(
        settings=Settings(home=root / ".muster", cache=Settings.load().cache), dags=root / "dags"
    )
    try:
        yield
    finally:
        for note in waiting(home.settings.home):
            os.kill(note.pid, signal.SIGTERM)


def peers_python(folder: Path, requirement: str) -> Path:
    """Return the Python of a peer's environment, installed into `folder` if it is not there."""
    python, uv = folder / "bin" / "python", find_uv_bin()
    if not python.exists():
        new = folder.with_name(f"{folder.name}.{os.getpid()}")
        subprocess.run([uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, new], check=True)
        subprocess.run(
            [uv, "pip", "install", "--quiet", "--python", new / "bin" / "python", requirement], check=True
        )
        new.rename(folder)
    return python


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
