"""The servers to which ours is compared; runs in the image ``serve``, or in ``kserve``, with the arguments
``WAY MODEL PORT``.

``bare`` is an ASGI function on uvicorn and uvloop that trusts its client; ``kserve``, in the image of that name, is a model
class on KServe's ModelServer with its defaults (but without gRPC, which is not used here); ``plain`` is our
server without metrics and with one revision. ``sessions MODEL MODEL`` is no server:
it opens both models with ONNX Runtime and prints by how many bytes its Pss grew.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np  # noqa: TID253 - runs in the image
import onnxruntime as ort
import orjson
import uvicorn

DTYPES = {"INT64": np.int64, "FP32": np.float32}


def session(model: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(Path(model) / "model.onnx"), options, providers=["CPUExecutionProvider"])


def bare(model: str, port: int) -> None:
    loaded = session(model)

    async def app(_scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        tensors = orjson.loads(body)["inputs"]
        feeds = {t["name"]: np.array(t["data"], DTYPES[t["datatype"]]) for t in tensors}
        (answer,) = loaded.run(["probability"], feeds)
        output = {
            "name": "probability",
            "datatype": "FP32",
            "shape": list(answer.shape),
            "data": answer.tolist(),
        }
        payload = orjson.dumps({"model_name": "flights", "model_version": "1", "outputs": [output]})
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(payload))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": payload})

    uvicorn.run(
        app, port=port, loop="uvloop", http="httptools", lifespan="off", log_level="error", access_log=False
    )


def kserve(model: str, port: int) -> None:
    sys.argv = sys.argv[:1]  # kserve also reads sys.argv, at its import
    from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer

    class Flights(Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__("flights")
            self._session = session(model)
            self.ready = True

        def predict(self, payload: InferRequest, headers: Any = None) -> InferResponse:  # noqa: ARG002 KServe's interface
            feeds = {tensor.name: tensor.as_numpy() for tensor in payload.inputs}
            (answer,) = self._session.run(["probability"], feeds)
            output = InferOutput("probability", list(answer.shape), "FP32", answer.tolist())
            return InferResponse(payload.id or "1", self.name, [output], model_version="1")

    ModelServer(http_port=port, enable_grpc=False).start([Flights()])


def plain(model: str, port: int) -> None:
    from muster_serving import server
    from muster_serving.__main__ import parsed
    from muster_serving.metrics import RevisionMetrics
    from muster_serving.revisions import Revisions

    RevisionMetrics.count = lambda *_: None  # type: ignore[method-assign]
    Revisions.pick = lambda self: self.serving  # type: ignore[method-assign]
    server.serve(parsed(["flights", f"--model={model}", f"--port={port}"]))


def sessions(*models: str) -> None:
    before = pss()
    loaded = [session(model) for model in models]
    for one in loaded:
        one.run(["y"], {"row": np.array([1])})
    print(pss() - before)


def pss() -> int:
    """Return this process's Pss in bytes: shared memory counts in part; see proc(5)."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) << 10


if __name__ == "__main__":
    way, *rest = sys.argv[1:]
    if way == "sessions":
        sessions(*rest)
    else:
        {"bare": bare, "kserve": kserve, "plain": plain}[way](rest[0], int(rest[1]))
