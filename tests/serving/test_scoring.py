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
from tests.serving.python_model import write_signature

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


def test_bad_rows_are_left_out_and_written_where_asked_for(found: dict[str, Any]) -> None:
    assert (found["skipped"]["rows"], found["skipped"]["bad_rows"]) == (18, 2)
    (first, second) = found["left_out"]
    assert first[:2] == ["rows{}.parquet", 3]
    assert "input 'number_2': found None" in first[2]
    assert second[:2] == ["rows{}.parquet", 7]
    assert "found 99" in second[2]
    assert second[3]["number_3"] == "inf"  # JSON has no infinity
    assert found["left_keys"] == [key for key in range(20) if key not in (3, 7)]


PREDICT = """\
import numpy as np
from beside import SLOPE


def load(folder):
    return SLOPE


def predict(slope, inputs):
    print("predicting")
    x = inputs["x"]
    lengths = np.array([len(text) for text in inputs["note"]])
    shouted = np.array([text.upper() for text in inputs["note"]], dtype=object)
    return {"y": np.sin(x * slope) / (1 + lengths), "shouted": shouted}
"""


def _write_predict(folder: Path) -> Path:
    folder.mkdir()
    (folder / "predict.py").write_text(PREDICT)
    (folder / "beside.py").write_text("SLOPE = 1.7\n")
    write_signature(
        folder,
        [{"name": "x", "datatype": "FP32"}, {"name": "note", "datatype": "BYTES"}],
        [{"name": "y", "datatype": "FP64"}, {"name": "shouted", "datatype": "BYTES"}],
    )
    return folder


@pytest.mark.parametrize(  # serving/test_predictors.py has the kinds
    "name", ["sklearn", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("pickle", "predict"))]
)
def test_a_python_model_is_scored_in_its_authors_image_as_its_workers_answer(
    fitted: Path, python: Callable[[str], Path], run_server: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    folder = _write_predict(tmp_path / "predict") if name == "predict" else fitted / name
    trusted = ["pickle"] * (name == "pickle")
    setup = {"python": str(python("tables")), "memory_gib": 2.0, "trusted": trusted}
    port = free_port()
    words = [python("serve"), "-P", "-m", "muster_serving", "model", "--model", folder]
    words += ["--port", port, "--setup", json.dumps(setup)]
    with run_server(
        list(map(str, words)), port=port, ready="/v2/models/model/ready", log=tmp_path / "server.log"
    ):
        script = Path(__file__).with_name("try_scoring_python.py")
        ended = subprocess.run(
            [python("tables"), script, folder, tmp_path / "scoring", str(port), *trusted],
            env={**os.environ, "PYTHONPATH": str(shipped("serving")), "OMP_NUM_THREADS": "2"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr[-4000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    outputs = ["y", "shouted"] if name == "predict" else ["probability"]
    assert found["equal"] == dict.fromkeys(outputs, 10_000)
    assert found["keys"]
    assert (found["metrics"]["rows"], found["metrics"]["repeated"]) == (10_000, 1)


NULLS = """
import json, sys
from pathlib import Path
import pyarrow as pa
import pyarrow.parquet as pq
import try_scoring

folder, root, port = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
signature = json.loads((folder / "signature.json").read_text())
x, nan = pa.array([0.5, None, float("nan"), 2.0]), float("nan")
rows = pa.table({"x": x, "day": [1, None, 3, None], "flag": [True, None, False, None], "zone": ["a", None, "b", None],
                 "note": ["", None, "NA", "x"], "kind": ["k", "", "l", "NA"]})
(root / "rows").mkdir(parents=True)
pq.write_table(rows, root / "rows" / "a.parquet")
floats = rows.set_column(1, "day", pa.array([1.0, nan, 3.0, nan]))  # as pandas writes whole numbers with missing ones
pq.write_table(floats.set_column(3, "zone", rows["zone"].dictionary_encode()), root / "rows" / "b.parquet")
lines = ["x,day,flag,zone,note,kind", '0.5,1,true,a,"",k', ",,,,,", "nan,3,false,b,NA,l", "2,,,,x,NA"]
(root / "rows" / "c.csv").write_text("\\n".join(lines))
asked = try_scoring.asked_all(port, rows, signature, "model", (4,))["row"]
alone = try_scoring.asked_all(port, rows, signature, "model", (1,))["row"]
scored = {}
for size in (None, 1):
    into = root / f"scored-{size}"
    try_scoring.score(folder, root / "rows", into, shards=3, rows_at_once=size)
    scored[str(size)] = try_scoring.parts(into)["row"].to_pylist()
print(json.dumps({"asked": asked, "alone": alone, "scored": scored}))
"""


def test_null_in_parquet_and_csv_is_what_the_endpoint_takes_for_null(
    python: Callable[[str], Path], run_server: Callable[..., Any], tmp_path: Path
) -> None:
    folder, port, kinds = tmp_path / "model", free_port(), {"x": "FP32", "day": "INT64", "flag": "BOOL"}
    folder.mkdir()
    (folder / "predict.py").write_text(
        "import numpy as np\n\n\ndef load(folder):\n    return None\n\n\ndef predict(model, inputs):\n"
        "    rows = zip(*(values.tolist() for values in inputs.values()))\n"
        "    return {'row': np.array([repr(row) for row in rows], dtype=object)}\n"
    )
    nullable: list[dict[str, Any]] = [
        {"name": name, "datatype": kinds.get(name, "BYTES"), "nullable": True}
        for name in ("x", "day", "flag", "zone", "note")
    ]
    nullable[3]["categories"] = ["a", "b"]
    inputs = [*nullable, {"name": "kind", "datatype": "BYTES"}]
    outputs = [{"name": "row", "datatype": "BYTES"}]
    (folder / "signature.json").write_text(json.dumps({"format": 2, "inputs": inputs, "outputs": outputs}))
    words = [python("serve"), "-P", "-m", "muster_serving", "model", "--model", folder, "--port", port]
    words += ["--setup", json.dumps({"python": str(python("tables")), "memory_gib": 2.0})]
    with run_server(
        list(map(str, words)), port=port, ready="/v2/models/model/ready", log=tmp_path / "server.log"
    ):
        ended = subprocess.run(
            [python("tables"), "-c", NULLS, folder, tmp_path / "scoring", str(port)],
            env={**os.environ, "PYTHONPATH": f"{shipped('serving')}:{Path(__file__).parent}"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr[-4000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    rows = [
        "(0.5, 1, True, 'a', '', 'k')",
        "(nan, None, None, None, None, '')",
        "(nan, 3, False, 'b', 'NA', 'l')",
        "(2.0, None, None, None, 'x', 'NA')",
    ]
    assert (found["asked"], found["alone"]) == (rows, rows)
    assert found["scored"] == {"None": rows * 3, "1": rows * 3}


def test_a_pickle_that_is_not_trusted_is_not_scored(
    fitted: Path, python: Callable[[str], Path], tmp_path: Path
) -> None:
    order = {
        "model": str(fitted / "pickle"),
        "pieces": [],
        "out": str(tmp_path / "out.parquet"),
        "keep": [],
        "rows_at_once": None,
        "trusted": [],
    }
    ended = subprocess.run(
        [python("tables"), "-m", "muster_serving.shard", json.dumps(order)],
        env={**os.environ, "PYTHONPATH": str(shipped("serving"))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].endswith('or trust it, trusted=["pickle"]')
    assert not (tmp_path / "out.parquet").exists()
