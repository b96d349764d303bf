"""kill -9 of everything at a random moment, then the same command again: it ends well, and nothing is left."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

DAG = """\
from airflow.sdk import dag

from muster.airflow import GangOperator, JobOperator, Output


@dag
def chain():
    rows = JobOperator(
        task_id="rows", image="python", entrypoint="chain.steps:rows",
        outputs={"rows": Output(volume="chain/rows", partition="*")},
    )
    model = GangOperator(
        task_id="fit", image="python", entrypoint="chain.steps:fit", replicas=2, params={"steps": 8},
        inputs={"rows": rows.versions["rows"]}, outputs={"model": "chain/model"},
    )
    JobOperator(
        task_id="report", image="python", entrypoint="chain.steps:report",
        inputs={"model": model.versions["model"]}, outputs={"report": "chain/report"},
    )


chain()
"""
STEPS = """\
import os
import time
from pathlib import Path


def rows(rows: Path) -> None:
    for month in ("2013-01", "2013-02"):
        (rows / month).mkdir()
        (rows / month / "rows.txt").write_text(month * 100)
        time.sleep(0.1)


def fit(rows: list[Path], model: Path, checkpoints: Path, *, steps: int) -> dict[str, float]:
    state = checkpoints / f"{os.environ['RANK']}.txt"
    done = int(state.read_text()) if state.exists() else 0
    for step in range(done, steps):
        time.sleep(0.1)
        partial = state.with_suffix(".partial")
        partial.write_text(str(step + 1))
        partial.replace(state)
    if os.environ["RANK"] == "0":
        (model / "model.txt").write_text(str(sum(len((r / "rows.txt").read_text()) for r in rows)))
    return {"steps": steps}


def report(model: Path, report: Path) -> dict[str, float]:
    (report / "report.txt").write_text((model / "model.txt").read_text())
    return {"size": float((report / "report.txt").read_text())}
"""
MUSTER = Path(sys.executable).with_name("muster")


class Pipeline:
    """One folder with a Dag of three stages, and every process that has to do with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "dags" / "chain").mkdir(parents=True)
        (folder / "dags" / "chain" / "dag.py").write_text(DAG)
        (folder / "dags" / "chain" / "steps.py").write_text(STEPS)
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTEST"))
        } | {"MUSTER_HOME": str(folder / ".muster")}

    def start(self) -> subprocess.Popen[bytes]:
        with (self.folder / "run.log").open("ab") as log:
            return subprocess.Popen(
                [MUSTER, "run", "chain"],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def muster(self, *words: str) -> object:
        ran = subprocess.run(
            [MUSTER, *words, "--json"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
        return json.loads(ran.stdout)

    def processes(self) -> dict[int, str]:
        """Everything that runs in, for or with this folder, found by what the kernel knows of it."""
        mark, found = str(self.folder).encode(), {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                known = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                if mark in known and (entry / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError, PermissionError):  # gone, or not ours
                continue
        return found

    def kill_everything(self) -> int:
        killed = 0
        while processes := self.processes():
            for pid in processes:
                try:
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
                except ProcessLookupError:
                    continue
        return killed


def until(condition, *, seconds: float) -> bool:
    """Whether `condition` came to hold within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)  # the pace of asking, not a guess at how long it takes
    return True


def check_store(pipeline: Pipeline) -> None:
    assert pipeline.muster("volumes", "fsck", "--deep")["clean"]
    for volume in ("chain/rows", "chain/model", "chain/report"):
        records = [version["record"] for version in pipeline.muster("volumes", "log", volume)]
        commits = Counter((record["job_id"], record["output"], record["partition"]) for record in records)
        assert max(commits.values()) == 1, commits
        per_run = Counter((record["origin"]["run_id"], record["partition"]) for record in records)
        assert max(per_run.values()) == 1, per_run


def killed_and_run_again(pipeline: Pipeline, *, moment: float) -> None:
    running = pipeline.start()
    until(lambda: running.poll() is not None, seconds=moment)
    pipeline.kill_everything()
    running.wait()
    assert pipeline.processes() == {}
    again = pipeline.start()
    assert again.wait(timeout=120) == 0, (pipeline.folder / "run.log").read_text()[-4000:]
    assert until(lambda: not pipeline.processes(), seconds=10), pipeline.processes()
    check_store(pipeline)


@pytest.mark.slow
def test_killed_once_and_run_again(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    assert pipeline.start().wait(timeout=120) == 0, (tmp_path / "run.log").read_text()[-4000:]
    killed_and_run_again(pipeline, moment=random.uniform(3, 8))


@pytest.mark.soak
def test_killed_at_ten_random_moments_and_run_again(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path)
    began = time.monotonic()
    assert pipeline.start().wait(timeout=120) == 0, (tmp_path / "run.log").read_text()[-4000:]
    whole = time.monotonic() - began
    for _ in range(10):
        killed_and_run_again(pipeline, moment=random.uniform(0.1, whole))
