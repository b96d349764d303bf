"""The same predictor under the Seldon Core wrapper, in its own image."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.serving import onnx_graph
from tests.serving.conftest import Server

from muster.backends.releases.figures import read_counts
from muster.core.deployment import Counts

pytestmark = pytest.mark.slow

PREDICT = "/api/v1.0/predictions"
JSON = {"Content-Type": "application/json"}
HISTOGRAMS = {"format": 1, "inputs": {"code": {"values": ["AA", "OTHER"], "counts": [70, 20, 10]}}}


@pytest.fixture(scope="module")
def server(
    python: Callable[[str], Path], run_server: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("seldon")
    values = {"model": str(onnx_graph.write_mixed(folder / "8")), "name": "mixed", "revision": "8"}
    (folder / "8" / "histograms.json").write_text(json.dumps(HISTOGRAMS))
    parameters = [{"name": name, "value": value, "type": "STRING"} for name, value in values.items()]
    parameters.append({"name": "counts_inputs", "value": "true", "type": "BOOL"})
    port, metrics = free_port(), free_port()
    interpreter = python("seldon")
    words = [interpreter, "-P", interpreter.with_name("seldon-core-microservice")]
    words += ["muster_serving.seldon_model.SeldonModel", "--parameters", json.dumps(parameters)]
    words += ["--http-port", port, "--metrics-port", metrics, "--grpc-port", 0, "--log-level", "WARNING"]
    running = run_server([*map(str, words)], port=port, ready="/health/status", log=folder / "log")
    with running as server:
        yield server


def test_columns(server: Server) -> None:
    columns = {"code": ["UA", "elsewhere"], "day": [1, 7], "place": [[1, 2, 3], [0.5, 0, 0]]}
    status, answer = server.ask("POST", PREDICT, {"jsonData": columns}, **JSON)
    assert status == 200
    assert answer["jsonData"] == {"y": [322.5, 7.5], "pair": [[322.5, 0.5], [7.5, 0.0]]}
    assert answer["meta"]["tags"] == {"revision": "8"}


def counted(server: Server) -> Counts:
    return read_counts(server.ask("GET", "/metrics")[1], name="mixed")["8"]


def test_what_comes_in_its_own_protocol_is_counted_by_bins_and_for_unseen_values(server: Server) -> None:
    before = counted(server)
    columns = {"code": ["moon"], "day": [1], "place": [[1, 2, 3]]}
    assert server.ask("POST", PREDICT, {"jsonData": columns}, **JSON)[0] == 200
    assert server.ask("POST", PREDICT, {"jsonData": {**columns, "day": [4]}}, **JSON)[0] == 400
    after = counted(server)
    assert after.unseen == (before.unseen or 0) + 1
    assert before.asked
    assert after.asked == {"code": {**before.asked["code"], "OTHER": before.asked["code"]["OTHER"] + 1}}
    assert after.trained == {"code": {"AA": 70, "OTHER": 20, "(others)": 10}}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"jsonData": {"code": ["UA"]}}, "input 'day' is missing; this model takes code, day, place"),
        (
            {"jsonData": {"code": ["UA"], "day": [4], "place": [[1, 2, 3]]}},
            "input 'day': found 4, expected one of",
        ),
        ({"data": {"names": ["day"], "ndarray": [[1], [2]]}}, "input 'code' is missing"),
        ({"data": {"names": ["day"], "ndarray": [[1, 2]]}}, "found shape [1, 2] and 1 names"),
        ({"strData": "x"}, "data: found shape [] and 0 names"),
    ],
)
def test_bad_requests_name_the_field(server: Server, body: Any, words: str) -> None:
    status, answer = server.ask("POST", PREDICT, body, **JSON)
    assert status == 400
    assert words in answer["status"]["info"]


def test_health_and_metadata(server: Server) -> None:
    assert server.ask("GET", "/health/status")[1]["jsonData"] == {"ready": True, "revision": "8"}
    _, metadata = server.ask("GET", "/metadata")
    assert (metadata["name"], metadata["versions"]) == ("mixed", ["8"])
    assert metadata["inputs"][2] == {"name": "place", "datatype": "FP32", "shape": [-1, 3]}


def test_a_path_that_is_not_there_is_no_failure_of_the_server(server: Server) -> None:
    status, answer = server.ask("GET", "/v2/models/mixed/infer")
    assert (status, answer["error"]) == (405, "GET '/v2/models/mixed/infer': this page takes POST")
    status, answer = server.ask("GET", "/redoc")
    assert (status, answer["error"][:14]) == (404, "GET '/redoc': ")


def test_rows_and_counts(python: Callable[[str], Path], run_server: Any, tmp_path: Path, port: int) -> None:
    parameters = [{"name": "model", "value": str(onnx_graph.write_line(tmp_path / "line")), "type": "STRING"}]
    interpreter, metrics = python("seldon"), free_port()
    words = [interpreter, "-P", interpreter.with_name("seldon-core-microservice")]
    words += ["muster_serving.seldon_model.SeldonModel", "--parameters", json.dumps(parameters)]
    words += ["--http-port", port, "--metrics-port", metrics, "--grpc-port", 0]
    with run_server([*map(str, words)], port=port, ready="/health/status", log=tmp_path / "log") as server:
        body = {"data": {"names": ["x"], "ndarray": [[2.0], [5]]}}
        status, answer = server.ask("POST", PREDICT, body, **JSON)
        assert (status, answer["data"]) == (200, {"names": ["y"], "ndarray": [[4.0], [10.0]]})
        assert server.ask("POST", PREDICT, {"jsonData": {"z": [2.0]}}, **JSON)[0] == 400
        counts = read_counts(server.ask("GET", "/metrics")[1], name="model")["1"]
        assert (counts.requests, counts.failed) == (2, 0)
