"""What a server counts by the bins of training rows: requests of users alone, one row of each, and only where it is told to."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.serving import onnx_graph
from tests.serving.test_unseen import CHECK, CHECKED, GOOD, PREDICT

from muster.backends.releases.figures import read_counts
from muster.core.shipped import shipped

pytestmark = [pytest.mark.slow, pytest.mark.data]

HISTOGRAMS = {
    "format": 1,
    "inputs": {
        "code": {"values": ["AA", "OTHER"], "counts": [70, 20, 10]},
        "day": {"edges": [1.5, 2.5], "counts": [10, 20, 30]},
    },
}
BREAKS = """
import asyncio, sys, threading
from pathlib import Path
from muster_serving import revisions

def load(*_):
    assert threading.current_thread() is not threading.main_thread()
    raise MemoryError

closed = []
revisions.Histograms.load, revisions._close = load, closed.append
try:
    asyncio.run(revisions.Revisions("mixed").load("1", Path(sys.argv[1]), counts_inputs=True))
except MemoryError:
    print(len(closed))
"""
DAYS = ["up to 1.5", "1.5 to 2.5", "above 2.5"]


@pytest.mark.parametrize("kind", ["onnx", "python", "seldon"])
@pytest.mark.parametrize("counted", [True, False])
def test_requests_are_counted_by_the_bins_of_the_training_rows(
    python: Callable[[str], Path],
    run_server: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    counted: bool,
) -> None:
    folder, port = onnx_graph.write_mixed(tmp_path / "model"), free_port()
    (folder / "histograms.json").write_text(json.dumps(HISTOGRAMS))
    image = "seldon" if kind == "seldon" else "serve"
    words = [python(image), "-P", "-m", "muster_serving", "mixed", "--model", folder, "--port", port]
    words += ["--counts-inputs"] if counted else []
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

        before = read_counts(server.ask("GET", "/metrics")[1], name="mixed")["1"]
        assert [ask(code=["AA", "AA"], day=[1, 1]), ask(code=["UA", "UA"], day=[3, 7])] == [200] * 2
        assert ask(code=["moon", "OTHER"], day=[2, 2]) == 200  # the fallback stands in for the moon
        assert ask(day=[1, 4]) == 400
        assert server.ask("POST", CHECKED, CHECK)[0] == 200
        counts = read_counts(server.ask("GET", "/metrics")[1], name="mixed")["1"]
    if not counted:
        assert (counts.requests, counts.asked, counts.trained) == (4, None, {})
        return
    assert before.asked == {
        "code": dict.fromkeys(["AA", "OTHER", "(others)"], 0),
        "day": dict.fromkeys(DAYS, 0),
    }
    assert counts.asked == {
        "code": {"AA": 1, "OTHER": 1, "(others)": 1},
        "day": dict.fromkeys(DAYS, 1),
    }
    assert counts.trained == {
        "code": {"AA": 70, "OTHER": 20, "(others)": 10},
        "day": dict(zip(DAYS, [10, 20, 30], strict=True)),
    }


def test_what_runs_for_a_model_ends_where_its_histograms_cannot_be_loaded(
    python: Callable[[str], Path], tmp_path: Path
) -> None:
    words = [python("serve"), "-P", "-c", BREAKS, onnx_graph.write_mixed(tmp_path / "model")]
    environment = {**os.environ, "PYTHONPATH": str(shipped("serving"))}
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout == "1\n"
