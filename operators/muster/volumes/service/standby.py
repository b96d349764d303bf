"""A second store service: while another one holds the store's lock it passes on to that what it is asked.

So both are ready to a cluster, which may send a request to either and take either away; and who asks the second one is
answered by the first. It listens on the port that it will serve on, and serves as soon as it has the lock. Where the one
that serves is, stands in the lock file (:func:`announce`). That it is alive and ready, the second one says itself: else an
upgrade would wait for it while it waits for the one before it, which may be of a release that announces nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import threading
from collections.abc import Coroutine
from typing import Any

from muster.core.keepalive import CONNECT_SECONDS, keep_alive

ALIVE = "/livez"  # of this process alone; all else is the other one's
_ALIVE = f"GET {ALIVE} ".encode()
_CHUNK_BYTES = 64 << 10
_LONGEST_ADDRESS_BYTES = 200


def announce(lock: int, address: str) -> None:
    """Write into the lock file, which this process holds, where it serves: ``HOST:PORT``."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, address.encode(), 0)


def stand_by(lock: int, listening: socket.socket) -> None:
    """Return when this process has the lock, and pass on what is asked until then."""
    asyncio.run(_stand_by(lock, listening))


async def _stand_by(lock: int, listening: socket.socket) -> None:
    locked, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait() -> None:
        fcntl.flock(lock, fcntl.LOCK_EX)
        loop.call_soon_threadsafe(locked.set)

    # A thread that waits in flock is ended by nothing but the process's end, and must not keep that from coming.
    threading.Thread(target=wait, name="lock", daemon=True).start()
    passing: set[asyncio.Task[None]] = set()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = loop.create_task(_pass_on(lock, reader, writer))
        passing.add(task)
        task.add_done_callback(passing.discard)

    server = await asyncio.start_server(accepted, sock=listening.dup())
    await locked.wait()
    server.close()
    for task in passing:
        task.cancel()
    await asyncio.gather(*passing, return_exceptions=True)


async def _pass_on(lock: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bring the bytes of one connection to the service, and its answers back; end it where that one is away."""
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(writer.close)
        with contextlib.suppress(OSError, asyncio.TimeoutError, ValueError):
            first = await reader.read(_CHUNK_BYTES)
            if first.startswith(_ALIVE):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n")
                await writer.drain()
                return
            host, _, port = os.pread(lock, _LONGEST_ADDRESS_BYTES, 0).decode().rpartition(":")
            opening = asyncio.open_connection(host, int(port))
            there, back = await asyncio.wait_for(opening, CONNECT_SECONDS)
            stack.callback(back.close)
            keep_alive(back.get_extra_info("socket"), small=False)
            back.write(first)
            await _first_end(_copy(reader, back), _copy(there, writer))


async def _first_end(*ways: Coroutine[Any, Any, None]) -> None:
    """Return when one of two ways has ended: the other would wait for what does not come."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
