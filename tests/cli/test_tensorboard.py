"""``muster tensorboard``: the curves of a version are served, and Ctrl-C leaves nothing behind."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.ports import free_port
from tests.waiting import GUARD_SECONDS, until

from muster.core.status import JobState
from muster.volumes.folder import FolderStore

pytestmark = pytest.mark.slow

WRITE = """
import sys
from tensorboard.summary import Writer
writer = Writer(sys.argv[1])
writer.add_scalar("loss", 0.5, 1)
writer.close()
"""


def fetch(url: str, process: subprocess.Popen[str], *, seconds: float = GUARD_SECONDS) -> dict[str, object]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            found = json.loads(urllib.request.urlopen(url, timeout=GUARD_SECONDS).read())
            if found:
                return dict(found)
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.1)
    raise AssertionError(f"{url} did not answer")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    """A folder whose store has a version with curves."""
    folder = tmp_path_factory.mktemp("author")

    def muster(*words: str) -> str:
        done = subprocess.run(
            ["muster", *words], cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    muster("images", "build", "train")
    train = next(image for image in json.loads(muster("images", "ls", "--json")) if image["name"] == "train")
    subprocess.run([f"{train['path']}/bin/python", "-c", WRITE, str(folder / "model" / "events")], check=True)
    muster("volumes", "put", "model", "some/model")
    return folder


@pytest.mark.parametrize("end", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)])
def test_curves_are_served_until_it_is_ended(
    end: signal.Signals, home: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    port, scratch = free_port(), tmp_path / "scratch"
    scratch.mkdir()
    shown = subprocess.Popen(
        ["muster", "tensorboard", "some/model", "--port", str(port)],
        cwd=home,
        env=environment | {"TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        tags = fetch(f"http://127.0.0.1:{port}/data/plugin/scalars/tags", shown)
        assert "loss" in tags["some.model@1/events"]
    finally:
        shown.send_signal(end)
        out, _ = shown.communicate(timeout=GUARD_SECONDS)
    assert out.startswith(f"http://127.0.0.1:{port}/")
    assert [path.name for path in scratch.iterdir() if path.name.startswith("muster-")] == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=GUARD_SECONDS)


TRAIN = """
import sys, time
from pathlib import Path
from tensorboard.summary import Writer
writer = Writer(sys.argv[1])
for step in range(1, 4):
    writer.add_scalar("loss", 1 / step, step)
    writer.flush()
    while not Path(f"{sys.argv[2]}{step}").exists():
        time.sleep(0.02)
writer.close()
"""
DAG = """
from airflow.sdk import dag
from muster.airflow import JobOperator, Resources


@dag(schedule=None)
def lab():
    JobOperator(
        task_id="fit", image="train", command=["python", "{{here}}/train.py", "{{outputs.model}}", "{gate}"],
        outputs={{"model": "lab/model"}}, resources=Resources(cpus=0.5, memory_gib=1),
    )


lab()
"""


@pytest.mark.nightly  # unit/ext/engines/test_event_files.py has files that grow
def test_the_curves_of_a_running_job_grow_until_it_ends(tmp_path: Path, environment: dict[str, str]) -> None:
    folder, gate = tmp_path / "dags" / "lab", tmp_path / "step"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(TRAIN)
    (folder / "dag.py").write_text(DAG.format(gate=gate).replace("{here}", str(folder)))
    port = free_port()
    with ExitStack() as left:

        def start(*words: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                ["muster", *words],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )
            left.enter_context(process)
            left.callback(process.send_signal, signal.SIGINT)
            return process

        run = start("run", "lab")
        ledger = FolderStore(tmp_path / ".muster" / "store").ledger
        assert until(
            lambda: [each for each in ledger.statuses(ledger.jobs()) if each.state is JobState.RUNNING]
        )
        (job_id,) = ledger.jobs()
        shown = start("tensorboard", "lab-fit", "--port", str(port))
        where = f"http://127.0.0.1:{port}/data/plugin/scalars/scalars?run={job_id}/main-0/model&tag=loss"

        def steps() -> list[int]:
            try:
                with urllib.request.urlopen(where, timeout=GUARD_SECONDS) as answer:
                    return [step for _, step, _ in json.loads(answer.read())]
            except (urllib.error.URLError, ConnectionError, ValueError):
                return []

        for step in range(1, 4):
            assert until(lambda step=step: steps() == list(range(1, step + 1))), steps()
            Path(f"{gate}{step}").touch()
        assert run.wait(timeout=GUARD_SECONDS) == 0
        assert shown.stderr is not None
        assert until(lambda: "has ended" in shown.stderr.readline())
        assert steps() == [1, 2, 3]
