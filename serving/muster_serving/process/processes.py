"""One worker process as the front sees it: it loads the version, answers one frame after the other, and ends with a reason.

What it prints goes to the server's log under its revision's name, at a limited rate of bytes. A worker that prints more is
slowed down, since its pipe is read slower, and what is left out is counted. So it can neither fill the disk nor keep the front
from answering.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from muster_serving.errors import ModelError
from muster_serving.process.frames import ENDED, READY, REFUSED, FrameReader, Part, write
from muster_serving.process.start import Setup, counted, counter, end_group, how_it_ended, start

CONNECT_SECONDS = 0.05
_LINGER_SECONDS = 1.0
LAST_BYTES = 1 << 18
_BYTES_A_SECOND = 32 << 10
BURST_BYTES = 256 << 10
PIECE_BYTES = 64 << 10
PAUSE_SECONDS = 0.01
_TOLD_SECONDS = 1.0  # after which what was left out is told, if nothing more is printed
LINE_BYTES = 4 << 10


class WorkerProcess(asyncio.Protocol):
    """A worker behind a socket.

    :ivar answered: called with the parts of each frame that answers one.
    :ivar ended: called once, with how it ended, after it was ready.
    :ivar begun: how many frames it had begun when it ended; None while it runs, and where that is not known.
    """

    def __init__(self) -> None:
        self.answered: Callable[[list[Part]], None] = lambda _parts: None
        self.ended: Callable[[str], None] = lambda _how: None
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._over = False
        self._why = ""
        self.begun: int | None = None

    @property
    def gone(self) -> bool:
        """Whether it takes no more frames, though :attr:`ended` may not have been called yet."""
        return self._over or self._transport is None or self._transport.is_closing()

    async def load(self, seconds: float) -> None:
        """Return when it has loaded the version. :raises ModelError: it cannot, and has ended."""
        try:
            async with asyncio.timeout(seconds):
                await self._ready
        except TimeoutError:
            self.kill(f"it was not loaded within {seconds:g} s (load_timeout)")
            raise ModelError(self._why) from None
        except BaseException:  # cancelled, too: no process may be left
            self.kill("it is not needed any more")
            raise

    def send(self, parts: Sequence[tuple[int, bytes]], *, ahead: bool) -> None:  # noqa: ARG002 a child's
        """Send a frame. :param ahead: whether it computes another one first."""
        assert self._transport is not None
        self._transport.write(write(parts))

    def kill(self, why: str) -> None:
        """End it at once, for a reason that :attr:`ended` is told."""
        self._why = self._why or why
        if self._transport:
            self._transport.abort()

    def over(self, how: str) -> None:
        """Tell once how it ended."""
        if self._over:
            return
        self._over = True
        if not self._ready.done():
            self._ready.set_exception(ModelError(self._why or f"loading it: its process {how}"))
            self._ready.exception()  # its load may not be awaited any more
        else:
            self.ended(self._why or how)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport. asyncio calls this."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Take the frames that are whole. asyncio calls this."""
        for parts in self._reader.take(data):
            kind = parts[0][0]
            if kind not in (READY, REFUSED, ENDED):
                self.answered(parts)
            elif kind == READY:
                if not self._ready.done():
                    self._ready.set_result(None)
            elif kind == REFUSED:
                self._why = str(parts[0][1], "utf-8", "replace")
            elif kind == ENDED:
                self.begun = int(bytes(parts[1][1]))
                self.over(str(parts[0][1], "utf-8", "replace"))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 it is told how
        """Tell that it is gone. asyncio calls this."""
        self.over("is gone; the log of its container says more")


