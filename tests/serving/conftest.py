"""Real model servers in the environments of their images."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.waiting import GUARD_SECONDS, until

from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.images.environment import Environments
from muster.images.folders import put_image
from muster.volumes.folder import FolderStore


@dataclass(frozen=True)
class Server:
    """A server that runs, on loopback."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """Return status and JSON of one answer; a body that is not bytes is sent as JSON."""
        status, _, text = self.exchange(method, path, body, **headers)
        return status, json.loads(text) if text[:1] in (b"{", b"[") else text.decode()

    def exchange(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers by their names in lower case, and body of one answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=GUARD_SECONDS)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return response.status, found, response.read()
        finally:
            connection.close()

    def answers(self, path: str) -> bool:
        try:
            return self.ask("GET", path)[0] == 200
        except (OSError, http.client.HTTPException):
            return False


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the Python of a shipped image's environment, built once."""
    settings = Settings.load()

    def ensure(image: str) -> Path:
        folder = shipped("images") / image
        digest = put_image(FolderStore(tmp_path_factory.mktemp("store")), folder)
        return Environments(settings.cache).ensure(image, folder, digest)

    return ensure


@pytest.fixture(scope="session")
def run_server() -> Callable[..., Any]:
    """Runs a command until the path answers, and ends the command and all that it started."""

    @contextmanager
    def run(
        command: list[str], *, port: int, ready: str, log: Path, code: Path | None = None, **options: Any
    ) -> Iterator[Server]:
        environment = {**os.environ, "PYTHONPATH": str(code or shipped("serving"))}
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, env=environment, stdout=out, stderr=out, start_new_session=True, **options
            )
        server = Server(process, port, log)
        try:
            assert until(lambda: server.answers(ready) or process.poll() is not None), log.read_text()
            assert process.poll() is None, log.read_text()
            yield server
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    return run


@pytest.fixture
def port() -> int:
    return free_port()
