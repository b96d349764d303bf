"""Many requests at once over kept connections, none retried: what a busy client sees."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

CONNECTIONS = 8
PAUSE_SECONDS = 0.03  # of each user after an answer: users without a pause keep a core busy


@dataclass
class Load:
    """Sends one request over and over from the moment it is entered until it is left.

    :param host: what the requests say they are for.
    :param pause_seconds: 0 for as many requests as there can be.
    :param connections: how many users there are.
    :param seconds: how long each answer took.
    :param answers: how often each answer came: the revision's name, or what went wrong.
    """

    port: int
    path: str
    body: Any
    host: str = "localhost"
    pause_seconds: float = PAUSE_SECONDS
    connections: int = CONNECTIONS
    answers: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    def __enter__(self) -> Load:
        self._stopping = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        self._thread.join()

    @property
    def sent(self) -> int:
        return self.answers.total()

    @property
    def failed(self) -> dict[str, int]:
        return {what: n for what, n in self.answers.items() if not what.startswith("revision ")}

    async def _run(self) -> None:
        await asyncio.gather(*(self._client() for _ in range(self.connections)))

    async def _client(self) -> None:
        data = json.dumps(self.body).encode()
        lines = [f"POST {self.path} HTTP/1.1", f"Host: {self.host}", "Content-Type: application/json"]
        head = "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode()
        connection = None
        while not self._stopping:
            begun = time.perf_counter()
            try:
                if connection is None:
                    connection = await asyncio.open_connection("127.0.0.1", self.port)
                closing, answer = await asyncio.wait_for(self._ask(*connection, head + data), timeout=10)
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                closing, answer = True, type(error).__name__
            self.answers[answer] += 1
            self.seconds.append(time.perf_counter() - begun)
            if closing and connection:
                connection[1].close()
                connection = None
            await asyncio.sleep(self.pause_seconds)
        if connection:
            connection[1].close()

    @staticmethod
    async def _ask(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
    ) -> tuple[bool, str]:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        body = await reader.readexactly(length)
        closing = b"connection: close" in head
        if not head.startswith(b"http/1.1 200"):  # a gateway's own answers are no JSON
            return closing, f"HTTP {head[9:12].decode()}: {body.decode(errors='replace')}"
        return (
            closing,
            f"revision {json.loads(body).get('model_version', '')}",
        )  # V1's answers do not say which


def lost(load: Load) -> str:
    """What users saw but answers: ``0 of 12000`` or ``3 of 12000: 2 HTTP 502, 1 TimeoutError``."""
    kinds = Counter[str]()
    for what, number in load.failed.items():
        kinds[what.partition(":")[0]] += number
    told = ", ".join(f"{number} {what}" for what, number in kinds.most_common())
    return f"{kinds.total()} of {load.sent}" + (f": {told}" if told else "")
