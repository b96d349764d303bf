"""The server as a pod of a cluster starts it: from the archive that travels with a revision, by the same words."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.serving import onnx_graph
from tests.serving.conftest import Server
from tests.unit.backends.kubernetes.serving.golden import server as revision
from tests.unit.backends.kubernetes.serving.golden import spec

from muster.backends.kubernetes.serving.inference_service import inference_service
from muster.backends.kubernetes.serving.server import PORT, READY, archive
from muster.backends.releases.counting import read_counts

pytestmark = pytest.mark.slow

MODEL = "/v2/models/flights"
REQUEST = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [3.0]}]}


@pytest.fixture(scope="module")
def server(
    python: Callable[[str], Path], run_server: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder, port = tmp_path_factory.mktemp("pod"), free_port()
    (folder / "serving.zip").write_bytes(archive())
    model = onnx_graph.write_line(folder / "model", slope=2.0)
    (container,) = inference_service(revision(spec(), "r1"))["spec"]["predictor"]["containers"]
    (mount,) = [
        each["mountPath"] for each in container["volumeMounts"] if each["mountPath"].endswith("/model")
    ]
    _, *words = container["command"]
    words = [word.replace(mount, str(model)).replace(f"={PORT}", f"={port}") for word in words]
    running = run_server(
        [str(python("serve")), *words],
        port=port,
        ready=READY,
        log=folder / "log",
        code=folder / "serving.zip",
        cwd=folder,
    )
    with running as found:
        yield found


def test_what_names_the_revision_is_answered_and_not_counted(server: Server) -> None:
    def counted() -> tuple[int, int]:
        status, page = server.ask("GET", "/metrics")
        assert status == 200
        counts = read_counts(page, name="flights")["r1"]
        return counts.requests, counts.seconds[math.inf]

    before = counted()
    status, metadata = server.ask("GET", f"{MODEL}/versions/r1")
    assert (status, [each["name"] for each in metadata["inputs"]]) == (200, ["x"])
    status, answer = server.ask("POST", f"{MODEL}/versions/r1/infer", REQUEST)
    assert (status, answer["outputs"][0]["data"], answer["model_version"]) == (200, [6.0], "r1")
    assert counted() == before
    assert server.ask("POST", f"{MODEL}/infer", REQUEST)[0] == 200
    assert counted() == (before[0] + 1, before[1] + 1)


def test_its_page_says_when_it_came_up(server: Server) -> None:
    _, page = server.ask("GET", "/metrics")
    (line,) = [each for each in page.splitlines() if each.startswith("process_start_time_seconds ")]
    assert float(line.split()[1]) > 1e9


def test_told_to_end_it_ends_well(server: Server) -> None:
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=60) == 0
