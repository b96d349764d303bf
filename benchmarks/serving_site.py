"""Model servers for benchmarks: ours, commanded as by its keeper, and those written by hand."""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.serving.grpc_users import CLIENT as GRPC_CLIENT, grpc_message
from tests.serving.load import CONNECTIONS, Load

from muster.backends.local.serving.server import ModelServer
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.images.environment import Environments
from muster.images.folders import find_image, image_folders, put_image
from muster.volumes.folder import FolderStore

NAME = "flights"
DEADLINE_SECONDS = 300
PACE_SECONDS = 0.01  # between two attempts to reach the server
BY_HAND = Path(__file__).with_name("serving_by_hand.py")
JSON = {"Content-Type": "application/json"}
_CPU_CLOCK = 2


@dataclass(frozen=True)
class Running:
    """One running server."""

    pid: int
    port: int

    def measure(self, requests: int) -> tuple[float, float]:
        """Send about this number of requests; return CPU microseconds per request and requests a second."""
        before, began = cpu_seconds(self.pid), time.perf_counter()
        with Load(self.port, f"/v2/models/{NAME}/infer", request(), pause_seconds=0) as load:
            while load.sent < requests:
                time.sleep(PACE_SECONDS)  # the load runs in its own thread
        seconds, cpu = time.perf_counter() - began, cpu_seconds(self.pid) - before
        if load.failed:
            raise SystemExit(f"requests failed: {load.failed}")
        return cpu / load.sent * 1e6, load.sent / seconds


def serve_image(root: Path, name: str = "serve") -> Path:
    """Return the Python of an image; build its environment if needed."""
    settings = Settings.load()
    image = find_image(name, image_folders(settings))
    return Environments(settings.cache).ensure(
        name, image, put_image(FolderStore(root / "store"), image), print
    )


@dataclass(frozen=True)
class RunningGrpc(Running):
    """One that is asked over gRPC, by a client in the environment of the image ``kserve``."""

    python: Path

    def measure(self, requests: int) -> tuple[float, float]:
        """Send about this number of requests; return CPU microseconds per request and requests a second."""
        words = [self.python, "-P", GRPC_CLIENT, self.port, CONNECTIONS, requests]
        asked = grpc_message(request(), name=NAME)
        before, began = cpu_seconds(self.pid), time.perf_counter()
        done = subprocess.run(
            list(map(str, words)), input=json.dumps(asked), capture_output=True, text=True, check=True
        )
        spent, seconds = cpu_seconds(self.pid) - before, time.perf_counter() - began
        answers = json.loads(done.stdout.splitlines()[-1])
        if failed := {what: n for what, n in answers.items() if not what.startswith("revision ")}:
            raise SystemExit(f"requests failed: {failed}")
        return spent / sum(answers.values()) * 1e6, sum(answers.values()) / seconds


class Ours:
    """Our server without a revision, started as by the keeper of a deployment."""

    def __init__(
        self, python: Path, folder: Path, public: socket.socket, *, grpc: socket.socket | None = None
    ) -> None:
        folder.mkdir()
        self._mailbox, post = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # no keeper follows
        leash, self._hand = os.pipe()
        with post, os.fdopen(leash):
            self._server = ModelServer.started(
                NAME,
                python,
                folder,
                key=("serve", "", "", grpc is not None),
                public=public,
                grpc=grpc,
                post=post.fileno(),
                leash=leash,
            )
        self.pid = self._server.pid

    def load(
        self,
        revision: str,
        model: Path,
        setup: Mapping[str, Any] | None = None,
        *,
        log: Mapping[str, Any] | None = None,
    ) -> None:
        """Load a version; return once it is loaded.

        :param setup: how its workers run; None for an ONNX model.
        :param log: the order for the log of its requests; None: it keeps none.
        """
        deadline = time.monotonic() + DEADLINE_SECONDS
        for _ in self._server.load(revision, model, deadline=deadline, order={"setup": setup, "log": log}):
            select.select(self._server.watched, [], [], DEADLINE_SECONDS)

    def open(self) -> None:
        """Open the users' port; return once it is open."""
        self._server.accept(accepts=True)
        self._settle()

    def share(self, shares: Mapping[str, int]) -> None:
        """Set the shares, in percent by revision; return once they are in force."""
        self._server.route(shares, {})
        self._settle()

    def _settle(self) -> None:
        while not self._server.settled:
            select.select(self._server.watched, [], [], DEADLINE_SECONDS)
            if failed := self._server.listen():
                raise SystemExit(f"the server refuses: {failed}")

    def close(self) -> None:
        """End it, and wait for its end."""
        self._server.leave(since=0)
        self._server.stop(deadline=time.monotonic() + DEADLINE_SECONDS)
        self._mailbox.close()
        os.close(self._hand)


@contextmanager
def ours(python: Path, root: Path, *, grpc: socket.socket | None = None) -> Iterator[tuple[Ours, int]]:
    """Run our server while the block runs; yield it and its port. :param grpc: its socket for gRPC, if it answers that."""
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as public:
        server = Ours(python, root, public, grpc=grpc)
        try:
            yield server, public.getsockname()[1]
        finally:
            server.close()


@contextmanager
def by_hand(way: str, python: Path, model: Path, root: Path) -> Iterator[Running]:
    """Run a server of ``serving_by_hand.py`` while the block runs."""
    port = free_port()
    words = [python, "-P", BY_HAND, way, model, port]
    environment = {**os.environ, "PYTHONPATH": str(shipped("serving"))}
    log = root / f"{way}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(list(map(str, words)), env=environment, stdout=out, stderr=out)
    try:
        await_answer(port, lambda: process.poll() is None, log)
        yield Running(process.pid, port)
    finally:
        process.kill()
        process.wait()


def await_answer(port: int, alive: Callable[[], bool], log: Path, body: Any = None) -> None:
    """Wait until the server answers a real request. :raises SystemExit: it ended, or did not answer in time."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("POST", f"/v2/models/{NAME}/infer", json.dumps(body or request()), JSON)
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        except (OSError, http.client.HTTPException):
            pass  # not up yet
        finally:
            connection.close()
        if not alive() or time.monotonic() > deadline:
            raise SystemExit("\n".join(log.read_text().splitlines()[-20:]))
        time.sleep(PACE_SECONDS)  # the interval of attempts, until the deadline above


def request() -> dict[str, Any]:
    """One row of the model of :func:`tests.serving.onnx_graph.write_delays`, as the bytes of an HTTP request."""
    whole = {"carrier": 3, "origin": 1, "dest": 50}
    inputs = [{"name": n, "datatype": "INT64", "shape": [1], "data": [v]} for n, v in whole.items()]
    inputs += [{"name": f"number_{i}", "datatype": "FP32", "shape": [1], "data": [0.1 * i]} for i in range(9)]
    return {"inputs": inputs}


def cpu_seconds(pid: int) -> float:
    """Return a process's user and system time, to the nanosecond: proc(5)'s stat counts hundredths.

    The clock's number is what clock_getcpuclockid(3) returns: the inverted process id, then 2 in three bits.
    """
    return time.clock_gettime(~pid << 3 | _CPU_CLOCK)
