"""The two containers of a pod whose model has workers, as a cluster starts them, on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.serving.conftest import Server
from tests.serving.python_model import write_line
from tests.serving.streaming_model import write_words
from tests.unit.backends.kubernetes.serving.golden import WITH_WORKERS, server as revision
from tests.waiting import GUARD_SECONDS, eventually

from muster.backends.kubernetes.serving.kinds import inference_service
from muster.backends.kubernetes.serving.server import PORT, PROGRAM, READY, WORKERS, archive

pytestmark = pytest.mark.slow

ASK = "/v1/models/flights:predict"


assert WITH_WORKERS.workers
STREAMS = replace(WITH_WORKERS, workers=replace(WITH_WORKERS.workers, batch=None, stream=True))


@pytest.fixture
def commands(
    python: Callable[[str], Path], tmp_path: Path, request: pytest.FixtureRequest
) -> dict[str, list[str]]:
    """What each container runs, by its name, with the places of this machine."""
    spec = getattr(request, "param", WITH_WORKERS)
    write = write_words if spec is STREAMS else write_line
    (tmp_path / "serving.zip").write_bytes(archive())
    (tmp_path / "line").mkdir()
    places = {
        PROGRAM: str(tmp_path / "serving.zip"),
        "/mnt/muster/model": str(write(tmp_path / "model")),
        "/mnt/muster/line": str(tmp_path / "line"),
        f"--port={PORT}": f"--port={free_port()}",
    }
    found = {}
    for each in inference_service(revision(spec, "r4"))["spec"]["predictor"]["containers"]:
        words = [str(python("kserve")), *each["command"][1:]]
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
        assert server.process.wait(GUARD_SECONDS) == 0
    assert host.wait(GUARD_SECONDS) == 0
    eventually(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.data
@pytest.mark.parametrize("commands", [STREAMS], indirect=True, ids=["stream"])
@pytest.mark.usefixtures("host")
def test_parts_come_from_the_other_container(
    commands: dict[str, list[str]], run_server: Any, tmp_path: Path
) -> None:
    words = commands["kserve-container"]
    port = int(next(word for word in words if word.startswith("--port=")).partition("=")[2])
    tensors = [("count", "INT64", 5), ("act", "BYTES", "die")]
    asked = {"inputs": [{"name": n, "datatype": d, "shape": [1], "data": [v]} for n, d, v in tensors]}
    with run_server(
        words, port=port, ready=READY, log=tmp_path / "log", code=tmp_path, cwd=tmp_path
    ) as server:
        status, _, body = server.exchange("POST", "/v2/models/flights/generate_stream", asked)
        *parts, last, rest = body.decode().split("\n\n")
        assert (status, len(parts), rest) == (200, 3, "")
        assert "was ended by SIGABRT; the log of container workers says more" in last


def _ask(server: Server, x: float) -> Any:
    return server.ask("POST", ASK, {"inputs": {"x": [x]}})[1]
