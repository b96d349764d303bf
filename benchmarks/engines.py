"""The features of flights on engines: a gang of Spark beside a standalone cluster by hand, a job of DuckDB beside its script.

``python -m benchmarks.engines [--rows N] [--pairs N] [--json]``. Both ways run the same script over the same rows
(:mod:`benchmarks.flights_rows`), with the same layout: a driver with the master, and two workers of one core. Whether both
engines make the same of many rows is :mod:`benchmarks.engines_equal`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path

from tests.ports import free_port

from benchmarks.flights_rows import DAGS, JOBS, make, python_of
from benchmarks.pairs import LEFT_OUT, Ratio, compare, ratio, show
from muster.backends.base import Backend
from muster.backends.local.machine import Machine
from muster.backends.local.place import MachinePlace
from muster.backends.local.places import Places
from muster.core.data import OutputTarget
from muster.core.job import JobSpec, Launcher, Role
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.images.folders import find_image, image_folders, put_image

WALL, FIRST, DUCKDB, PEAK_MIB = 1.15, 1.3, 1.1, 4096
MEMORY_GIB = 2.0
_PEAK = re.compile(r"peak_mib (\d+)")


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="muster-engines-") as folder:
        root = Path(folder)
        make(root / "rows", options.rows)
        ratios = measure(root, pairs=options.pairs)
        return show(f"features of {options.rows:,} flights", ratios, as_json=options.json)


def measure(root: Path, *, pairs: int) -> Iterator[Ratio]:
    """Yield the ratios of Spark, then those of DuckDB and its peak of memory beside what it may have."""
    runs = Runs(root)
    first, whole = compare(runs.spark_by_hand, partial(runs.job, Launcher.SPARK), pairs=pairs)
    yield ratio("Spark: the first task", *first, unit="s", limit=FIRST)
    yield ratio("Spark: the whole", *whole, unit="s", limit=WALL)
    _, whole, peak = compare(runs.duckdb_by_hand, partial(runs.job, Launcher.PLAIN), pairs=pairs)
    yield ratio("DuckDB: the whole", *whole, unit="s", limit=DUCKDB)
    yield ratio("DuckDB: peak of memory", [float(PEAK_MIB)] * pairs, peak[1], unit="MiB", limit=1.0)


class Runs:
    """Runs of the same work, each into a folder of its own."""

    def __init__(self, root: Path) -> None:
        self._root, self._numbers = root, count()
        self._python = {"etl": python_of("etl"), "spark": python_of("spark")}
        self._settings = Settings(home=root / "home", cache=Settings.load().cache)
        self._backend = Backend(MachinePlace(self._settings, machine=Machine(memory_gib=8)))
        self._last = ""
        folders = image_folders(self._settings)
        self._images = {
            name: put_image(self._backend.store, find_image(name, folders)) for name in self._python
        }

    def duckdb_by_hand(self) -> list[float]:
        """Return the seconds to the first task and to the end, and the peak of memory in MiB."""
        out = self._root / f"out-{next(self._numbers)}"
        found = timed(
            [self._python["etl"], JOBS / "duck.py", self._root / "rows", out], {"PYTHONPATH": str(DAGS)}
        )
        return [*found.seconds, found.peak_mib]

    def spark_by_hand(self) -> list[float]:
        """Return the seconds from the cluster's start to the first task and to the end of all."""
        began, port = time.perf_counter(), free_port()
        out = self._root / f"out-{next(self._numbers)}"
        with standalone(self._python["spark"], port, self._root) as environment:
            script = [self._python["spark"], JOBS / "on_spark.py", self._root / "rows", out]
            found = timed(script, {**environment, "PYTHONPATH": str(DAGS)}, began=began)
        return found.seconds

    def job(self, launcher: Launcher, *words: str) -> list[float]:
        """Return the same of a job: its start is its submission. :param words: which its script is given, too."""
        spark = launcher is Launcher.SPARK
        image, script = ("spark", "on_spark.py") if spark else ("etl", "duck.py")
        command = ("python", str(JOBS / script), str(self._root / "rows"), "{outputs.made}/rows", *words)
        role = Role(
            command=command,
            replicas=3 if spark else 1,
            resources=Resources(memory_gib=MEMORY_GIB if spark else 4),
        )
        spec = JobSpec(
            name="engines",
            image=image,
            image_digest=self._images[image],
            roles=(role,),
            launcher=launcher,
            env={"PYTHONPATH": str(DAGS), **({"JAVA_HOME": str(java_home())} if spark else {})},
            outputs={"made": OutputTarget(volume="engines/made")},
        )
        job_id, began = f"engines-{next(self._numbers)}", time.perf_counter()
        self._backend.submit(spec, job_id=job_id)
        self._last = job_id
        return self._followed(job_id, began, spark=spark)

    def made(self) -> Path:
        """Return the folder with the rows that the last job made."""
        return self._backend.store.path("engines/made@latest/rows")

    def mark(self) -> str:
        """Return what the processes of the last job are known by."""
        return Places(self._settings.home).mark(self._last)

    def cancel(self) -> None:
        """End the last job."""
        self._backend.cancel(self._last)

    def _followed(self, job_id: str, began: float, *, spark: bool) -> list[float]:
        ledger, text, at, first = self._backend.store.ledger, "", 0, 0.0
        while True:
            ended = ledger.status(job_id).state.ended
            data, at = ledger.read(job_id, after=at)
            text += data.decode()
            first = first or ("first task" in text and time.perf_counter() - began) or 0.0
            if ended and not data:
                break
            time.sleep(0.02)  # the pace of looking at the log
        whole = time.perf_counter() - began
        if not first or ledger.status(job_id).result is None:
            raise RuntimeError(f"{job_id} did not succeed:\n{text[-3000:]}")
        return [first, whole] if spark else [first, whole, peak_of(text)]


