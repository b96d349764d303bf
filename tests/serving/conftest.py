"""Real model servers in the environments of their images."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_port
from tests.serving.kinds import fit, python_of
from tests.waiting import GUARD_SECONDS, until

from muster.core.shipped import shipped


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
def python() -> Callable[[str], Path]:
    """Gives the Python of a shipped image's environment, built once."""
    return lambda image: python_of(shipped("images") / image)


@pytest.fixture(
    scope="session",
    # `make test` shows the second one in test_in_a_pod.py, and on a cluster in the contract of deployments
    params=["serve", pytest.param("kserve", marks=pytest.mark.nightly)],
)
def command(request: pytest.FixtureRequest, python: Callable[[str], Path]) -> list[str]:
    """The beginning of a server's command: muster's own, and the same within KServe's SDK."""
    return server_command(python(request.param), request.param)


def server_command(python: Path, server: str = "serve") -> list[str]:
    """Return the beginning of a server's command."""
    return [str(python), "-P", "-m", "muster_serving", f"--server={server}"]


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions that were written in the image ``tables``, where muster is what a job has of it."""
    folder = tmp_path_factory.mktemp("fitted")
    fit(folder)
    return folder


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


class Front:
    """A server with revisions by name, each asked past the shares."""

    def __init__(self, server: Server, line: Any, python: Path) -> None:
        self.server = server
        self._line = line
        self._python = python

    def load(self, revision: str, folder: Path, **setup: Any) -> str:
        """Load a version in workers; return what is wrong with it."""
        told = {"python": str(self._python), "memory_gib": 1.0, **setup}
        self._say("load", revision=revision, folder=str(folder), setup=told)
        while "told" in (answer := self.hear()):
            continue
        return str(answer.get("error", ""))

    def unload(self, revision: str) -> None:
        self._say("unload", revision=revision)
        while "told" in self.hear():
            continue

    def share(self, revision: str, *, port: int | None = None) -> None:
        """Give a revision all traffic; :param port: where it is, if not in this process."""
        self._say("share", shares={revision: 100}, ports={revision: port} if port else {})
        while "told" in (answer := self.hear()):
            continue
        assert "error" not in answer, answer

    def finish(self, seconds: float) -> None:
        """Have requests under way given so long at the server's end."""
        self._say("finish", seconds=seconds)
        assert "error" not in self.hear()

    def waiting(self) -> int:
        """Return how many clients are connected to the server."""
        mine = f":{self.server.port:04X} "
        lines = Path("/proc/net/tcp").read_text().splitlines()
        return sum(mine in line[:25] and line.split()[3] == "01" for line in lines)

    def hear(self) -> dict[str, Any]:
        """Return the next line of the server's."""
        line: dict[str, Any] = json.loads(self._line.readline())
        return line

    def ask(self, revision: str, *values: Any, name: str = "x") -> tuple[int, Any]:
        """Return the status, and the answer's columns or its error."""
        path = f"/v1/models/line/versions/{revision}:predict"
        status, answer = self.server.ask("POST", path, {"inputs": {name: list(values)}})
        return status, answer["outputs"] if status == 200 else answer["error"]

    def _say(self, action: str, **fields: Any) -> None:
        self._line.write(json.dumps({"id": 1, "do": action, **fields}) + "\n")
        self._line.flush()


@pytest.fixture(scope="module")
def front(command: list[str], run_server: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with run_front(command, run_server, tmp_path_factory.mktemp("front") / "log") as front:
        yield front


@contextmanager
def run_front(command: list[str], run_server: Any, log: Path) -> Iterator[Front]:
    """Run a server, to which the test is the keeper."""
    private = socket.socket()
    private.bind(("127.0.0.1", 0))
    public = socket.socket()
    public.bind(("127.0.0.1", 0))
    ours, theirs = socket.socketpair()
    fds = [public.fileno(), private.fileno(), theirs.fileno()]
    flags = zip(("--public-fd", "--private-fd", "--control-fd"), map(str, fds), strict=True)
    words = [*command, "line", *(word for pair in flags for word in pair)]
    port = private.getsockname()[1]
    running = run_server(words, port=port, ready="/v2/health/live", log=log, pass_fds=fds)
    with ours, ours.makefile("rw") as line, running as server:
        for one in (private, public, theirs):
            one.close()
        yield Front(server, line, Path(command[0]))
