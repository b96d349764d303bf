"""Run in the image ``kserve``: ``PORT gzip|plain|stream CALLS CONNECTIONS`` makes CALLS calls at once, each with a long message and without
a token; prints how often each status came. A stream stays until each of the others has its answer.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from contextlib import AsyncExitStack

import grpc

LONG = b"\x3a\x80\x80\xbc\x07" + bytes(15 << 20)  # field 7, raw contents, of zeros
OWN = (("grpc.use_local_subchannel_pool", 1),)  # a connection of its own


async def flood(port: str, how: str, calls: int, connections: int) -> Counter[str]:
    compression = grpc.Compression.Gzip if how == "gzip" else None
    found: Counter[str] = Counter()
    answered = asyncio.Barrier(calls)

    async def ask(channel: grpc.aio.Channel) -> None:
        try:
            if how == "stream":
                call = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(timeout=120)
                try:
                    await call.write(LONG)
                    await call.read()
                finally:
                    await answered.wait()
                await call.done_writing()
            else:
                await channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(LONG, timeout=120)
            found["OK"] += 1
        except grpc.aio.AioRpcError as error:
            found[error.code().name] += 1

    async with AsyncExitStack() as stack:
        made = [
            grpc.aio.insecure_channel(f"127.0.0.1:{port}", compression=compression, options=OWN)
            for _ in range(connections)
        ]
        for channel in made:
            await stack.enter_async_context(channel)
        await asyncio.gather(*(ask(made[i % connections]) for i in range(calls)))
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(flood(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))))
