"""A store service in a process of its own, on a free port of loopback; started and killed at will.

A clean process imports the service once and is forked for each (forkserver), so that a start takes
some 10 ms and not the second that its imports take.
"""

from __future__ import annotations

import multiprocessing
import socket
import time
from pathlib import Path

import httpx

from muster.volumes.service import tokens
from muster.volumes.service.client import ServiceStore
from muster.volumes.service.serve import main

KEY = "k" * 32
DAY_SECONDS = 86_400.0

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["muster.volumes.service.serve"])


class Service:
    """One store, its service and the clients of that."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.key = folder, folder / "store", folder / "key"
        self.key.write_text(KEY)
        self.keys = tokens.read_keys(self.key)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: multiprocessing.process.BaseProcess | None = None
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
        self.process = _FORKS.Process(target=main, args=(arguments,))
        self.process.start()
        deadline = time.monotonic() + 30
        while not self.answers():
            assert self.process.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.005)

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
        self, name: str = "cache", *, token: str | None = None, patience_seconds: float = 20
    ) -> ServiceStore:
        """A client with a cache of its own and an operator's token."""
        made = ServiceStore(
            self.url,
            token=token or tokens.operator_token(self.keys, lifetime_seconds=DAY_SECONDS),
            cache=self.folder / name,
            patience_seconds=patience_seconds,
        )
        self._clients.append(made)
        return made

    def pod(self, job_id: str, *, attempt: int, lifetime_seconds: float = DAY_SECONDS) -> httpx.Client:
        """What a pod of a job asks with."""
        token = tokens.job_token(self.keys, job_id, attempt=attempt, lifetime_seconds=lifetime_seconds)
        return self.asking(token)

    def asking(self, token: str) -> httpx.Client:
        """Ask with any token."""
        return httpx.Client(
            base_url=self.url, headers={"authorization": f"Bearer {token}"}, trust_env=False, timeout=30
        )
