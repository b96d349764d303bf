"""One model server as its keeper sees it: a process, a line to command it, a private door to ask it.

The server (``serving/muster_serving``) runs in its image's environment and inherits its sockets:
the public one, and one of gRPC where it answers that, on which it answers while it is the one to accept clients; a private one on loopback, on
which its revisions also answer without a share; and its end of the line of commands, which has no name that
another process could open. It outlives its keeper, and sends the next one another line. A keeper never waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from muster.backends.local.serving.process import (
    UNKNOWN,
    Adopted,
    last_line,
    limit_memory,
    log_end,
    start,
)
from muster.backends.local.serving.state import ServerKey
from muster.core.deployment import FINISH_SECONDS, LOOPBACK
from muster.core.errors import DeploymentError
from muster.core.linux import signal_name

STOP_MARGIN_SECONDS = 5.0

_SENT: Mapping[int, str] = {  # from outside: the server's log says nothing of it
    signal.SIGKILL: "another process sent, or the kernel where the machine's memory was used up (`dmesg` tells)",
    signal.SIGTERM: "another process sent",
    signal.SIGINT: "another process sent",
}

PERIOD_SECONDS = 2.0
QUIET_SECONDS = 2.0
HANG_SECONDS = 15.0  # one that is busy answers late, one that hangs never does


@dataclass(frozen=True)
class WorkersState:
    """What a server says of the workers of one of its revisions.

    :param what: what is wrong with them now; empty where nothing is.
    :param ended: whether one has just ended.
    """

    revision: str
    what: str
    ended: bool


Route = tuple[Mapping[str, int], Mapping[str, int]]


class ModelServer:
    """A running model server.

    :ivar loaded: the revisions that it holds.
    :ivar answers_grpc: whether it answers gRPC, while it accepts clients.
    :ivar finish_seconds: how long it gives requests under way at its end.
    :ivar given_up: another one takes its place, though it may still finish what it can.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes] | Adopted,
        line: socket.socket,
        log: Path,
        *,
        key: ServerKey,
        port: int,
        loaded: Collection[str] = (),
    ) -> None:
        """Take charge of a process.

        :param line: to command it. :param log: in which it says why it ends. :param port: on loopback, its private one.
        """
        self.key, self.port = key, port
        self.loaded: set[str] = set(loaded)
        self.answers_grpc = key[-1]
        self._unloading: dict[int, str] = {}
        self._abandoned: dict[int, str] = {}
        self.given_up = False
        self.finish_seconds = FINISH_SECONDS
        self._control = line
        self._control.setblocking(False)
        self._received = b""
        self._unsent = bytearray()
        self._commands = 0
        self._answers: dict[int, str] = {}
        self._orders: set[int] = set()
        self._told: list[WorkersState] = []
        self._route: Route | None = None
        self._accepts: bool | None = None if loaded else False  # None: it is not known
        self._admission: Mapping[str, Any] = {}
        self._memory_gib = 0.0
        self._log = log
        self._log_begins = log_end(log)
        self._process = process
        self.handle = os.pidfd_open(process.pid) if isinstance(process, subprocess.Popen) else process.handle
        self._ping, self._due = 0, 0.0

    @classmethod
    def started(
        cls,
        name: str,
        python: Path,
        folder: Path,
        *,
        key: ServerKey,
        public: socket.socket,
        grpc: socket.socket | None,
        post: int,
        leash: int,
    ) -> ModelServer:
        """Start one. :raises DeploymentError: the process cannot be started.

        :param grpc: the public socket of gRPC; None: it does not answer that.
        :param post: where it sends its line to the next keeper. :param leash: it does not outlive the other end's holders.
        """
        ours, theirs = socket.socketpair()
        with socket.create_server((LOOPBACK, 0)) as private, theirs:
            port = private.getsockname()[1]
            fds = {
                "--public-fd": public.fileno(),
                "--private-fd": private.fileno(),
                "--control-fd": theirs.fileno(),
                "--post-fd": post,
                **({"--grpc-fd": grpc.fileno()} if grpc else {}),
            }
            flags = [word for flag, number in fds.items() for word in (flag, str(number))]
            label = json.dumps({"key": key, "port": port})
            words = ["muster_serving", name, f"--server={key[0]}", *flags, "--label", label]
            log = folder / "server.log"
            try:
                process = start(words, python, log, fds=tuple(fds.values()), leash=leash)
            except DeploymentError:
                ours.close()
                raise
        return cls(process, ours, log, key=key, port=port)

    @classmethod
    def arrived(cls, mailbox: socket.socket, folder: Path) -> Iterator[ModelServer]:
        """Yield those that an earlier keeper left, as they have sent their lines until now."""
        while True:
            try:
                message, handles, _, _ = socket.recv_fds(mailbox, 1 << 16, 2)
            except BlockingIOError:
                return
            said = json.loads(message)
            process, line = Adopted(handles[1], said["pid"]), socket.socket(fileno=handles[0])
            key, port, loaded = tuple(said["key"]), said["port"], said["loaded"]
            yield cls(process, line, folder / "server.log", key=key, port=port, loaded=loaded)

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    @property
    def watched(self) -> list[int | socket.socket]:
        """Readable when it has ended, or has answered something."""
        return [self.handle, self._control]

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def answers(self) -> bool:
        """Whether it answers, as far as was heard until now; never waits. To be asked every now and then, after :meth:`listen`."""
        now = time.monotonic()
        if self._answers.pop(self._ping, None) is not None:
            self._ping, self._due = 0, now + PERIOD_SECONDS
        elif not self._ping and now >= self._due:
            self._ping, self._due = self._command("ping"), now + HANG_SECONDS
        return not self._ping or now < self._due

    @property
    def quiet(self) -> bool:
        """Whether an answer is due for ``QUIET_SECONDS``: it may hang, and only who has to should wait for it."""
        return self._ping > 0 and time.monotonic() > self._due - HANG_SECONDS + QUIET_SECONDS

    def limit_memory(self, memory_gib: float) -> None:
        """Let the process have so much and no more: what does not fit is refused, the rest goes on."""
        if memory_gib != self._memory_gib and self.alive():
            self._memory_gib = memory_gib
            limit_memory(self.pid, memory_gib)

    def load(
        self, revision: str, path: Path, *, deadline: float, order: Mapping[str, Any] = MappingProxyType({})
    ) -> Iterator[None]:
        """Load a version beside the others; yield until it is there.

        :param order: what else the command says, such as how its workers run (:mod:`muster_serving.control`).
        :raises DeploymentError: the server refuses it, died of it, or is not done in time.
        """
        number = self._command("load", revision=revision, folder=str(path), **order)
        try:
            while number not in self._answers:
                if self.given_up or not self.alive():
                    raise DeploymentError(f"load revision {revision}: {self.ended()}")
                if time.monotonic() > deadline:
                    self.given_up = not self.loaded  # it may never have come up
                    raise DeploymentError(f"load revision {revision}: no answer in time")
                yield
                self.listen()
        except (DeploymentError, GeneratorExit):
            self._abandoned[number] = revision  # it may be loaded yet, and is to be forgotten then
            raise
        error = self._answers.pop(number)
        if error:
            raise DeploymentError(error)
        self.loaded.add(revision)

    def unload(self, revision: str) -> None:
        """Have a revision forgotten that has no share."""
        self.loaded.discard(revision)
        self._unloading[self._order("unload", revision=revision)] = revision

    def route(self, shares: Mapping[str, int], ports: Mapping[str, int]) -> None:
        """Have the traffic shared out so, from now on.

        :param ports: of the revisions that are in other servers.
        """
        ports = {name: ports[name] for name in shares if name not in self.loaded}
        if self._route != (shares, ports):
            self._route = (dict(shares), ports)
            self._order("share", shares=self._route[0], ports=ports)

    def admit(self, admission: Mapping[str, Any]) -> None:
        """Have requests let in by these rules, ``muster_serving.clients``', before all that is commanded later."""
        if self._admission != admission:
            self._admission = admission
            self._order("admit", **admission)

    def finish(self, seconds: float) -> None:
        """Have requests under way given so long at its end, where that is longer than before."""
        if seconds > self.finish_seconds:
            self.finish_seconds = seconds
            self._order("finish", seconds=seconds)

    def accept(self, accepts: bool) -> None:
        """Have users accepted from now on, or no more: each that is there is sent elsewhere with its next answer."""
        if self._accepts != accepts:
            self._accepts = accepts
            self._order("open" if accepts else "drain")

    @property
    def settled(self) -> bool:
        """Whether it has done all that it was told."""
        return not self._orders

    @property
    def holding(self) -> set[str]:
        """The revisions whose memory it has, or may have: those, too, whose loading is not awaited any more."""
        return self.loaded.union(self._unloading.values(), self._abandoned.values())

    def listen(self) -> list[str]:
        """Take the answers that have come, and return what it could not do of what it was ordered."""
        self._send()
        try:
            while data := self._control.recv(1 << 16):
                self._received += data
        except (BlockingIOError, ConnectionResetError):
            pass
        *lines, self._received = self._received.split(b"\n")
        for answer in map(json.loads, lines):
            if "told" in answer:
                self._told.append(WorkersState(answer["revision"], answer["told"], answer["ended"]))
                continue
            self._answers[answer["id"]] = answer.get("error", "")
        self._forget_abandoned()
        done = self._orders & self._answers.keys()
        self._orders -= done
        failed = {number: error for number in done if (error := self._answers.pop(number))}
        gone = {number: name for number in done if (name := self._unloading.pop(number, ""))}
        self.loaded |= {name for number, name in gone.items() if number in failed}
        if failed:
            self._route, self._admission = None, {}  # to be told again
        return list(failed.values())

    def news(self) -> list[WorkersState]:
        """Return what it said of its revisions' workers since the last time."""
        told, self._told = self._told, []
        return told

    def _forget_abandoned(self) -> None:
        for number in self._abandoned.keys() & self._answers.keys():
            revision = self._abandoned.pop(number)
            if not self._answers.pop(number) and revision not in self.loaded:
                self.unload(revision)

    def ended(self) -> str:
        """Say how the process ended; where it ended by itself, with the last line that it left in its log."""
        code = self._process.poll()
        if code is None:
            return "the model server does not answer"
        if -code in _SENT:
            return f"the model server was ended by {signal_name(-code)}, which {_SENT[-code]}"
        how = f"was ended by {signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        how = "ended" if code == UNKNOWN else how
        last = last_line(self._log, after=self._log_begins)
        return f"the model server {how}" + (f": {last}" if last else "")

    def leave(self, *, since: float) -> bool:
        """See that it ends without waiting for it; whether it has.

        :param since: seconds since it is not needed any more; below 0 it still is.
        """
        if not self.alive():
            self.close()
            return True
        if since > self.finish_seconds + STOP_MARGIN_SECONDS:
            self._process.kill()
        elif since >= 0:
            self._process.terminate()
        return False

    def stop(self, *, deadline: float) -> None:
        """Return when it has finished the requests that are there, and end it for certain then.

        :param deadline: of the monotonic clock; it was told to :meth:`leave` before.
        """
        try:
            self._process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.close()

    def close(self) -> None:
        """Give back what belongs to a process that has ended."""
        self._control.close()
        os.close(self.handle)

    def _order(self, action: str, **fields: Any) -> int:
        number = self._command(action, **fields)
        self._orders.add(number)
        return number

    def _command(self, action: str, **fields: Any) -> int:
        """Send a command; one that cannot be sent is never answered, as of a server that dies just then."""
        self._commands += 1
        self._unsent += json.dumps({"id": self._commands, "do": action, **fields}).encode() + b"\n"
        self._send()
        return self._commands

    def _send(self) -> None:
        """Send what the line takes now: the tokens of many clients are more than it holds at once."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, BlockingIOError):
            while self._unsent:
                del self._unsent[: self._control.send(self._unsent)]
