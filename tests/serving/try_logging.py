"""Run in the image ``serve``: ``FOLDER ROUNDS`` logs random requests of each protocol and form that a server answers with 200, collects them,
and prints what became of them. ``FOLDER bad`` collects spool files that hold what cannot be read.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np  # noqa: TID253 - it runs in the image
import pyarrow.parquet as pq

from muster_serving import protocol, spool
from muster_serving.answer import HttpAnswer
from muster_serving.collect import collect
from muster_serving.column import DATATYPES
from muster_serving.errors import RequestError
from muster_serving.protocol import Question
from muster_serving.request_log import LogOrder, RequestLogWriter
from muster_serving.routes import ModelPath
from muster_serving.rpc import generated as messages, messages as messages_of
from muster_serving.signature import ModelSignature

FORMS = (
    "v1",
    "v2",
    "raw",
    "typed",
)  # JSON; binary tensors, which are gRPC's raw contents, too; gRPC's typed ones
CONTENTS = {"BOOL": "bool_contents", "INT64": "int64_contents", "UINT64": "uint64_contents"}
CONTENTS |= {"FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents"}
CONTENTS |= {f"{sign}INT{bits}": f"{sign.lower()}int_contents" for sign in ("", "U") for bits in (8, 16, 32)}
HOUR = "2026-11-26T07"
NUMBERS = [
    0,
    1,
    -1,
    7.0,
    0.1,
    -0.0,
    1e-310,
    255,
    256,
    32767,
    65536,
    2**24 + 1,
    20_000_000,
    2**31,
    2**53 + 1,
    2**63,
    2**64 - 1,
    -(2**63),
]
NUMBERS += [1e300, 3.4e38, 3.5e38, 2.0**70, -(2.0**70), 9007199254740993.0, math.nan]
TEXTS = ["", "a", "\\0", "é", "\U0001f600", "x" * 300, "null", "NaN"]


def document(nullable: bool, tail: list[int]) -> dict[str, Any]:
    inputs = [
        {
            "name": f"{kind}",
            "datatype": kind,
            "shape": [-1, *tail],
            **({"nullable": True} if nullable else {}),
        }
        for kind in DATATYPES
    ]
    return {
        "format": 2,
        "inputs": inputs,
        "outputs": [{"name": "y", "datatype": "FP32"}, {"name": "n", "datatype": "INT64"}],
    }


def value(kind: str, nullable: bool) -> Any:
    if nullable and random.random() < 0.2:
        return None
    if kind == "BYTES":
        return random.choice(TEXTS)
    return random.choice([True, False]) if kind == "BOOL" else random.choice(NUMBERS)


def body_of(
    columns: dict[str, list[Any]], rows: int, tail: list[int], form: str
) -> tuple[bytes, int | None] | None:
    """A request, and how much of it is JSON, if not all; None where the form cannot hold a value."""
    shape = [rows, *tail]
    if form == "v1":
        width = math.prod(tail)
        cut = {
            n: [v[i * width : (i + 1) * width] for i in range(rows)] if tail else v
            for n, v in columns.items()
        }
        instances = [{name: values[row] for name, values in cut.items()} for row in range(rows)]
        return json.dumps({"instances": instances}).encode(), None
    if form == "v2":
        tensors = [{"name": n, "datatype": n, "shape": shape, "data": v} for n, v in columns.items()]
        return json.dumps({"inputs": tensors}).encode(), None
    request = messages.ModelInferRequest()
    for name, values in columns.items():
        tensor = request.inputs.add(name=name, datatype=name, shape=shape)
        if name.startswith("FP"):
            values = [math.nan if value is None else value for value in values]
        try:
            if form == "typed":
                held = [value.encode() if isinstance(value, str) else value for value in values]
                getattr(tensor.contents, CONTENTS[name]).extend(held)
            elif name == "BYTES":
                texts = [value.encode() for value in values]
                request.raw_input_contents.append(
                    b"".join(struct.pack("<I", len(text)) + text for text in texts)
                )
            else:
                request.raw_input_contents.append(np.array(values, DATATYPES[name]).tobytes())
        except (AttributeError, TypeError, ValueError, OverflowError):
            return None
    # gRPC's raw contents come as the body of HTTP that has binary tensors
    return messages_of.body_of(
        messages.ModelInferRequest.FromString(request.SerializeToString()), as_bytes=True
    )


def accepted(signature: ModelSignature, body: bytes, form: str, length: int | None) -> dict[str, Any] | None:
    """What the server gives the model; None where it answers 400."""
    try:
        inputs, _, _ = protocol.read_request(signature, body, v1=form == "v1", json_length=length)
        return {name: signature.inputs[name].array(values) for name, values in inputs.items()}
    except RequestError:
        return None


def same(found: Any, given: Any) -> bool:
    if found is None:
        return given is None or given != given
    if isinstance(found, list):
        return all(map(same, found, given))
    return bool(found == given)


def answered(root: Path, rounds: int) -> dict[str, Any]:
    random.seed(42)
    total: dict[str, Any] = {"answered": 0, "rows": 0, "unread": 0, "different": [], "forms": Counter()}
    for nullable in (False, True):
        for tail in ([], [2]):
            written = document(nullable, tail)
            signature, place = ModelSignature.parse(written), root / f"{nullable}-{len(tail)}"
            (place / "out").mkdir(parents=True)
            log = RequestLogWriter(
                LogOrder(folder=place, share=1.0), signature, name="m", revision="r1", model="m@1"
            )
            wanted = []
            for _ in range(rounds):
                form = random.choice(FORMS)
                columns = {
                    kind: [value(kind, nullable) for _ in range(math.prod(tail))] for kind in DATATYPES
                }
                for kind in columns:  # one column at a time is odd, else nearly all are refused
                    plain = {other: [good(other)] * math.prod(tail) for other in DATATYPES}
                    sent = body_of(plain | {kind: columns[kind]}, 1, tail, form)
                    if sent is None or (arrays := accepted(signature, sent[0], form, sent[1])) is None:
                        continue
                    total["forms"][form] += 1
                    wanted.append((kind, columns[kind], arrays[kind]))
                    v1 = form == "v1"
                    log.keep(Question(ModelPath("", ":predict" if v1 else "/infer"), *sent), answer(v1))
            log.close()
            told = collect(sorted(place.glob("*" + spool.SUFFIX)), None, place / "out")
            rows = [
                row
                for part in sorted((place / "out").glob("*.parquet"))
                for row in pq.read_table(part).to_pylist()
            ]
            total["answered"] += len(wanted)
            total["rows"] += told["rows"]
            total["unread"] += told["unread"]
            for row, (kind, given, array) in zip(rows, wanted, strict=True):
                if not same(row[f"input_{kind}"], array.tolist() if tail else array[0]):
                    total["different"].append(f"{kind}: {given} became {row[f'input_{kind}']}")
    return total


def good(kind: str) -> Any:
    return "a" if kind == "BYTES" else True if kind == "BOOL" else 1


def answer(v1: bool) -> HttpAnswer:
    tensors = [
        {"name": "y", "datatype": "FP32", "shape": [1], "data": [2]},
        {"name": "n", "datatype": "INT64", "shape": [1], "data": [3]},
    ]
    said = {"predictions": [{"y": 2, "n": 3}]} if v1 else {"model_name": "m", "outputs": tensors}
    return HttpAnswer(200, json.dumps(said).encode(), ())


def bad(root: Path) -> dict[str, Any]:
    written = {
        "format": 2,
        "inputs": [{"name": "x", "datatype": "INT8"}],
        "outputs": [{"name": "y", "datatype": "FP32"}, {"name": "n", "datatype": "INT64"}],
    }
    head = {
        **spool.about(clients=False),
        "deployment": "m",
        "revision": "r1",
        "model": "",
        "signature": written,
        "leave_out": [],
        "hashed": [],
    }
    first = json.dumps(head).encode() + b"\n"

    def frame(name: str, body: bytes) -> bytes:
        asked = Question(ModelPath("", ":predict"), body)
        return spool.Frame.of(name, 1.0, asked, answer(True), client=False).written()

    def asked(x: int) -> bytes:
        return json.dumps({"instances": [{"x": x}]}).encode()

    frames = [
        frame("one", asked(1)),
        frame("torn", b"{]"),
        frame("two", asked(2)),
        frame("wrong", asked(300)),
    ]
    endless = b"1 id v1 -1 99999999999 -1 1\n"
    file = root / f"{HOUR}.1-a.spool"
    file.write_bytes(first + b"".join(frames) + frame("three", asked(3)) + endless)
    other = root / f"{HOUR}.1-b.spool"
    other.write_bytes(b"no head")
    for name in ("first", "again"):
        (root / name).mkdir()
    told = [collect([file, other], None, root / "first")]
    with file.open("ab") as more:
        more.write(frame("four", asked(4)))
    told.append(collect([file, other], root / "first", root / "again"))
    aside = root / "again" / "_unread"
    return {
        **{
            name: {key: each[key] for key in ("rows", "unread")}
            for name, each in zip(("first", "again"), told, strict=True)
        },
        "aside": [path.name for path in aside.iterdir()],
        "kept": [each.identity for each, _ in frames_of(aside / file.name)],
    }


def frames_of(file: Path) -> list[Any]:
    found = []
    with contextlib.suppress(spool.SpoolError):  # its last one is endless
        for each in spool.frames(file):
            found.append(each)  # noqa: PERF402 those before it count
    return found


if __name__ == "__main__":
    folder, what = Path(sys.argv[1]), sys.argv[2]
    print(json.dumps(bad(folder) if what == "bad" else answered(folder, int(what))))
