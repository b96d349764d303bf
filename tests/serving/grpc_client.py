"""A client of inference.GRPCInferenceService; runs in the image ``kserve`` with the arguments ``PORT [CONNECTIONS [REQUESTS]]``;
``PORT@HOST`` asks that port of this machine for a host.

Without a number of connections it carries out a line of stdin after the other, ``{"call": …, "message": {…}, "seconds": …,
"metadata": [[…, …]]}``, whose messages are those of the protocol as JSON, and prints for each ``{"status": …, "said": …, "message": {…}, "told": {…}}``;
``{"bytes": "…", "times": N}`` in place of a message is sent as it is, in hex. With a number it asks ModelInfer over as many connections, with
the message of the first line, until stdin ends, or so often without a pause, and prints how often each answer came.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict, ParseDict


def _messages() -> Any:
    """The protocol's messages, without the rest of KServe's SDK, whose import takes a second."""
    kserve = find_spec("kserve")
    assert kserve is not None
    assert kserve.origin is not None
    path = Path(kserve.origin).parent / "protocol" / "grpc" / "grpc_predict_v2_pb2.py"
    found = spec_from_file_location(path.stem, path)
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


messages = _messages()
PAUSE_SECONDS = 0.01
_SEPARATE = [("grpc.use_local_subchannel_pool", 1)]  # a connection for each channel


def ask(channel: grpc.Channel, order: dict[str, Any]) -> dict[str, Any]:
    """Carry out one line."""
    call = order["call"]
    if "bytes" in order:
        data = bytes.fromhex(order["bytes"]) * order.get("times", 1)
    else:
        kind = getattr(messages, f"{call}Request")
        data = ParseDict(order.get("message", {}), kind()).SerializeToString()
    method = channel.unary_unary(f"/inference.GRPCInferenceService/{call}")
    try:
        answer, ended = method.with_call(
            data, timeout=order.get("seconds", 20), metadata=order.get("metadata")
        )
    except grpc.RpcError as error:
        told = {one.key: one.value for one in error.trailing_metadata() or ()}
        return {"status": error.code().name, "said": error.details(), "told": told}
    response = getattr(messages, f"{call}Response").FromString(answer)
    found = MessageToDict(
        response, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    told = {one.key: one.value for one in ended.trailing_metadata()}
    return {"status": "OK", "said": "", "message": found, "told": told}


def address(place: str) -> tuple[str, list[tuple[str, str]]]:
    """Return where ``PORT@HOST`` is, and the options of a channel to it."""
    port, _, host = place.partition("@")
    return f"127.0.0.1:{port}", [("grpc.default_authority", host)] if host else []


async def load(place: str, connections: int, requests: int = 0) -> Counter[str]:
    """Ask over and over, and never again for what failed, until stdin ends.

    :param requests: ask so often instead, without a pause.
    """
    answers: Counter[str] = Counter()
    over = asyncio.Event()
    data = ParseDict(json.loads(sys.stdin.readline()), messages.ModelInferRequest()).SerializeToString()

    async def user() -> None:
        target, options = address(place)
        async with grpc.aio.insecure_channel(target, options=[*_SEPARATE, *options]) as channel:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            while not over.is_set():
                try:
                    answer = messages.ModelInferResponse.FromString(await infer(data, timeout=20))
                    answers[f"revision {answer.model_version}"] += 1
                except grpc.aio.AioRpcError as error:
                    answers[f"{error.code().name}: {error.details()}"] += 1
                if not requests:
                    await asyncio.sleep(PAUSE_SECONDS)
                elif answers.total() >= requests:
                    over.set()

    async def wait() -> None:
        if not requests:
            await asyncio.to_thread(sys.stdin.read)
            over.set()

    print("asking", flush=True)
    await asyncio.gather(wait(), *(user() for _ in range(connections)))
    return answers


def main() -> None:
    """Ask."""
    place, *connections = sys.argv[1:]
    if connections:
        print(json.dumps(asyncio.run(load(place, *map(int, connections)))))
        return
    target, options = address(place)
    with grpc.insecure_channel(target, options=options) as channel:
        for line in sys.stdin:
            print(json.dumps(ask(channel, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
