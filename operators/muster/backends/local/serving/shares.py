"""The model servers of one deployment: one for all revisions that may share a process, and one of them accepts clients.

A revision in another one gets its share from the one that accepts (``muster_serving.elsewhere``), so shares are
the same whether two revisions have one image or two. The process that accepts is that of the revision that leads;
when that changes, the next one accepts before the last one stops to, and that one sends its clients on.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Collection, Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from muster.backends.local.serving.door import Door, listens
from muster.backends.local.serving.server import STOP_MARGIN_SECONDS, ModelServer, WorkersState
from muster.backends.local.serving.state import DeploymentState, ServerKey
from muster.core.deployment import LOOPBACK

_DRAIN_SECONDS = 5.0
_UNLOAD_SECONDS = 1.0
_CLOSE_SECONDS = 1.0

_HANGS = "the model server does not answer: another one is brought up beside it"

Process = TypeVar("Process", bound=Hashable)


def in_force(
    shares: Mapping[str, int], *, lead: str | None, up: Collection[str], waiting: Collection[str]
) -> dict[str, int]:
    """Return the shares that can be put in force: what is not up leaves its own to `lead`, or the greatest that is.

    Nothing is put in force where `lead` is not up and is waited for: its clients wait as well, and a revision
    that is being tried is not asked by all.
    """
    found = {name: percent for name, percent in shares.items() if percent and name in up}
    if not found or (lead in waiting and lead not in up):
        return {}
    taker = lead if lead in found else max(found, key=lambda name: found[name])
    assert taker is not None
    found[taker] += sum(shares.values()) - sum(found.values())
    return found


def front(
    shares: Mapping[str, int], processes: Mapping[str, Process], *, lead: str | None, now: Process | None
) -> Process:
    """Return which process accepts clients: that of `lead`, else of the greatest share; in a tie the one that does now.

    :param shares: those in force, one or more.
    :param processes: in which one each revision is.
    """
    return processes[max(shares, key=lambda name: (name == lead, shares[name], processes[name] == now))]


class ModelServers:
    """The servers that run.

    :param folder: the deployment's.
    :param door: the public socket.
    :param mailbox: where the servers of the last keeper send their lines. :param post: their end of it.
    :param leash: none of them outlives who holds its other end.
    :ivar grpc_door: that of gRPC; None where no revision ever asked for it.
    :ivar restless: whether something is due soon of which no file tells.
    """

    def __init__(
        self, folder: Path, door: Door, *, mailbox: socket.socket, post: int = -1, leash: int = -1
    ) -> None:
        self._folder = folder
        self._door = door
        self._mailbox = mailbox
        self._post, self._leash = post, leash
        self.restless = False
        self.grpc_door: Door | None = None
        self.running: dict[ServerKey, ModelServer] = {}
        self.hung: list[ModelServer] = []
        self._leaving: list[tuple[float, ModelServer]] = []
        self._front: ModelServer | None = None
        self._past: dict[str, float] = {}
        self._asked_gib: dict[str, float] = {}
        self._admission: Mapping[str, Any] = {}

    def up(self) -> dict[str, ModelServer]:
        """Which server holds each revision that is loaded."""
        return {name: server for server in self.running.values() for name in server.loaded}

    def server(self, name: str, python: Path, *, key: ServerKey) -> ModelServer:
        """Return the server of this key, started if there is none.

        :param name: the deployment's.
        :raises DeploymentError: it cannot be started, or another program has the port.
        """
        if key not in self.running:
            *_, answers_grpc = key
            door = self.grpc_door if answers_grpc else None
            server = self.running[key] = ModelServer.started(
                name,
                python,
                self._folder,
                key=key,
                public=self._door.bound(),
                grpc=door.bound() if door else None,
                post=self._post,
                leash=self._leash,
            )
            server.admit(self._admission)
        return self.running[key]

    def adopt(self, ports: Collection[int] = ()) -> bool:
        """Take charge of the servers of the last keeper that have sent their lines; whether others are about to.

        :param ports: the private ones of those that there were.
        """
        for server in ModelServer.arrived(self._mailbox, self._folder):
            if server.key in self.running:  # it came too late: another has its place
                server.accept(False)
                self._leaving.append((time.monotonic(), server))
            else:
                self.running[server.key] = server
                server.admit(self._admission)
        there = {server.port for server in self.running.values()}
        return any(listens(LOOPBACK, port) for port in set(ports) - there)

    def admit(self, admission: Mapping[str, Any]) -> None:
        """Have requests let in by these rules from now on, also by servers that are on their way out."""
        self._admission = admission
        for server in (*self.running.values(), *self.hung, *(server for _, server in self._leaving)):
            server.admit(admission)

    def lost(self) -> list[tuple[set[str], str]]:
        """Look after the servers, and return the revisions that were lost with one, and why."""
        self.adopt()
        now = time.monotonic()
        self._leaving = [(due, server) for due, server in self._leaving if not server.leave(since=now - due)]
        for _, server in self._leaving:
            server.listen()
        found = []
        for key, server in list(self.running.items()):
            server.listen()
            if not server.alive():
                found.append((server.loaded, f"restarting: {server.ended()}"))
                server.close()
            elif server.given_up or (server.loaded and not server.answers()):
                found.append((server.loaded, _HANGS))
                server.given_up = True
                self.hung.append(server)
            else:
                continue
            del self.running[key]
            self._front = None if self._front is server else self._front
        return found

    def news(self) -> list[WorkersState]:
        """Return what the servers said of their revisions' workers since the last time."""
        return [told for server in self.running.values() for told in server.news()]

    def limit_memory(self, state: DeploymentState) -> None:
        """Let each process have what all of its revisions ask for, also one that is over until it is unloaded."""
        asked = {name: spec.resources.memory_gib for name, spec in state.specs.items()}
        self._asked_gib |= asked
        for key, server in self.running.items():
            names = {name for name in asked if state.server_key(name) == key} | server.holding
            if names:
                server.limit_memory(sum(self._asked_gib[name] for name in names))

    def direct(self, state: DeploymentState, *, waiting: Collection[str]) -> None:
        """Put the shares in force that can be, and see who accepts clients. Who is quiet is asked nothing for now.

        :param waiting: the revisions that are about to come up.
        :raises DeploymentError: another program has the port.
        """
        up = self.up()
        heard = [name for name, server in up.items() if not server.quiet]
        shares = in_force(state.shares, lead=state.lead, up=heard, waiting=waiting)
        if not shares:
            return
        self._door.open()
        ports = {name: server.port for name, server in up.items()}
        holding = set(up.values())
        for server in holding | {server for _, server in self._leaving}:
            server.finish(state.finish_seconds)  # before it is asked: it may pass on to another's
            server.route(shares, ports)
        if not all(server.settled for server in holding):
            return
        self._front = front(shares, up, lead=state.lead, now=self._front)
        self._front.accept(True)
        if self._front.settled:
            for server in holding - {self._front}:
                server.accept(False)
        if self.grpc_door and self._front.answers_grpc:
            self.grpc_door.open()
        elif self.grpc_door and all(server.settled for server in holding):
            self.grpc_door.refuse()

    def clear(self, state: DeploymentState) -> None:
        """Unload what is over, and let servers go that nothing needs: what they were asked they answer."""
        live = {one.name for one in state.live}
        wanted = {state.server_key(name) for name in state.specs}
        now, past = time.monotonic(), set()
        for key, server in list(self.running.items()):
            if key not in wanted and (server is not self._front or not live):
                server.accept(False)
                self._leaving.append((now + _DRAIN_SECONDS, server))
                del self.running[key]
                continue
            past |= server.loaded - live
            for name in server.loaded - live:
                if server.settled and now - self._past.setdefault(name, now) > _UNLOAD_SECONDS:
                    server.unload(name)
        self._relieve(state, now)
        self.restless = bool(past or self.hung or self._leaving)

    def _relieve(self, state: DeploymentState, now: float) -> None:
        """Let those that hang go, when what they held is up elsewhere or over."""
        up = self.up()
        missed = {one.name for one in state.live if one.percent and one.name not in up}
        self._leaving += [(now, server) for server in self.hung if not server.loaded & missed]
        self.hung = [server for server in self.hung if server.loaded & missed]

    def wait(self, seconds: float, others: Iterable[int] = ()) -> None:
        """Return when a server has ended or answered, one of the last keeper's is there, or the time is over.

        :param others: open files that end the wait, too, when they are readable.
        """
        watched = [each for server in self.running.values() for each in server.watched]
        select.select([*watched, self._mailbox, *others], [], [], seconds)

    def refuse(self) -> None:
        """Have clients refused, also those that wait."""
        for door in filter(None, (self._door, self.grpc_door)):
            door.refuse()

    def stop(self) -> None:
        """Let all finish the requests that are there, and end them."""
        self.adopt()
        servers = [*(server for _, server in self._leaving), *self.hung, *self.running.values()]
        for server in servers:
            server.accept(False)  # before the doors are shut, which they would take for a fault
        deadline = time.monotonic() + _CLOSE_SECONDS
        while time.monotonic() < deadline and any(one.alive() and not one.settled for one in servers):
            self.wait(_CLOSE_SECONDS / 10)
            for server in servers:
                server.listen()
        self.refuse()
        self.running, self.hung, self._leaving, self._front = {}, [], [], None
        alive = [server for server in servers if not server.leave(since=0)]
        longest = max((server.finish_seconds for server in alive), default=0.0)
        # One for all: a retirement takes no longer.
        deadline = time.monotonic() + longest + STOP_MARGIN_SECONDS
        for server in alive:
            server.stop(deadline=deadline)
