"""Five trivial stages that pass on 10 MB: under ``muster run``, under plain Airflow, and as five bare processes.

``python -m benchmarks.stages [--pairs N] [--json]``. Plain Airflow is ``dag.test()`` with a subprocess
for each task. Where the promise is a number of seconds or megabytes above a base, the column
"by hand" is the base plus that number, and the promised ratio is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.pairs import Ratio, compare, ratio, show
from muster.airflow.embedded.home import EmbeddedHome
from muster.core.settings import Settings
from muster.images.environment import Environments
from muster.images.folders import find_image, image_folders, put_image
from muster.volumes.folder import FolderStore

MUSTER = Path(sys.executable).with_name("muster")
STAGES = 5
STAGE_SECONDS = 0.3
RESUME_SECONDS = 0.6
PARSE_SECONDS = 0.2
PROMPT_SECONDS = 3.0
KEPT_SECONDS = 0.1
MANY, MANY_SECONDS = 50_000, 0.3
PEAK_MB = 600.0

STAGE = """\
import sys
import time
from pathlib import Path

MB = 1 << 20


def start(out: Path) -> None:
    (out / "data").write_bytes(bytes(10 * MB))


def many(out: Path, files: int) -> None:
    for number in range(files):
        folder = out / str(number % 50)
        folder.mkdir(exist_ok=True)
        (folder / str(number)).write_text(str(number))


def go(data: Path, out: Path, flag: str = "") -> None:
    if flag and Path(flag).exists():
        raise SystemExit("broken on purpose")
    (out / "data").write_bytes((data / "data").read_bytes())
    print("last line", time.time(), flush=True)


if __name__ == "__main__":
    folders = [Path(name) for name in sys.argv[1:]]
    folders[-1].mkdir(parents=True)
    (go if len(folders) > 1 else start)(*folders)
"""
MUSTER_DAG = """\
from airflow.sdk import dag

from muster.airflow import JobOperator


@dag(default_args={{"muster": {{"cache": {cache}}}}})
def {name}():
    before = JobOperator(
        task_id="stage0", image="python", entrypoint="stages.stage:start", outputs={{"out": "{name}/s0"}}
    )
    for number in range(1, 5):
        before = JobOperator(
            task_id=f"stage{{number}}",
            image="python",
            entrypoint="stages.stage:go",
            inputs={{"data": before.versions["out"]}},
            outputs={{"out": f"{name}/s{{number}}"}},
            params={{"flag": {flag!r} if number == 3 else ""}},
            retries=0,
        )


{name}()
"""
FILES_DAG = """\
from airflow.sdk import dag

from muster.airflow import JobOperator


@dag
def {name}():
    JobOperator(
        task_id="many", image="python", entrypoint="stages.stage:many", outputs={{"out": "{name}/files"}},
        params={{"files": {files}}}, cache=True,
    )


{name}()
"""
PLAIN_DAG = """\
import subprocess
import tempfile

from airflow.sdk import dag, task


@task
def stage(before, number):
    command = [{python!r}, {stage!r}, *([before] if before else []), f"{{before or tempfile.mkdtemp()}}-{{number}}"]
    subprocess.run(command, check=True)
    return command[-1]


@dag
def plain():
    before = None
    for number in range(5):
        before = stage.override(task_id=f"stage{{number}}")(before, number)


plain()
"""
EMPTY_DAG = """\
from airflow.sdk import dag, task


@dag
def {name}():
    @task
    def nothing():
        pass

    before = nothing()
    for _ in range({tasks} - 1):
        after = nothing()
        before >> after
        before = after


{name}()
"""
TEST = """\
import sys
from airflow.dag_processing.dagbag import DagBag

run = DagBag(sys.argv[2]).dags[sys.argv[1]].test()
sys.exit(run.state != "success")
"""
PARSE = """\
import sys, time
import airflow
from airflow.dag_processing.dagbag import DagBag

