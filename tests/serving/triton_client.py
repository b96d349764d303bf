"""Asks over gRPC as users of Triton do; runs beside the packages of triton/, with the argument ``PORT``, and prints what it got.

The model is ``y = 2 x``, under the name ``line``.
"""

from __future__ import annotations

import json
import sys

import numpy as np  # noqa: TID253 - runs beside its own packages
import tritonclient.grpc as triton


def main() -> None:
    """Ask all that there is to ask."""
    client = triton.InferenceServerClient(f"127.0.0.1:{sys.argv[1]}")
    rows = np.array([3, 4.5], np.float32)
    tensor = triton.InferInput("x", rows.shape, "FP32").set_data_from_numpy(rows)
    answer = client.infer("line", [tensor], request_id="mine", client_timeout=20)
    named = client.infer("line", [tensor], model_version="r1", outputs=[triton.InferRequestedOutput("y")])
    wrong = triton.InferInput("x", rows.shape, "FP64").set_data_from_numpy(rows.astype(np.float64))
    refused = ""
    try:
        client.infer("line", [wrong])
    except triton.InferenceServerException as error:
        refused = f"{error.status()}: {error.message()}"
    found = {
        "live": client.is_server_live() and client.is_server_ready() and client.is_model_ready("line"),
        "model": client.get_model_metadata("line").name,
        "server": client.get_server_metadata(as_json=True)["name"],
        "y": answer.as_numpy("y").tolist(),
        "id": answer.get_response().id,
        "version": named.get_response().model_version,
        "named": named.as_numpy("y").tolist(),
        "refused": refused,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
