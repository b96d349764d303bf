"""What a server counts of a revision beside errors: requests that it refuses, and those in which a fallback stands for a value."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.serving import onnx_graph

from muster.backends.releases.figures import read_counts

pytestmark = [pytest.mark.slow, pytest.mark.data]

PREDICT = """
import numpy as np


def load(folder):
    return None


def predict(model, inputs):
    rows = len(inputs["code"])
    return {"y": np.zeros(rows), "pair": np.zeros((rows, 2))}
"""
GOOD = {"code": ["AA", "OTHER"], "day": [1, 7], "place": [[1, 2, 3], [4, 5, 6]]}
# A check of a revision, no user. All servers take it in version 2 of the protocol.
CHECKED = "/v2/models/mixed/versions/1/infer"
CHECK = {
    "inputs": [
        {"name": "code", "datatype": "BYTES", "shape": [1], "data": ["moon"]},
        {"name": "day", "datatype": "INT64", "shape": [1], "data": [1]},
        {"name": "place", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]},
    ]
}


@pytest.mark.parametrize("kind", ["onnx", "python", "seldon"])
def test_refused_and_unseen_requests_are_counted_of_users_alone(
    python: Callable[[str], Path],
    run_server: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    folder, port = onnx_graph.write_mixed(tmp_path / "model"), free_port()
    image = "seldon" if kind == "seldon" else "serve"
    words = [python(image), "-P", "-m", "muster_serving", "mixed", "--model", folder, "--port", port]
    if kind == "seldon":
        words += ["--server", "seldon"]
        monkeypatch.setenv("PREDICTIVE_UNIT_METRICS_SERVICE_PORT", str(free_port()))
    if kind == "python":
        (folder / "model.onnx").unlink()
        (folder / "predict.py").write_text(PREDICT)
        words += ["--setup", json.dumps({"python": str(python("serve"))})]
    ready = "/v2/models/mixed/ready"
    with run_server(list(map(str, words)), port=port, ready=ready, log=tmp_path / "log") as server:

        def ask(**changes: Any) -> int:
            asked = {"inputs": {**GOOD, **changes}}
            return int(server.ask("POST", "/v1/models/mixed:predict", asked)[0])

        assert [ask(), ask(code=["moon", "AA"]), ask(code=["moon", "sun"])] == [200] * 3
        assert [ask(day=[1, None]), ask(day=[1, 4])] == [400, 400]
        assert server.ask("POST", CHECKED, CHECK)[0] == 200
        counts = read_counts(server.ask("GET", "/metrics")[1], name="mixed")["1"]
    assert (counts.requests, counts.failed, counts.refused, counts.unseen) == (5, 0, 2, 2)