began = time.monotonic()
errors = DagBag(sys.argv[1]).import_errors
print(time.monotonic() - began)
sys.exit(bool(errors))
"""


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and return 1 if a promise is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stages")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        ratios = measure(Place.make(Path(folder)), pairs=options.pairs)
    return show("five trivial stages", ratios, as_json=options.json)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A project with the same stages written in three ways, and warm homes."""

    root: Path
    python: Path

    @classmethod
    def make(cls, root: Path) -> Place:
        """Write the Dags, migrate both databases, build the environment."""
        settings = Settings(home=root / ".muster", cache=Settings.load().cache)
        lock = find_image("python", image_folders(settings))
        digest = put_image(FolderStore(settings.store), lock)
        python = Environments(settings.cache).ensure("python", lock, digest)
        place = cls(root=root, python=python)
        place.write()
        EmbeddedHome(settings=settings, dags=root / "dags").enter()
        shutil.copytree(root / ".muster" / "airflow", root / "plain-home")
        return place

    def write(self) -> None:
        for name, text in (
            ("dags/stages/dag.py", MUSTER_DAG.format(name="stages", flag=str(self.flag), cache=False)),
            ("dags/stages/kept.py", MUSTER_DAG.format(name="kept", flag="", cache=True)),
            ("dags/stages/few.py", FILES_DAG.format(name="few", files=1)),
            ("dags/stages/many.py", FILES_DAG.format(name="many", files=MANY)),
            ("dags/stages/stage.py", STAGE),
            ("plain/plain.py", PLAIN_DAG.format(python=str(self.python), stage=str(self.stage))),
            ("empty/empty.py", EMPTY_DAG.format(name="empty", tasks=1)),
            ("floor/floor.py", EMPTY_DAG.format(name="floor", tasks=STAGES)),
        ):
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    @property
    def stage(self) -> Path:
        """The stages' code."""
        return self.root / "dags" / "stages" / "stage.py"

    @property
    def flag(self) -> Path:
        """The fourth stage fails while this file exists."""
        return self.root / "broken"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A process's end: its output, its seconds, and its peak memory."""

    stdout: str
    seconds: float
    peak_mb: float


def measure(place: Place, *, pairs: int) -> list[Ratio]:
    """Measure in turns, in groups: whole run, stages and memory; resume and parsing; prompt after an edit; kept stages."""
    whole, further, peak = compare(
        lambda: (_plain(place, "plain"), STAGE_SECONDS + bare(place), PEAK_MB),
        lambda: _run(place),
        pairs=pairs,
    )
    resume, parse = compare(
        lambda: (RESUME_SECONDS + _plain(place, "empty"), PARSE_SECONDS + _parse(place, "empty")),
        lambda: (_resume(place), _parse(place, "dags")),
        pairs=pairs,
    )
    prompt, kept = compare(
        lambda: (_bare_prompt(place) + PROMPT_SECONDS, PROMPT_SECONDS),
        lambda: (_prompt(place), _end(RESUME, place, code=NOTHING_LEFT).seconds),
        pairs=pairs,
    )
    for dag_id in ("kept", "few", "many"):
        _kept(place, dag_id)
    all_kept, files = compare(
        lambda: (_plain(place, "floor") + STAGES * KEPT_SECONDS, _kept(place, "few") + MANY_SECONDS),
        lambda: (_kept(place, "kept"), _kept(place, "many")),
        pairs=pairs,
    )
    return [
        ratio(f"last line to prompt, to bare + {PROMPT_SECONDS:g}", *prompt, unit="s", limit=1.0),
        ratio(f"resume that keeps all, to {PROMPT_SECONDS:g} s", *kept, unit="s", limit=1.0),
        ratio("whole, to dag.test()", *whole, unit="s", limit=1.0),
        ratio(f"further stage, to bare + {STAGE_SECONDS}", *further, unit="s", limit=1.0),
        ratio(f"peak, to {PEAK_MB:g} MB", *peak, unit="MB", limit=1.0),
        ratio(f"resume of two, to start + {RESUME_SECONDS}", *resume, unit="s", limit=1.0),
        ratio(f"parse, to bare + {PARSE_SECONDS}", *parse, unit="s", limit=1.0),
        ratio(
            f"five kept, to dag.test() of five empty + {KEPT_SECONDS} each", *all_kept, unit="s", limit=1.0
        ),
        ratio(f"{MANY} files kept, to one + {MANY_SECONDS}", *files, unit="s", limit=1.0),
    ]


