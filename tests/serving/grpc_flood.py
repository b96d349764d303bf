"""Run in the image ``serve``: ``PORT gzip|plain STREAMS`` sends so many long messages at once over one connection, without a token;
prints how often each status came.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter

import grpc

LONG = b"\x3a\x80\x80\xbc\x07" + bytes(15 << 20)  # field 7, raw contents, of zeros


async def flood(port: str, how: str, streams: int) -> Counter[str]:
    compression = grpc.Compression.Gzip if how == "gzip" else None
    found: Counter[str] = Counter()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", compression=compression) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")

        async def ask() -> None:
            try:
                await infer(LONG, timeout=120)
                found["OK"] += 1
            except grpc.aio.AioRpcError as error:
                found[error.code().name] += 1

        await asyncio.gather(*(ask() for _ in range(streams)))
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(flood(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
