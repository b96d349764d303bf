"""One model server as its keeper sees it: a child process, a line to command it, a private door to ask it.

The server (``serving/muster_serving``) runs in its image's environment and inherits three sockets:
the public one, on which it answers from the first promotion on; a private one on loopback, on which
revisions also answer before they serve; and its end of the line of commands, which has no name that
anybody else could open. It dies with its keeper.
"""

from __future__ import annotations

import http.client
import json
import os
import resource
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.backends.local.deployment_pulse import Pulse
from muster.backends.local.deployment_smoke import check_answer, infer_request
from muster.backends.local.spawn import die_with
from muster.backends.local.variables import NO_TELEMETRY
from muster.core.address import Address
from muster.core.deployment import DeploymentSpec, SmokeRequest
from muster.core.errors import DeploymentError
from muster.core.job import Pinned
from muster.core.shipped import shipped

STOP_SECONDS = 35.0  # the server gives requests 30 to finish
_LOG_BYTES = 16 << 20
_GIB = 1 << 30
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH")

Idle = Callable[[], None]


class ModelServer:
    """A running model server. Not yet answering anybody until something is promoted."""

    def __init__(self, spec: DeploymentSpec, python: Path, folder: Path, public: socket.socket) -> None:
        """Start it. :raises DeploymentError: the process cannot be started."""
        self.spec = spec
        self.serving = ""
        self._loaded: dict[str, Pinned] = {}
        private = socket.create_server(("127.0.0.1", 0))
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        self._received = b""
        self._commands = 0
        fds = {
            "--public-fd": public.fileno(),
            "--private-fd": private.fileno(),
            "--control-fd": theirs.fileno(),
        }
        words = [word for flag, number in fds.items() for word in (flag, str(number))]
        command = [*_python(python), "-m", "muster_serving", spec.name, *words]
        self._log = folder / "server.log"
        with private, theirs:
            self._process = _start(command, self._log, fds=tuple(fds.values()))
            self._private_port: int = private.getsockname()[1]
        self._pidfd = os.pidfd_open(self._process.pid)
        self._pulse = Pulse(self._private_port)
        self.limit_memory(spec.resources.memory_gib)

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def answers(self) -> bool:
        """Whether it answers, as far as was seen until now; never waits. To be asked every now and then."""
        return self._pulse.beats()

    def wait(self, seconds: float) -> None:
        """Return when the process has ended or the time is over."""
        select.select([self._pidfd], [], [], seconds)

    def limit_memory(self, memory_gib: float) -> None:
        """Let the process have so much and no more: what does not fit is refused, the rest goes on."""
        if self.alive():
            _, hard = resource.prlimit(self.pid, resource.RLIMIT_DATA)
            resource.prlimit(self.pid, resource.RLIMIT_DATA, (int(memory_gib * _GIB), hard))

    def load(self, model: Pinned, path: Path, *, deadline: float) -> str:
        """Load a version beside the others and return what it is called here.

        :raises DeploymentError: the server refuses it, died of it, or is not done in time.
        """
        revision = self._free_name(model)
        self._loaded[revision] = model
        self._command("load", revision, deadline=deadline, folder=str(path))
        return revision

    def promote(self, revision: str, *, deadline: float) -> None:
        """Give a loaded revision all traffic. :raises DeploymentError: the server died meanwhile."""
        self._command("promote", revision, deadline=deadline)
        self.serving = revision

    def unload_others(self, kept: str, *, deadline: float) -> None:
        """Forget every revision but one. :raises DeploymentError: the server died meanwhile."""
        for revision in [name for name in self._loaded if name != kept]:
            self._command("unload", revision, deadline=deadline)
            del self._loaded[revision]

    def drain(self, *, deadline: float) -> None:
        """Accept nobody any more and send each client elsewhere with its next answer."""
        self._command("drain", "", deadline=deadline)

    def smoke(self, revision: str, request: SmokeRequest, *, deadline: float) -> None:
        """Send one real request to a loaded revision and check the answer.

        :raises DeploymentError: it is not answered, or not as expected.
        """
        path = f"/v2/models/{self.spec.name}/versions/{revision}"
        metadata = self._ask("GET", path, None, deadline)
        answer = self._ask("POST", f"{path}/infer", infer_request(request, metadata), deadline)
        check_answer(request, answer)

    def ended(self) -> str:
        """Say how the process ended, with the last line of its log."""
        code = self._process.poll()
        if code is None:
            return "the model server does not answer"
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        last = last_line(self._log)
        return f"the model server {how}" + (f": {last}" if last else "")

    def leave(self, *, since: float) -> bool:
        """See that it ends without waiting for it; whether it has.

        :param since: seconds since it is not needed any more; below 0 it still is.
        """
        if not self.alive():
            self.close()
            return True
        if since > STOP_SECONDS:
            self._process.kill()
        elif since >= 0:
            self._process.terminate()
        return False

    def stop(self) -> None:
        """Let it finish the requests that are there, then end it for certain."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.close()

    def close(self) -> None:
        """Give back what belongs to a process that has ended."""
        self._pulse.close()
        self._control.close()
        os.close(self._pidfd)

    def _free_name(self, model: Pinned) -> str:
        """Return a version's number, told apart where another volume's of that number is loaded."""
        number = Address.parse(model.address).value
        taken = self._loaded.get(number, model) != model
        return f"{number}-{model.digest[3:11]}" if taken else number

    def _command(self, action: str, revision: str, *, deadline: float, **more: str) -> None:
        self._commands += 1
        command = {"id": self._commands, "do": action, "revision": revision, **more}
        try:
            self._control.sendall(json.dumps(command).encode() + b"\n")
            answer = self._answer(self._commands, deadline)
        except OSError as error:
            self.wait(1.0)
            raise DeploymentError(f"{action} revision {revision}: {self.ended()}") from error
        if "error" in answer:
            raise DeploymentError(str(answer["error"]))

    def _answer(self, number: int, deadline: float) -> dict[str, Any]:
        """Return the answer to one command; late ones to commands that were given up are skipped."""
        while True:
            line, newline, rest = self._received.partition(b"\n")
            if newline:
                self._received = rest
                answer: dict[str, Any] = json.loads(line)
                if answer["id"] == number:
                    return answer
                continue
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._control], [], [], left)[0]:
                raise TimeoutError("no answer in time")
            data = self._control.recv(1 << 16)
            if not data:
                raise ConnectionResetError("hung up")
            self._received += data

    def _ask(self, method: str, path: str, body: object, deadline: float) -> dict[str, Any]:
        left = max(0.05, deadline - time.monotonic())
        connection = http.client.HTTPConnection("127.0.0.1", self._private_port, timeout=left)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.wait(1.0 if not isinstance(error, TimeoutError) else 0.0)
            raise DeploymentError(f"{method} {path}: {self.ended()}") from error
        finally:
            connection.close()
        if response.status != 200:
            raise DeploymentError(f"HTTP {response.status}: {_error_of(text)}")
        answer: dict[str, Any] = json.loads(text)
        return answer


def try_apart(
    spec: DeploymentSpec, python: Path, model: Path, folder: Path, *, deadline: float, idle: Idle
) -> None:
    """Load a version and ask it the smoke requests in a process of its own, which may crash.

    :param folder: the deployment's, for what the process is given and what it says.
    :raises DeploymentError: it crashes, does not load or does not answer in time.
    """
    asked, log = folder / "trial.json", folder / "trial.log"
    columns = [{name: list(column) for name, column in smoke.inputs.items()} for smoke in spec.smoke]
    try:
        asked.write_text(json.dumps([{"inputs": inputs} for inputs in columns]), encoding="utf-8")
        log.unlink(missing_ok=True)
    except OSError as error:
        raise DeploymentError(f"{asked} cannot be written: {error}") from error
    command = [*_python(python), "-m", "muster_serving.trial", str(model), str(asked)]
    trial = _start(command, log, memory_gib=spec.resources.memory_gib)
    try:
        _await(trial, deadline=deadline, idle=idle)
    finally:
        trial.kill()
        trial.wait()
    if trial.returncode < 0:
        raise DeploymentError(f"loading it ended a process by {signal.Signals(-trial.returncode).name}")
    if trial.returncode:
        raise DeploymentError(last_line(log) or f"a trial load ended with exit code {trial.returncode}")


def last_line(log: Path) -> str:
    """Return the last line of a log that says something."""
    try:
        lines = log.read_bytes()[-4096:].decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def _start(
    command: list[str], log: Path, *, fds: tuple[int, ...] = (), memory_gib: float | None = None
) -> subprocess.Popen[bytes]:
    try:
        with log.open("ab") as out:
            if out.tell() > _LOG_BYTES:
                out.truncate(0)
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=_environment(),
                pass_fds=fds,
                preexec_fn=_dying_with(os.getpid(), memory_gib=memory_gib),
            )
    except OSError as error:
        raise DeploymentError(f"the model server cannot be started: {error}") from error


def _python(python: Path) -> list[str]:
    return [str(python), "-P"]  # the folder it is started in holds no code


def _environment() -> dict[str, str]:
    """Return what a server may know of ours: no setting and no secret of the process that deployed it."""
    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return kept | NO_TELEMETRY | {"PYTHONPATH": str(shipped("serving")), "PYTHONUNBUFFERED": "1"}


def _dying_with(parent: int, *, memory_gib: float | None) -> Callable[[], None]:
    def between_fork_and_exec() -> None:
        die_with(parent)
        if memory_gib is not None:
            limit = int(memory_gib * _GIB)
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    return between_fork_and_exec


def _await(trial: subprocess.Popen[bytes], *, deadline: float, idle: Idle) -> None:
    while True:
        try:
            trial.wait(0.1)
        except subprocess.TimeoutExpired:
            if time.monotonic() > deadline:
                raise DeploymentError("a trial load did not end in time") from None
            idle()
        else:
            return


def _error_of(text: bytes) -> str:
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text[:200].decode(errors="replace")
