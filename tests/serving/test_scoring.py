"""Rows that are scored are what the endpoint answers, bit by bit; a shard that is lost alone is done again."""

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

from muster.core.shipped import shipped

pytestmark = [pytest.mark.slow, pytest.mark.data]


@pytest.fixture(scope="module")
def found(
    python: Callable[[str], Path], run_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    root, port = tmp_path_factory.mktemp("scoring"), free_port()
    onnx_graph.write_delays(root / "model")
    serve = [python("serve"), "-P", "-m", "muster_serving", "delays", "--model", root / "model"]
    words = [*map(str, serve), "--port", str(port)]
    with run_server(words, port=port, ready="/v2/health/ready", log=root / "log"):
        script = Path(__file__).with_name("try_scoring.py")
        ended = subprocess.run(
            [python("serve"), script, root, str(port)],
            env={**os.environ, "PYTHONPATH": str(shipped("serving"))},
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def test_ten_thousand_rows_of_parquet_and_csv_are_what_the_endpoint_answers(found: dict[str, Any]) -> None:
    assert (found["rows"], found["equal"]) == (10_000, 10_000)
    assert found["keys"]
    assert found["metrics"]["rows"] == 10_000


def test_a_shard_that_is_killed_is_done_again_alone(found: dict[str, Any]) -> None:
    assert found["metrics"]["repeated"] == 1
    assert found["done_again"] == ["part-00002.parquet"]  # of a second try that found one missing


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("null", "rows.parquet, row 7: input 'carrier': found None at position 0, expected INT64"),
        ("range", "rows.parquet, row 7: input 'carrier': found 99 at position 0, expected 0 to 15"),
        ("nan", "rows.parquet, row 4: input 'number_3': found nan at position 0, expected finite numbers"),
        ("type", "rows.parquet, row 0: input 'carrier': found 1.5 at position 0, expected INT64"),
        ("missing", "rows.parquet has no column 'origin'"),
        ("clash", ""),
        ("none", ""),
    ],
)
def test_what_the_endpoint_would_refuse_names_file_and_row(
    found: dict[str, Any], case: str, says: str
) -> None:
    assert found[case].startswith(says)
