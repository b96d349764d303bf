"""Null over every protocol, and values outside what the training rows had: answered, counted, and refused where it is closed."""

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

pytestmark = pytest.mark.slow

SIGNATURE: dict[str, Any] = {
    "format": 2,
    "inputs": [
        {"name": "x", "datatype": "FP32", "min": 0, "max": 1, "nullable": True},
        {"name": "day", "datatype": "INT64", "min": 1, "max": 4, "nullable": True},
        {"name": "zone", "datatype": "BYTES", "categories": ["a", "b"], "nullable": True},
        {"name": "kind", "datatype": "BYTES", "categories": ["k", "l"], "closed": True},
    ],
    "outputs": [{"name": "row", "datatype": "BYTES"}],
}
PREDICT = """
import numpy as np


def load(folder):
    return None


def predict(model, inputs):
    rows = zip(*(values.tolist() for values in inputs.values()))
    return {"row": np.array(["%.2f %s %s %s" % row for row in rows], dtype=object)}
"""
READ = """
import json, struct, sys
from muster_serving.rpc import generated as messages
from muster_serving import protocol
from muster_serving.openapi import document
from muster_serving.routes import ModelPath
from muster_serving.rpc.messages import body_of
from muster_serving.signature import ModelSignature

signature = ModelSignature.parse(json.loads(sys.argv[1]))
read = lambda body, length=None, verb="/infer": protocol.read(
    signature, protocol.Question(ModelPath("", verb, name="m"), body, length), revision="1").columns
columns = {"x": [0.5, None], "day": [None, 3], "zone": ["a", None], "kind": ["k", "l"]}
kinds = {c["name"]: c["datatype"] for c in json.loads(sys.argv[1])["inputs"]}
masked = {"x": [0.5, 0], "day": [0, 3], "zone": ["a", ""], "kind": ["k", "l"],
          "x.nulls": [False, True], "day.nulls": [True, False], "zone.nulls": [False, True]}
tensors = [{"name": n, "datatype": kinds.get(n, "BOOL"), "shape": [2], "data": v} for n, v in masked.items()]
text = lambda *several: b"".join(struct.pack("<I", len(t)) + t for t in several)
raw = {"x": struct.pack("<2f", 0.5, float("nan")), "day": struct.pack("<2q", 0, 3), "zone": text(b"a", b""),
       "kind": text(b"k", b"l"), "day.nulls": b"\\1\\0", "zone.nulls": b"\\0\\1"}
head = json.dumps({"inputs": [{"name": n, "datatype": kinds.get(n, "BOOL"), "shape": [2],
                               "parameters": {"binary_data_size": len(v)}} for n, v in raw.items()]}).encode()
request = messages.ModelInferRequest()
for n, v in raw.items():
    request.inputs.add(name=n, datatype=kinds.get(n, "BOOL"), shape=[2])
    request.raw_input_contents.append(v)
said = ""
try:
    read(json.dumps({"inputs": [*tensors, {**tensors[-1], "name": "kind.nulls"}]}).encode())
except Exception as error:
    said = str(error)
found = [
    read(json.dumps({"inputs": columns}).encode(), verb=":predict"),
    read(json.dumps({"inputs": {**columns, "x": [0.5, float("nan")]}}).encode(), verb=":predict"),
    read(json.dumps({"inputs": [{"name": n, "datatype": kinds[n], "shape": [2], "data": v} for n, v in columns.items()]}).encode()),
    read(json.dumps({"inputs": tensors}).encode()),
    read(head + b"".join(raw.values()), len(head)),
    read(*body_of(request, as_bytes=True)),
]
rows = [{n: [None if v != v else v for v in list(signature.inputs[n].array(each[n]))] for n in kinds} for each in found]
paths = document("m", ["1"], signature)["paths"]
asked = lambda path: paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
schema, tensors = asked("/v1/models/m:predict"), asked("/v2/models/m/infer")["properties"]["inputs"]
masks = [each["properties"]["name"]["const"] for each in tensors["items"]["anyOf"]]
events = asked("/v2/models/m/generate_stream")["properties"]["parameters"]["properties"]
print(json.dumps({"rows": rows, "said": said, "events": events, "masks": masks, "most": tensors["maxItems"], "row": schema["anyOf"][0]["properties"]["instances"]["items"]["properties"]}, default=float))
"""


