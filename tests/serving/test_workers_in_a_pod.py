"""The two containers of a pod whose model has workers, as a cluster starts them, on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.serving.conftest import Server
from tests.serving.python_model import write_line
from tests.unit.backends.kubernetes.serving.golden import WITH_WORKERS
from tests.unit.backends.kubernetes.serving.golden import server as revision
from tests.waiting import eventually

from muster.backends.kubernetes.serving.kinds import inference_service
from muster.backends.kubernetes.serving.server import PORT, PROGRAM, READY, WORKERS, archive

pytestmark = pytest.mark.slow

ASK = "/v1/models/flights:predict"


@pytest.fixture
def commands(python: Callable[[str], Path], tmp_path: Path) -> dict[str, list[str]]:
    """What each container runs, by its name, with the places of this machine."""
    (tmp_path / "serving.zip").write_bytes(archive())
    (tmp_path / "line").mkdir()
    places = {
        PROGRAM: str(tmp_path / "serving.zip"),
        "/mnt/muster/model": str(write_line(tmp_path / "model")),
        "/mnt/muster/line": str(tmp_path / "line"),
        f"--port={PORT}": f"--port={free_port()}",
    }
    found = {}
    for each in inference_service(revision(WITH_WORKERS, "r4"))["spec"]["predictor"]["containers"]:
        words = [str(python("serve")), *each["command"][1:]]
        for there, here in places.items():
            words = [word.replace(there, here) for word in words]
        found[each["name"]] = words
    return found


@pytest.fixture
def host(commands: dict[str, list[str]], tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The container of the workers."""
    process = subprocess.Popen(commands[WORKERS], cwd=tmp_path, start_new_session=True)
    yield process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_the_server_asks_the_workers_of_the_other_container(
    commands: dict[str, list[str]], host: subprocess.Popen[bytes], run_server: Any, tmp_path: Path
) -> None:
    words = commands["kserve-container"]
    port = int(next(word for word in words if word.startswith("--port=")).partition("=")[2])
    with run_server(
        words, port=port, ready=READY, log=tmp_path / "log", code=tmp_path, cwd=tmp_path
    ) as server:
        (y,) = _ask(server, 3.0)["outputs"]["y"]
        assert y == 6.0
        assert _ask(server, 101.0)["error"] == "the model failed: ValueError: unlucky (predict.py:24)"
        assert _ask(server, 201.0)["error"] == (
            "the model's process was ended by SIGABRT; the log of container workers says more"
        )
        eventually(lambda: "outputs" in _ask(server, 1.0))
        (pid,) = _ask(server, 1.0)["outputs"]["pid"]
        host.send_signal(signal.SIGTERM)
        assert "outputs" in _ask(server, 1.0)  # it stays as long as its server asks
        assert host.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
    assert host.wait(30) == 0
    eventually(lambda: not Path(f"/proc/{pid}").exists())


def _ask(server: Server, x: float) -> Any:
    return server.ask("POST", ASK, {"inputs": {"x": [x]}})[1]
