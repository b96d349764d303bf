"""The trial of a version before a live server is given it: its last line says what is wrong, and with which request."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.serving import onnx_graph

from muster.core.shipped import shipped

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"x": [1.0]}, ""),
        ({"area": [1.0]}, "smoke request 'a flat': input 'area' is unknown; this model takes x"),
        ({"x": ["red"]}, "smoke request 'a flat': input 'x': found text 'red' at position 0"),
    ],
)
def test_a_request_that_is_refused_is_named(
    python: Callable[[str], Path], tmp_path: Path, inputs: dict[str, list[object]], said: str
) -> None:
    model, asked = onnx_graph.write_line(tmp_path / "line"), tmp_path / "asked.json"
    asked.write_text(json.dumps([{"name": "a flat", "inputs": inputs}]))
    done = subprocess.run(
        [python("serve"), "-m", "muster_serving.trial", model, asked],
        env={**os.environ, "PYTHONPATH": str(shipped("serving"))},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == bool(said)
    assert done.stderr.strip().startswith(said)
