"""The model server: uvicorn around :class:`~muster_serving.front.Front`, and gRPC beside it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import resource
import signal
import socket
import sys
from argparse import Namespace
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop

from muster_serving.clients import Clients, ClientsFile
from muster_serving.connection import LimitedConnection
from muster_serving.control import Control
from muster_serving.front import App, Front
from muster_serving.process.start import Setup
from muster_serving.request_log import LogOrder
from muster_serving.revisions import Revisions

if TYPE_CHECKING:
    from muster_serving.rpc.listener import GrpcListener

GRACE_SECONDS = 30  # for requests under way at the end; longer where answers in parts may take longer
_SEE_OFF_SECONDS = 0.2
_CUT_SECONDS = 1.0


class HttpListener(uvicorn.Server):
    """One of several uvicorn servers in a process; it handles no signals."""

    def __init__(self, config: uvicorn.Config, front: Front) -> None:
        super().__init__(config)
        self.front = front
        self.answering = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signal handlers as they are."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept, and set the event that says so."""
        await super().startup(sockets)
        self.answering.set()

    async def on_tick(self, counter: int) -> bool:
        """Check the connections once a second; uvicorn calls this ten times a second."""
        if not counter % 10:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                connection.look(now)
        return await super().on_tick(counter)


class DeploymentServer:
    """A model server of one deployment, on sockets that are already open.

    :param public: the users' socket, which answers after :meth:`open`.
    :param grpc: their socket for gRPC, likewise; None: there is none.
    :param file: of the clients' tokens, where no keeper tells of them.
    :param behind: the application of a framework, for the pages that it has itself; None: there is none.
    """

    def __init__(
        self,
        revisions: Revisions,
        clients: Clients,
        *,
        public: socket.socket,
        grpc: socket.socket | None = None,
        file: ClientsFile | None = None,
        behind: App | None = None,
    ) -> None:
        self._revisions = revisions
        self._clients = clients
        self._file = file
        self._behind = behind
        self._public = public
        self._grpc = _grpc(Front(revisions, clients), grpc) if grpc else None
        self._grace = GRACE_SECONDS
        self._answering: HttpListener | None = None
        self._listeners: list[HttpListener] = []
        self._running: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()

    async def open(self) -> None:
        """Answer users from now on. Idempotent, and possible again after :meth:`drain`."""
        if self._answering is None:
            self._answering = await self.listen(self._public.dup(), candidates=False)
        if self._grpc:
            await self._grpc.open()

    def finish(self, seconds: float) -> None:
        """At the end, give requests under way so long, where that is longer than before."""
        self._grace = max(self._grace, math.ceil(seconds))

    def drain(self) -> None:
        """Accept no more users; each connected client gets ``connection: close`` with its next answer. Idempotent."""
        listener, self._answering = self._answering, None
        if self._grpc:
            self._grpc.drain()
        if listener:
            listener.front.draining = True
            for server in listener.servers:
                server.close()
            self._keep(self._see_off(listener))

    async def _see_off(self, listener: HttpListener) -> None:
        """End a listener when its last client has disconnected."""
        while listener.server_state.connections:
            await asyncio.sleep(_SEE_OFF_SECONDS)
        listener.should_exit = True
        self._listeners.remove(listener)

    async def _see_cut_off(self) -> None:
        """Return when the answers that are cut off have said so to their clients."""
        if cut := [task for listener in self._listeners for task in listener.server_state.tasks]:
            await asyncio.wait(cut, timeout=_CUT_SECONDS)

    def _keep(self, running: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(running)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def listen(self, sock: socket.socket, *, candidates: bool) -> HttpListener:
        """Answer on a socket from now on; see :class:`~muster_serving.front.Front` for `candidates`."""
        front = Front(
            self._revisions, self._clients, behind=self._behind, candidates=candidates, file=self._file
        )
        listener = HttpListener(
            uvicorn.Config(
                front,
                http=LimitedConnection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # nothing here reads the client's address
                date_header=False,
                backlog=2048,
            ),
            front,
        )
        self._listeners.append(listener)
        self._keep(listener.serve(sockets=[sock]))
        await listener.answering.wait()
        return listener

    async def run(
        self,
        *,
        private: socket.socket | None,
        control: socket.socket | None,
        post: socket.socket | None,
        label: Mapping[str, Any],
    ) -> None:
        """Serve until SIGTERM or until no keeper is to come; then finish the requests under way."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopped.set)
        if private:
            await self.listen(private, candidates=True)
        if control:
            line = Control(
                self._revisions, self._clients, opened=self.open, drain=self.drain, finish=self.finish
            )
            commands = asyncio.create_task(line.serve(control, post, label))
            commands.add_done_callback(lambda _: self._stopped.set())
        else:
            await self.open()
        following = asyncio.create_task(self._file.follow()) if self._file else None
        await self._stopped.wait()
        if following:
            following.cancel()
        self._public.close()  # else a client that connects now would wait in vain
        for listener in self._listeners:
            listener.config.timeout_graceful_shutdown = self._grace
            listener.should_exit = True
        if self._grpc:
            self._keep(self._grpc.stop(self._grace))
        await asyncio.gather(*self._running)
        await self._see_cut_off()
        await self._revisions.close()


def _grpc(front: Front, sock: socket.socket) -> GrpcListener:
    from muster_serving.rpc.listener import GrpcListener  # only where it is asked for

    return GrpcListener(front, sock)


def serve(arguments: Namespace, framework: Callable[[Revisions], App] | None = None) -> None:
    """Serve a deployment: its model from the start, or the revisions that the keeper loads by the line of commands.

    :param arguments: the command's; a pod has MUSTER_KEY in its environment, too, where muster's own requests come to the
        users' port.
    :param framework: makes the application of a framework around it; None: there is none.
    :raises ModelError: the model cannot be served.
    """
    name, tokens, limits = arguments.name, arguments.tokens, arguments.limits
    key = os.environ.pop("MUSTER_KEY", "")
    setup = Setup.parse(arguments.setup) if arguments.setup else None
    public = arguments.public_fd or _listen(arguments.host, arguments.port)
    grpc = arguments.grpc_fd or (arguments.grpc_port and _listen(arguments.host, arguments.grpc_port))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # 1024, the usual limit, is too low
    gc.freeze()  # what is imported stays: no collection looks through it again

    async def main() -> None:
        revisions = Revisions(name)
        clients = Clients(name, one_port=bool(key), here=arguments.control_fd is not None)
        file = ClientsFile(clients, tokens, key=key, limits=limits) if tokens else None
        if file:
            file.look()
        elif limits:
            clients.order({"needed": False, "limits": limits, "key": key})
        if arguments.model:
            await revisions.load(
                arguments.revision,
                arguments.model,
                model=arguments.version,
                setup=setup,
                log=LogOrder.in_pod(arguments.log) if arguments.log else None,
                counts_inputs=arguments.counts_inputs,
            )
            revisions.share({arguments.revision: 100}, {})
        behind = framework(revisions) if framework else None
        server = DeploymentServer(revisions, clients, public=public, grpc=grpc, file=file, behind=behind)
        if setup and setup.stream:
            server.finish(setup.request_seconds)
        await server.run(
            private=arguments.private_fd,
            control=arguments.control_fd,
            post=arguments.post_fd,
            label=arguments.label,
        )

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=2048)
    except OSError as error:
        sys.exit(f"cannot listen on {host}:{port}: {error.strerror}")