def _plain(place: Place, dag_id: str) -> float:
    """Seconds of plain Airflow's ``dag.test()`` in a process of its own."""
    return _end([sys.executable, "-c", TEST, dag_id, dag_id], place, airflow(place, dag_id)).seconds


def bare(place: Place) -> float:
    """Seconds of one stage as a bare process: the mean of all but the first."""
    with tempfile.TemporaryDirectory(dir=place.root) as folder:
        outs = [f"{folder}/{number}" for number in range(STAGES)]
        _end([str(place.python), str(place.stage), outs[0]], place)
        ended = [_end([str(place.python), str(place.stage), *pair], place) for pair in pairwise(outs)]
    return sum(each.seconds for each in ended) / len(ended)


def _run(place: Place) -> tuple[float, float, float]:
    """Seconds of ``muster run``, seconds of each stage after the first with all between them, peak MB."""
    ended = _end([str(MUSTER), "run", "stages", "--json"], place)
    result = json.loads(ended.stdout)
    further = (result["seconds"] - result["stages"][0]["seconds"]) / (STAGES - 1)
    return ended.seconds, further, ended.peak_mb


def _resume(place: Place) -> float:
    """Seconds of ``muster run --resume`` where the last two of five stages are left to run."""
    place.flag.touch()
    broken = subprocess.run(
        [str(MUSTER), "run", "stages"],
        cwd=place.root,
        env=environment(place),
        capture_output=True,
        check=False,
    )
    assert broken.returncode == 1, broken.stderr.decode()
    place.flag.unlink()
    return _end([str(MUSTER), "run", "stages", "--resume"], place).seconds


def _kept(place: Place, dag_id: str) -> float:
    """Seconds of ``muster run`` of a Dag whose stages are kept, once they have been made."""
    return _end([str(MUSTER), "run", dag_id], place).seconds


def _prompt(place: Place) -> float:
    """Seconds from the last line of the last stage's code to the end of ``muster run``, which ran only that stage."""
    return _since_last_line([str(MUSTER), "run", "stages", "--from", "stage4"], place)


def _bare_prompt(place: Place) -> float:
    """The same for that stage as a bare process."""
    with tempfile.TemporaryDirectory(dir=place.root) as folder:
        _end([str(place.python), str(place.stage), f"{folder}/0"], place)
        return _since_last_line([str(place.python), str(place.stage), f"{folder}/0", f"{folder}/1"], place)


def _since_last_line(command: Sequence[str], place: Place) -> float:
    ended = subprocess.run(
        command,
        cwd=place.root,
        env=environment(place),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    now = time.time()
    (said,) = [line for line in ended.stdout.splitlines() if "last line" in line]
    return now - float(said.split()[-1])


def _parse(place: Place, folder: str) -> float:
    """Seconds of parsing one folder's Dag file once Airflow is imported."""
    return float(
        _end([sys.executable, "-c", PARSE, folder], place, airflow(place, folder)).stdout.split()[-1]
    )


RESUME = (str(MUSTER), "run", "stages", "--resume")
NOTHING_LEFT = 3  # of `muster run`


def _end(command: Sequence[str], place: Place, more: dict[str, str] | None = None, *, code: int = 0) -> Ended:
    """Run a command, which must end with an exit code; its memory is that of its largest process, without jobs of its children."""
    env = environment(place) | (more or {})
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        began = time.monotonic()
        process = subprocess.Popen(command, cwd=place.root, env=env, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode != code:
            raise RuntimeError(
                f"{command[0]} ended with exit code {process.returncode}:\n{err.read()[-2000:]}"
            )
        return Ended(stdout=out.read(), seconds=seconds, peak_mb=usage.ru_maxrss / 1024)


def environment(place: Place) -> dict[str, str]:
    """The variables of all commands: the place's home, and no Airflow of this shell."""
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("AIRFLOW", "MUSTER_HOME", "MUSTER_NO_WARM"))
    }
    return {**kept, "MUSTER_HOME": str(place.root / ".muster")}


def airflow(place: Place, folder: str) -> dict[str, str]:
    """A plain Airflow of the same release on its own database, with logging as quiet as ours."""
    home = place.root / "plain-home"
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home / 'airflow.db'}",
        "AIRFLOW__CORE__DAGS_FOLDER": str(place.root / folder),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
