"""Asks over ModelStreamInfer as users of Triton do; runs beside the packages of triton/, with the argument ``PORT``; ``PORT@HOST``
asks that port of this machine for a host.

It carries out a line of stdin after the other, and prints what its callback is told, a line each, as it comes::

    {"do": "start", "headers": {…}}    open a stream
    {"do": "ask", "inputs": […], …}    ask on it; each input has a name, a datatype and data; the rest is for tritonclient
    {"do": "hold", "file": "…"}        have the callback wait from now on until that file is there
    {"do": "stop"}                     end the stream when all is answered, and print so; "cancel": at once
    {"do": "typed", "inputs": […]}     ask on a stream of its own with typed values, and print the answers' outputs
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np  # noqa: TID253 - runs beside its own packages
import tritonclient.grpc as triton
from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2, service_pb2_grpc

KINDS = {"INT64": np.int64, "FP32": np.float32, "BYTES": np.object_}
CONTENTS = {"INT64": "int64_contents", "FP32": "fp32_contents", "BYTES": "bytes_contents"}
PAUSE_SECONDS = 0.01

_printing = threading.Lock()
_held = ""


def tell(**found: Any) -> None:
    """Print a line."""
    with _printing:
        print(json.dumps(found), flush=True)


def told(result: Any, error: Any) -> None:
    """Print what the callback is told."""
    if error is not None:
        tell(error=error.message(), status=error.status())
    else:
        response = result.get_response()
        values = {one.name: result.as_numpy(one.name).tolist() for one in response.outputs}
        tell(
            id=response.id,
            version=response.model_version,
            outputs={name: [_text(value) for value in found] for name, found in values.items()},
            told={
                key: one.string_param if one.HasField("string_param") else one.bool_param
                for key, one in response.parameters.items()
            },
        )
    while _held and not Path(_held).exists():
        time.sleep(PAUSE_SECONDS)


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def ask(client: Any, order: dict[str, Any]) -> None:
    """Ask on the open stream."""
    inputs = []
    for one in order.pop("inputs"):
        values = np.array(one["data"], KINDS[one["datatype"]])
        inputs.append(
            triton.InferInput(one["name"], values.shape, one["datatype"]).set_data_from_numpy(values)
        )
    client.async_stream_infer(order.pop("model", "line"), inputs, **order)


def ask_typed(port: str, order: dict[str, Any]) -> None:
    """Ask with values as Triton's own messages have them, typed."""
    request = service_pb2.ModelInferRequest(model_name="line")
    for one in order["inputs"]:
        tensor = request.inputs.add(name=one["name"], datatype=one["datatype"], shape=[len(one["data"])])
        data = [value.encode() for value in one["data"]] if one["datatype"] == "BYTES" else one["data"]
        getattr(tensor.contents, CONTENTS[one["datatype"]]).extend(data)
    with triton.grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answers = list(stub.ModelStreamInfer(iter([request])))
    tell(answers=[MessageToDict(one.infer_response)["outputs"] for one in answers])


def main() -> None:
    """Do what stdin says."""
    global _held  # the callback has no other way to learn of it
    port, _, host = sys.argv[1].partition("@")
    options = [("grpc.default_authority", host)] if host else None
    client = triton.InferenceServerClient(f"127.0.0.1:{port}", channel_args=options)
    for line in sys.stdin:
        order = json.loads(line)
        what = order.pop("do")
        if what == "start":
            client.start_stream(told, headers=order.get("headers"))
        elif what == "ask":
            ask(client, order)
        elif what == "hold":
            _held = order["file"]
        elif what == "typed":
            ask_typed(port, order)
        else:
            client.stop_stream(cancel_requests=what == "cancel")
            tell(stopped=what)


if __name__ == "__main__":
    main()
