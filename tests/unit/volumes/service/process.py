"""A store service in a process of its own, on a free port of loopback; started and killed at will.

It is forked from a clean process that has imported it, so that a start takes some 10 ms and not the second that its imports
take.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TypeVar

import httpx
from tests import waiting
from tests.forks import forks
from tests.ports import free_port
from tests.waiting import GUARD_SECONDS, eventually

from muster.volumes.service import tokens
from muster.volumes.service.client import ServiceStore
from muster.volumes.service.serve import main

KEY = "k" * 32
DAY_SECONDS = 86_400.0

T = TypeVar("T")

_FORKS = forks("muster.volumes.service.serve")


class Service:
    """One store, its service and the clients of that.

    :param words: more of the service's command. :param fast_seconds: by how much its clock is fast; below 0: slow.
    """

    def __init__(
        self,
        folder: Path,
        *words: str,
        root: Path | None = None,
        claim: Path | None = None,
        fast_seconds: float = 0.0,
    ) -> None:
        self._words, self._fast_seconds = words, fast_seconds
        self.folder, self.root, self.key = folder, root or folder / "store", folder / "key"
        self.claim = claim or self.root  # as pods see it
        self.key.write_text(KEY)
        self.keys = tokens.read_keys(self.key)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: BaseProcess | None = None
        self._clients: list[ServiceStore] = []

    def __enter__(self) -> Service:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()
        self.kill()

    def start(self) -> None:
        """Start it and return when it answers."""
        arguments = ["--store", str(self.root), "--key", str(self.key), "--port", str(self.port)]
        arguments += self._words
        self.process = _FORKS.Process(target=_serve, args=(arguments, self._fast_seconds))
        self.process.start()
        eventually(lambda: self.answers() or not self.process.is_alive())
        assert self.process.is_alive()

    def answers(self) -> bool:
        """Whether it is there."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """End it as a lost node would."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process.close()
            self.process = None

    def client(
        self,
        name: str = "cache",
        *,
        token: str | None = None,
        patience_seconds: float = 20,
        kind: type[ServiceStore] = ServiceStore,
    ) -> ServiceStore:
        """A client with a cache of its own and an operator's token."""
        made = kind(
            self.url,
            token=token or self.token(),
            cache=self.folder / name,
            patience_seconds=patience_seconds,
        )
        self._clients.append(made)
        return made

    def token(self) -> str:
        """An operator's."""
        return tokens.operator_token(self.keys, lifetime_seconds=DAY_SECONDS)

    def asking(self, token: str) -> httpx.Client:
        """Ask with any token."""
        return httpx.Client(
            base_url=self.url,
            headers={"authorization": f"Bearer {token}"},
            trust_env=False,
            verify=False,  # it speaks plain HTTP: to read the machine's certificates takes 40 ms
            timeout=GUARD_SECONDS,
            # Where threads share one and only some are kept, httpcore closes those that were just given to a thread.
            limits=httpx.Limits(max_keepalive_connections=None),
        )


def _serve(arguments: list[str], fast_seconds: float) -> None:
    if fast_seconds:
        right, right_ns = time.time, time.time_ns
        time.time = lambda: right() + fast_seconds
        time.time_ns = lambda: right_ns() + round(fast_seconds * 1e9)
    main(arguments)


def until(look: Callable[[], T], holds: Callable[[T], bool]) -> T:
    """Look until it holds, and return what was seen."""
    seen: list[T] = []

    def held() -> bool:
        seen[:] = [look()]
        return holds(seen[0])

    assert waiting.until(held), seen
    return seen[0]