class _WorkerOutput:
    """Reads a worker's pipe.

    :param write: takes whole lines, with their ends.
    """

    def __init__(self, pipe: int, prefix: str, write: Callable[[bytes], None]) -> None:
        os.set_blocking(pipe, False)
        self._loop = asyncio.get_running_loop()
        self._pipe = pipe
        self._prefix = prefix.encode()
        self._write = write
        self._rest = self._last = b""
        self._left_out = 0
        self._may = float(BURST_BYTES)
        self._at = self._loop.time()
        self._resume: asyncio.TimerHandle | None = None
        self._tells: asyncio.TimerHandle | None = None
        self._loop.add_reader(pipe, self._read)

    @property
    def last_line(self) -> str:
        """The last line that says something."""
        lines = (self._last + self._rest).decode(errors="replace").splitlines()
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")

    def forget(self) -> None:
        """Have what was said until now count no more as the last line."""
        self._last = b""

    def end(self) -> None:
        """Take what is in the pipe still, and close it."""
        if self._pipe < 0:
            return
        if self._resume:
            self._resume.cancel()
        while self._take():
            pass
        self._put(b"\n" if self._rest else b"")
        self._confess()
        self._close()

    def _read(self) -> None:
        if self._take() and self._may < 0:
            self._loop.remove_reader(self._pipe)
            self._resume = self._loop.call_later(PAUSE_SECONDS, self._go_on)

    def _go_on(self) -> None:
        if self._pipe >= 0:
            self._loop.add_reader(self._pipe, self._read)

    def _take(self) -> bool:
        try:
            data = os.read(self._pipe, PIECE_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._pipe)
            return False
        self._put(data)
        return True

    def _put(self, data: bytes) -> None:
        now = self._loop.time()
        self._may = min(self._may + (now - self._at) * _BYTES_A_SECOND, BURST_BYTES)
        self._at = now
        lines, cut, rest = (self._rest + data).rpartition(b"\n")
        if len(rest) > LINE_BYTES:
            lines, cut, rest = lines + cut + rest, b"\n", b""
        self._rest = rest
        if not cut:
            return
        self._last = lines[-LINE_BYTES:] + cut
        if self._may < 0:
            self._left_out += len(lines)
            self._tells = self._tells or self._loop.call_later(_TOLD_SECONDS, self._confess)
            return
        self._may -= len(lines)
        self._confess()
        self._write(b"".join(self._prefix + line[:LINE_BYTES] + b"\n" for line in lines.split(b"\n")))

    def _confess(self) -> None:
        if self._tells:
            self._tells.cancel()
            self._tells = None
        if self._left_out:
            self._write(self._prefix + b"... %d bytes left out: it prints too much\n" % self._left_out)
            self._left_out = 0

    def _close(self) -> None:
        self._loop.remove_reader(self._pipe)
        os.close(self._pipe)
        self._pipe = -1


class StartedWorker(WorkerProcess):
    """A worker that this process started."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        connection: socket.socket,
        begun: int,
        said: _WorkerOutput,
        gib: float,
    ) -> None:
        super().__init__()
        self._child = child
        self._connection = connection
        self._begun = begun
        self._said = said
        self._gib = gib
        self._handle = os.pidfd_open(child.pid)
        asyncio.get_running_loop().add_reader(self._handle, self._reap)

    def send(self, parts: Sequence[tuple[int, bytes]], *, ahead: bool) -> None:
        """Send a frame; if it is not ahead, what the worker says from now on is about this one."""
        if not ahead:
            self._said.forget()
        super().send(parts, ahead=ahead)

    def kill(self, why: str) -> None:
        """Kill it, and what it forked."""
        super().kill(why)
        end_group(self._child)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 it is told how
        """See that it ends: it is about to, or only hung up. asyncio calls this."""
        asyncio.get_running_loop().call_later(_LINGER_SECONDS, self._end)

    def _end(self) -> None:
        if not self._over:
            end_group(self._child)

    def _reap(self) -> None:
        """Tell how it ended; a process that it forked may hold its socket still."""
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        code = self._child.wait()
        end_group(self._child)
        try:
            while data := self._connection.recv(LAST_BYTES):
                # what it had answered, so that the first frame left is the one it ended in
                self.data_received(data)
        except OSError:  # closed already, or reset, or a process that it forked holds the other end
            pass
        self.begun = counted(self._begun)
        self._said.end()
        if self._transport:
            self._transport.abort()
        how = how_it_ended(code, last_line=self._said.last_line, gib=self._gib)
        self.over(how)


async def begin(folder: Path, setup: Setup, *, revision: str) -> WorkerProcess:
    """Start a worker; it is loading then. :raises ModelError: it cannot be started."""
    try:
        return await (_connect(setup) if setup.socket else _spawn(folder, setup, revision))
    except OSError as error:
        raise ModelError(f"its process cannot be started: {error}") from error


async def _spawn(folder: Path, setup: Setup, revision: str) -> StartedWorker:
    mine, theirs = socket.socketpair()
    out, into = os.pipe()
    begun = counter()
    try:
        child = start(folder, setup, connection=theirs.fileno(), begun=begun, out=into)
    except OSError:
        mine.close()
        os.close(out)
        os.close(begun)
        raise
    finally:
        theirs.close()
        os.close(into)
    said = _WorkerOutput(out, f"{revision} | ", _log)
    loop = asyncio.get_running_loop()
    _, process = await loop.create_connection(
        lambda: StartedWorker(child, mine, begun, said, setup.worker_gib), sock=mine
    )
    return process


async def _connect(setup: Setup) -> WorkerProcess:
    """Have the host in the other container start one; it may be coming up still."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + setup.load_seconds
    while True:
        try:
            _, process = await loop.create_unix_connection(WorkerProcess, setup.socket)
        except (FileNotFoundError, ConnectionRefusedError):
            if loop.time() > deadline:
                raise
            await asyncio.sleep(CONNECT_SECONDS)
        else:
            return process


def _log(lines: bytes) -> None:
    try:
        os.write(sys.stderr.fileno(), lines)
    except OSError:
        return  # the disk may be full, and users are answered all the same
