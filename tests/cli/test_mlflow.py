"""``muster mlflow``: what a job tracked is served, its task's link leads there, and its end leaves nothing behind."""

from __future__ import annotations

import json
import secrets
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.ports import free_port
from tests.waiting import GUARD_SECONDS, until

from muster.backends.local import processes
from muster.backends.local.processes import MARK_VARIABLE
from muster.backends.local.variables import variables
from muster.backends.tracking import shown_run, tracking_database
from muster.core.job import JobSpec, Role
from muster.core.replica import Replica
from muster.core.settings import Settings
from muster.worker.launchers.launcher import rank_environment

pytestmark = pytest.mark.slow

TRACK = """
import mlflow
mlflow.log_metric("auc", 0.75)
"""


def test_what_a_job_tracked_is_shown(tmp_path: Path, environment: dict[str, str]) -> None:
    def muster(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["muster", *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    nothing = muster("mlflow")
    assert nothing.returncode == 1
    assert "no job here has tracked a run" in nothing.stderr

    assert muster("images", "build", "mlflow").returncode == 0
    images = json.loads(muster("images", "ls", "--json").stdout)
    python = Path(next(image["path"] for image in images if image["name"] == "mlflow")) / "bin" / "python"
    home = tmp_path / ".muster"
    database = tracking_database(home)
    database.parent.mkdir(parents=True)
    job = JobSpec(name="a.b", image="mlflow", image_digest=f"b3:{'0' * 64}", roles=(Role(command=("true",)),))
    of_the_job = variables(
        job,
        python=python,
        settings=Settings(home=home, cache=tmp_path / "cache"),
        secrets={},
    )
    replica = Replica(
        job_id="fit-1",
        spec=job,
        attempt=1,
        role="main",
        index=0,
        code=None,
        inputs={},
        staging={},
        checkpoints=str(tmp_path),
        scratch=str(tmp_path),
        sealed="",
        report="",
    )
    of_the_rank = rank_environment(replica, 0, base=of_the_job)
    subprocess.run([python, "-c", TRACK], cwd=tmp_path, env=of_the_rank, check=True)
    run = shown_run(home, "fit-1").rpartition("/")[2]
    assert run
    assert shown_run(home, "fit-2") == ""

    marked = {**environment, MARK_VARIABLE: secrets.token_hex(8)}  # by which all that it starts is found

    port = free_port()
    url = f"http://127.0.0.1:{port}"
    shown = subprocess.Popen(
        ["muster", "mlflow", "--port", str(port)],
        cwd=tmp_path,
        env=marked,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert until(lambda: b"<html" in fetched(f"{url}/") or shown.poll() is not None)
        told = json.loads(fetched(f"{url}/api/2.0/mlflow/runs/get?run_id={run}"))["run"]
        assert [(each["key"], each["value"]) for each in told["data"]["metrics"]] == [("auc", 0.75)]
    finally:
        shown.terminate()  # its own to handle; for other ends see unit/cli/test_foreground.py
        out, _ = shown.communicate(timeout=GUARD_SECONDS)
    assert shown.returncode == 143
    assert out.startswith(f"{url}/")
    assert until(lambda: not processes.marked(marked[MARK_VARIABLE])), "a process is left"
    assert [path.name for path in tmp_path.iterdir()] == [".muster"], "nothing is left where it was started"
    assert [path.name for path in database.parent.iterdir()] == [database.name]


def fetched(url: str) -> bytes:
    try:
        return bytes(urllib.request.urlopen(url, timeout=GUARD_SECONDS).read())
    except (urllib.error.URLError, ConnectionError):
        return b""