LOGGED = """
import json, struct, sys
import orjson, pyarrow.parquet as pq
from pathlib import Path
from muster_serving import spool
from muster_serving.answer import HttpAnswer
from muster_serving.collect import collect
from muster_serving.protocol import Question
from muster_serving.request_log import LogOrder, RequestLogWriter
from muster_serving.routes import ModelPath
from muster_serving.signature import ModelSignature

document, root = json.loads(sys.argv[1]), Path(sys.argv[2])
signature = ModelSignature.parse(document)
plain = json.dumps({"inputs": {"x": [0.5, None], "day": [None, 3.0], "zone": ["a", None], "kind": ["k", "l"]}}).encode()
text = lambda *several: b"".join(struct.pack("<I", len(t)) + t for t in several)
raw = {"x": struct.pack("<2f", 0.5, float("nan")), "day": struct.pack("<2q", 0, 3), "zone": text(b"a", b""),
       "kind": text(b"k", b"l"), "day.nulls": b"\\1\\0", "zone.nulls": b"\\0\\1"}
kinds = {c["name"]: c["datatype"] for c in document["inputs"]}
head = json.dumps({"inputs": [{"name": n, "datatype": kinds.get(n, "BOOL"), "shape": [2],
                               "parameters": {"binary_data_size": len(v)}} for n, v in raw.items()]}).encode()
answers = [HttpAnswer(200, json.dumps({"outputs": {"row": ["a", "b"]}}).encode(), ()),
           HttpAnswer(200, json.dumps({"model_name": "m", "outputs": [{"name": "row", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]}]}).encode(), ())]
found = {}
for name, hashed in (("plain", []), ("hidden", ["zone", "day"])):
    (root / name / "out").mkdir(parents=True)
    order = LogOrder(folder=root / name, share=1.0, hashed=frozenset(hashed), key=b"key") if hashed else LogOrder(folder=root / name, share=1.0)
    log = RequestLogWriter(order, signature, name="m", revision="r1", model="volume://m@1")
    log.keep(Question(ModelPath("", ":predict"), plain), answers[0])
    log.keep(Question(ModelPath("", "/infer"), head + b"".join(raw.values()), len(head)), answers[1])
    log.close()
    collect(sorted((root / name).rglob("*" + spool.SUFFIX)), None, root / name / "out")
    table = pq.read_table(root / name / "out").to_pylist()
    found[name] = [{k: v for k, v in row.items() if k.startswith("input_")} for row in table]
print(json.dumps(found))
"""


def test_the_request_log_keeps_null_as_null(python: Callable[[str], Path], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(shipped("serving"))}
    command = [str(python("serve")), "-c", LOGGED, json.dumps(SIGNATURE), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1500:]
    found = json.loads(done.stdout)
    both = [
        {"input_x": 0.5, "input_day": None, "input_zone": "a", "input_kind": "k"},
        {"input_x": None, "input_day": 3, "input_zone": None, "input_kind": "l"},
    ]
    assert found["plain"] == both * 2
    hidden = [(row["input_day_hash"] is None, row["input_zone_hash"] is None) for row in found["hidden"]]
    assert hidden == [(True, False), (False, True)] * 2