class Timed:
    """What a script took. :ivar seconds: to its first task and to its end."""

    def __init__(self, first: float, whole: float, peak_mib: float) -> None:
        self.seconds, self.peak_mib = [first, whole], peak_mib


def timed(command: Sequence[str | Path], environment: dict[str, str], *, began: float | None = None) -> Timed:
    """Run a script to its end."""
    began = began or time.perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    first, text = 0.0, ""
    for line in process.stdout:
        text += line
        if "first task" in line:
            first = time.perf_counter() - began
    code = process.wait()
    if code or not first:
        raise RuntimeError(f"{command} ended with {code}:\n{text[-2000:]}")
    return Timed(first, time.perf_counter() - began, peak_of(text))


def peak_of(text: str) -> float:
    """Return the peak of memory that a script told; 0 where it told none."""
    found = _PEAK.search(text)
    return float(found[1]) if found else 0.0


def java_home() -> Path:
    """Return where this machine's Java is: both ways run on the same one."""
    java = shutil.which("java")
    if java is None:
        print("engines: no java on this machine, on which a cluster by hand runs", file=sys.stderr)
        sys.exit(LEFT_OUT)
    return Path(java).resolve().parents[1]


@contextmanager
def standalone(python: Path, port: int, root: Path) -> Iterator[dict[str, str]]:
    """Start a master and two workers as Spark's documentation does; yield what its driver needs."""
    home = Path(next((python.parents[1] / "lib").glob("python*")) / "site-packages" / "pyspark")
    memory = f"{int(MEMORY_GIB * 512)}m"
    common = {
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(java_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": str(python),
        "SPARK_LOCAL_DIRS": str(root),
    }
    base = "org.apache.spark.deploy"
    url = f"spark://127.0.0.1:{port}"
    master = (f"{base}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")
    worker = (f"{base}.worker.Worker", url, "--cores", "1", "--memory", memory, "--webui-port", "0")
    with ExitStack() as opened:
        for words in (master, worker, worker):
            started = subprocess.Popen(
                [home / "bin" / "spark-class", *words],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **common},
                cwd=root,
            )
            opened.callback(started.wait)
            opened.callback(started.terminate)
        submit = f"--master {url} --driver-memory {memory} --executor-memory {memory} pyspark-shell"
        yield {**common, "PYSPARK_SUBMIT_ARGS": submit}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
