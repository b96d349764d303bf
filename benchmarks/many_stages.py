"""Hundreds of stages under ``muster run``: CPU-seconds by their number, beside ``dag.test()``, Dagster in one process.

``python -m benchmarks.many_stages [--sizes 5 50 150 300 500] [--mapped 10 100 500] [--pairs N] [--dagster PYTHON] [--json]``.
CPU is user and system time of the command and of all processes below it: other work on the machine changes it little. The
promise is a law, so it holds on any machine: a stage of the largest Dag costs what one of a middle one costs. After the figures of each
kind comes the line that fits them: what a run costs, and what each stage adds.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import linear_regression, median

from benchmarks.pairs import Ratio, ratio, show
from benchmarks.stages import MUSTER, TEST
from muster.airflow.embedded.home import EmbeddedHome
from muster.core.linux import adopt_orphans
from muster.core.settings import Settings

SIZES, MAPPED = (5, 50, 150, 300, 500), (10, 100, 500)
GROWTH, KEPT = 1.3, 0.15

DAG = """\
from airflow.sdk import dag, task

from muster.airflow import JobOperator


@task
def step(x):
    return x + 1


@dag(schedule=None)
def chain():
    value = step.override(task_id="s0")(0)
    for number in range(1, {size}):
        value = step.override(task_id=f"s{{number}}")(value)


@dag(schedule=None)
def fan():
    value = step.override(task_id="s0")(0)
    for number in range(1, {size}):
        step.override(task_id=f"s{{number}}")(value)


@dag(schedule=None)
def mapped():
    JobOperator.partial(
        task_id="each", image="python", command=["touch", "{{outputs.out}}/made"], outputs={{"out": "many/of-{size}"}}, cache=True
    ).expand(env=[{{"N": str(number)}} for number in range({size})])


chain(), fan(), mapped()
"""
DAGSTER = """\
import sys
from dagster import job, op

@op
def first(): return 0
@op
def step(x): return x + 1
@job
def chain():
    value = first()
    for number in range(1, int(sys.argv[1])):
        value = step.alias(f"s{number}")(value)
assert chain.execute_in_process().success
"""


class Places:
    """A project for each number of stages, with a migrated database.

    :param root: holds them.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._settings = Settings.load()

    def _at(self, size: int) -> tuple[Path, EmbeddedHome]:
        folder = self._root / str(size)
        home = EmbeddedHome(
            settings=Settings(home=folder / ".muster", cache=self._settings.cache), dags=folder / "dags"
        )
        if not folder.exists():
            home.dags.mkdir(parents=True)
            (home.dags / "many.py").write_text(DAG.format(size=size))
        return folder, home

    def muster(self, dag_id: str, size: int) -> float:
        """CPU-seconds of ``muster run``, with no process that waits."""
        folder, home = self._at(size)
        named = {"MUSTER_HOME": str(home.settings.home), "MUSTER_CACHE": str(home.settings.cache)}
        return cpu([str(MUSTER), "run", dag_id], folder, named | {"MUSTER_NO_WARM": "1"})

    def airflow(self, dag_id: str, size: int) -> float:
        """CPU-seconds of ``dag.test()`` in the same home."""
        folder, home = self._at(size)
        return cpu([sys.executable, "-c", TEST, dag_id, str(home.dags)], folder, home.environment())

    def dagster(self, python: str, size: int) -> float:
        """CPU-seconds of Dagster's run in one process."""
        return cpu([python, "-c", DAGSTER, str(size)], self._at(size)[0], {})


def cpu(words: Sequence[str], folder: Path, variables: dict[str, str]) -> float:
    """Run a command and return the CPU-seconds of it and of all that it started: orphans, as jobs, are waited for here."""
    adopt_orphans()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, cwd=folder, env=os.environ | variables, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    with suppress(ChildProcessError):
        while True:
            os.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def law(sizes: Sequence[int], spent: Sequence[float]) -> str:
    """The line that fits best, and how far the figures are from it: linear where that is little."""
    fit = linear_regression(sizes, spent)
    off = max(
        abs(fit.intercept + fit.slope * size - each) / each for size, each in zip(sizes, spent, strict=True)
    )
    return f"{fit.intercept:.2f} + {fit.slope:.3f} a stage, at most {off:.0%} off"


def grown(name: str, sizes: Sequence[int], spend: Callable[[int], float], pairs: int, *, say: bool) -> Ratio:
    """Compare what a further stage costs between the two largest sizes and between the two before."""
    spent = [[spend(size) for size in sizes] for _ in range(pairs)]
    if say:
        for size, each in zip(sizes, zip(*spent, strict=True), strict=True):
            print(f"{name} {size:4}: {', '.join(f'{seconds:.1f}' for seconds in each)} CPU-s", flush=True)
        print(f"{name}: {law(sizes, [median(each) for each in zip(*spent, strict=True)])}", flush=True)
    steps = [
        [
            (more - less) / (large - small)
            for (small, large), (less, more) in zip(pairwise(sizes), pairwise(each), strict=True)
        ]
        for each in spent
    ]
    base, ours = [each[-2] for each in steps], [each[-1] for each in steps]
    return ratio(f"{name}, a further stage", base, ours, unit="CPU s", limit=GROWTH)


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_stages")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--mapped", type=int, nargs="+", default=MAPPED)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--dagster", metavar="PYTHON", help="a Python that has Dagster")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        places = Places(Path(folder))
        places.muster("chain", options.sizes[0])  # what the first run of a cache makes is no stage's
        of = partial(grown, pairs=options.pairs, say=not options.json)
        ratios = [of(each, options.sizes, partial(places.muster, each)) for each in ("chain", "fan")]
        made = grown("mapped jobs", options.mapped, partial(places.muster, "mapped"), 1, say=not options.json)
        kept = of("mapped jobs kept", options.mapped, partial(places.muster, "mapped"))
        ratios += [made, kept, ratio("kept, to made", [made.ours], [kept.ours], unit="CPU s", limit=KEPT)]
        if not options.json:
            of("dag.test() of the chain", options.sizes, partial(places.airflow, "chain"))
            if options.dagster:
                of("Dagster", options.sizes, partial(places.dagster, options.dagster))
    return show("many stages", ratios, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
