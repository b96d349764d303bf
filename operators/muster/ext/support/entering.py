"""``muster jobs exec`` and ``forward``: a command beside a rank of a job that runs, and its ports; the job's log says who did."""

from __future__ import annotations

import re
import shlex
import socket
import threading
import time
from contextlib import closing, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.command import open_backend, person
from muster.cli.foreground import check_port
from muster.cli.jobs import Newest, find_newest
from muster.cli.screen import note, safe, say
from muster.core.errors import MusterError, NotFound, SpecError
from muster.core.replica import LOOPBACK
from muster.core.status import JobState
from muster.core.text import one_line

if TYPE_CHECKING:
    from muster.backends.place import RankSession

Words = Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND...", help="The command.")]
Ports = Annotated[str, typer.Argument(metavar="PORT[:LOCAL]", help="A port of the rank, and one here.")]
Rank = Annotated[int, typer.Option(min=0, help="Which rank of the job.")]


def execute(job: Newest, command: Words = None, *, rank: Rank = 0) -> None:
    """Run a command beside a rank of a job that runs.

    On one machine it has the variables and the folder of the rank's process; on a cluster it runs in the rank's container, by your
    own account's rights. Its exit code is passed on, and so is a terminal. The job's log says who ran what: type no secret.
    """
    if not command:
        raise SpecError(f"no command: write it after --, as in `muster jobs exec {job:.60} -- nvidia-smi`")
    raise typer.Exit(_session(job, rank, f"exec: {shlex.join(command)}", command=command).run())


def forward(job: Newest, ports: Ports, *, rank: Rank = 0) -> None:
    """Reach a port of a rank of a job that runs, until Ctrl-C.

    On a cluster 127.0.0.1:LOCAL, by default PORT, leads to the rank's pod, with your own account's rights. On one machine the port
    is there already: its address is printed, and with LOCAL that leads to it too. The job's log says who did.
    """
    found = re.fullmatch(r"(\d{1,5})(?::(\d{1,5}))?", ports)
    port, local = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not found or not (0 < port < 65536 and 0 < local < 65536):
        raise SpecError(f"{ports!r:.40} is no port: expected PORT or PORT:LOCAL, such as 8080:9000")
    there = open_backend().place.here and not found[2]
    if not there:
        check_port(local, option="LOCAL")
    session = _session(job, rank, f"forward: port {port}", port=port)
    if there:
        say(f"{LOOPBACK}:{port}")
        return
    with socket.create_server((LOOPBACK, local)) as listener, suppress(KeyboardInterrupt):
        say(f"{LOOPBACK}:{local} leads to port {port} of rank {rank}, {session.where}; Ctrl-C ends it")
        while True:
            threading.Thread(target=_lead, args=(listener.accept()[0], session), daemon=True).start()


def _session(
    job: str, rank: int, what: str, *, command: list[str] | None = None, port: int = 0
) -> RankSession:
    """Find a rank that runs and that the caller may reach, and write into the job's log what is done there."""
    backend = open_backend()
    store, job_id = backend.store, find_newest(backend.store.ledger, job)
    if (state := backend.status(job_id).state) is not JobState.RUNNING:
        raise SpecError(f"job {job_id} does not run, its state is {state.value}: see `muster jobs ls`")
    spec, staging = store.ledger.spec(job_id), store.staging(job_id)
    spec = spec if staging is None else staging.as_begun(spec)
    if rank >= spec.world_size:
        raise NotFound(f"job {job_id} has no rank {rank}: its ranks are 0 to {spec.world_size - 1}")
    opening = import_module(f"{backend.place.package}.sessions").open_session  # each place has its own
    session: RankSession = opening(backend.place, spec, job_id, rank, command or [], port)
    who = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {person()}"
    line = one_line(f"{who}, rank {rank}, {session.where}, {what}")
    store.ledger.append(job_id, f"[muster] {line}\n".encode())
    return session


def _lead(client: socket.socket, session: RankSession) -> None:
    """Copy both directions of one connection until both have ended."""
    with closing(client):
        try:
            there = session.connect()
        except (OSError, MusterError) as error:
            note(f"{session.where} does not answer: {safe(error)}")
            return
        with closing(there):
            back = threading.Thread(target=_copy, args=(there, client), daemon=True)
            back.start()
            _copy(client, there)
            back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):  # one of the two broke the connection off: the other one is told its end
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