def test_null_is_the_same_over_every_protocol(python: Callable[[str], Path]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(shipped("serving"))}
    command = [str(python("serve")), "-c", READ, json.dumps(SIGNATURE)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-800:]
    found = json.loads(done.stdout)
    same = {"x": [0.5, None], "day": [None, 3], "zone": ["a", None], "kind": [0, 1]}
    assert found["rows"] == [same] * 6
    assert found["said"] == "input 'kind.nulls' is unknown; this model takes x, day, zone, kind"
    assert (found["masks"], found["most"]) == (["x.nulls", "day.nulls", "zone.nulls"], 7)
    assert found["events"] == {"binary_data_output": {"const": False}}
    assert found["row"]["day"] == {"type": ["integer", "null"], "minimum": -(2**63), "maximum": 2**63 - 1}
    assert found["row"]["zone"] == {"type": ["string", "null"]}
    assert found["row"]["kind"] == {"enum": ["k", "l"]}


@pytest.mark.parametrize("kind", ["onnx", "python"])
def test_values_outside_are_answered_and_counted_by_input(
    python: Callable[[str], Path], run_server: Callable[..., Any], tmp_path: Path, kind: str
) -> None:
    port, name = free_port(), "mixed"
    words = [python("serve"), "-P", "-m", "muster_serving", name, "--model", tmp_path, "--port", port]
    if kind == "onnx":
        _write_graph(tmp_path)
    else:
        (tmp_path / "signature.json").write_text(json.dumps(SIGNATURE))
        (tmp_path / "predict.py").write_text(PREDICT)
        words += ["--setup", json.dumps({"python": str(python("serve"))})]
    ready = f"/v2/models/{name}/ready"
    with run_server(list(map(str, words)), port=port, ready=ready, log=tmp_path / "log") as server:

        def ask(**row: Any) -> Any:
            given = {
                "x": [0.5],
                "zone": ["a"],
                **({"day": [2], "kind": ["k"]} if kind == "python" else {}),
                **row,
            }
            status, answer = server.ask("POST", f"/v1/models/{name}:predict", {"inputs": given})
            return answer["outputs"] if status == 200 else (status, answer["error"])

        if kind == "python":
            assert ask(x=[None], day=[None], zone=[None]) == {"row": ["nan None None k"]}
            assert ask(x=[0.5, 7], day=[7, 2], zone=["moon", "b"], kind=["k", "l"]) == {
                "row": ["0.50 7 moon k", "7.00 2 b l"]
            }
            assert ask(kind=["m"]) == (400, "input 'kind': found text 'm', expected one of k, l")
            expected = {("x", "range"): 1.0, ("day", "range"): 1.0, ("zone", "category"): 1.0}
        else:
            assert ask(x=[None, 0.5, 7], zone=["a", "b", "b"]) == {"y": [1.0, 1.0, 1.0]}
            assert ask(zone=["moon"]) == (400, "input 'zone': found text 'moon', expected one of a, b")
            expected = {("x", "range"): 1.0}
        page = server.ask("GET", "/metrics")[1]
    counts = [line for line in page.splitlines() if line.startswith("muster_outside_requests_total")]
    found = {
        (each.split('input="')[1].split('"')[0], each.split('kind="')[1].split('"')[0]): float(
            each.split()[-1]
        )
        for each in counts
    }
    assert found == expected


def _write_graph(folder: Path) -> None:
    """Write a model that answers how many of null and the second zone a row has."""
    nodes = [
        onnx_graph.node("IsNaN", ["x"], "null"),
        onnx_graph.node("Cast", ["null"], "one", to=onnx_graph.FLOAT),
        onnx_graph.node("Cast", ["zone"], "place", to=onnx_graph.FLOAT),
        onnx_graph.node("Add", ["one", "place"], "y"),
    ]
    inputs = [("x", onnx_graph.FLOAT, ()), ("zone", onnx_graph.INT64, ())]
    graph = onnx_graph.model(nodes, [], inputs, [("y", onnx_graph.FLOAT, ())])
    x, _, zone, _ = SIGNATURE["inputs"]
    taken = [x, {**zone, "nullable": False}]
    onnx_graph.write(
        folder, graph, {**SIGNATURE, "inputs": taken, "outputs": [{"name": "y", "datatype": "FP32"}]}
    )
