"""A second store service, which passes requests on to the one that holds the store's lock.

So both are ready for a cluster, which may send a request to either and stop either. The second one listens
on the port that it will serve on, and serves as soon as it has the lock. The lock file holds the address of
the first and the term that it serves (:func:`announce`). The second one answers the probe of its own health
itself: otherwise an upgrade would wait for it, while it waits for the one before it, which may be of a release
that announces no address.

A file system that does not share locks between nodes would let both serve. Two checks prevent that: a service that has
taken the lock asks the announced address whether that term is still served (:func:`still_served`), and the one that
serves ends when the lock file holds the term of another (:func:`end_when_replaced`).
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import logging
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from muster.core.keepalive import CONNECT_SECONDS, keep_alive
from muster.core.locks import take
from muster.volumes.service.clients import HEAD_SECONDS, most_connections

ALIVE = "/livez"  # of this process alone; all other requests are passed on
TERM = "/term"  # the term of the process that serves
_ALIVE = f"GET {ALIVE} ".encode()
_CHUNK_BYTES = 64 << 10
_LONGEST_ANNOUNCEMENT_BYTES = 300
_EARLIER_BYTES = 200  # which a release without terms reads as the address, blanks at its end included
_LOOK_SECONDS = 1.0

_LOG = logging.getLogger(__name__)


def announce(lock: int, address: str, term: str) -> None:
    """Write this process's address, ``HOST:PORT``, and its term into the lock file, which it holds."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{address:<{_EARLIER_BYTES}}\n{term}\n".encode(), 0)


def still_served(lock: int, *, own: str) -> str | None:
    """Return the announced address if the term of the lock file, which this process holds, is still served there.

    :param own: this process's address: a service that was there before has ended.
    """
    address, term = _announced(lock)
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not term or address == own:
        return None
    connection = http.client.HTTPConnection(host, int(port), timeout=CONNECT_SECONDS)
    try:
        connection.request("GET", TERM)
        served = connection.getresponse().read(_LONGEST_ANNOUNCEMENT_BYTES).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return address if served.strip() == term else None


def end_when_replaced(path: Path, term: str) -> None:
    """Start a thread that ends this process once the lock file holds the term of another service.

    The file is opened for each look: NFS looks for the changes of other nodes when a file is opened.
    """

    def look() -> None:
        pause = threading.Event()
        while not pause.wait(_LOOK_SECONDS):
            try:
                found = path.read_text().split("\n")[1:2]
            except OSError as error:
                _LOG.warning("cannot read %s: %s", path, error)
                continue
            if found and found != [term]:
                _LOG.critical("another store service took over this store: this one ends")
                os._exit(1)

    threading.Thread(target=look, name="term", daemon=True).start()


def stand_by(lock: int, listening: socket.socket) -> None:
    """Pass requests on until this process has the lock, then return."""
    asyncio.run(_stand_by(lock, listening))


async def _stand_by(lock: int, listening: socket.socket) -> None:
    locked, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait() -> None:
        take(lock)
        loop.call_soon_threadsafe(locked.set)

    # A thread in flock can only be ended with its process, and must not keep the process from ending.
    threading.Thread(target=wait, name="lock", daemon=True).start()
    passing: dict[asyncio.Task[None], bool] = {}  # whether anything was sent

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = loop.create_task(_pass_on(lock, reader, writer, heard=lambda: passing.update({task: True})))
        passing[task] = False
        task.add_done_callback(passing.pop)
        if len(passing) > most_connections(files=4):
            next(each for each, heard in passing.items() if not heard).cancel()

    server = await asyncio.start_server(accepted, sock=listening.dup())
    await locked.wait()
    server.close()
    for task in passing:
        task.cancel()
    await asyncio.gather(*passing, return_exceptions=True)


async def _pass_on(
    lock: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, heard: Callable[[], object]
) -> None:
    """Pass one connection's bytes to the service and its answers back; close it where the service is away."""
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(writer.close)
        with contextlib.suppress(OSError, asyncio.TimeoutError, ValueError):
            first = await asyncio.wait_for(reader.read(_CHUNK_BYTES), HEAD_SECONDS)
            heard()
            if first.startswith(_ALIVE):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n")
                await writer.drain()
                return
            host, _, port = _announced(lock)[0].rpartition(":")
            opening = asyncio.open_connection(host, int(port))
            there, back = await asyncio.wait_for(opening, CONNECT_SECONDS)
            stack.callback(back.close)
            keep_alive(back.get_extra_info("socket"), small=False)
            back.write(first)
            await _first_end(_copy(reader, back), _copy(there, writer))


def _announced(lock: int) -> tuple[str, str]:
    """Return address and term of the lock file; empty where nothing is announced."""
    text = os.pread(lock, _LONGEST_ANNOUNCEMENT_BYTES, 0).decode(errors="replace")
    address, _, term = text.partition("\n")
    return address.strip(), term.strip()


async def _first_end(*ways: Coroutine[Any, Any, None]) -> None:
    """Return when one of two directions has ended: the other would wait for ever."""
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
