"""``muster support-bundle``: one file with what a person needs who helps from afar, without secrets. ``muster jobs exec`` and ``forward``:
a command beside a rank of a job that runs, and its ports; the job's log says who did.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from muster.cli.command import example, open_backend, open_place, person, read_since, room_of
from muster.cli.doctor import all_checks
from muster.cli.foreground import check_port
from muster.cli.jobs import Newest, ends_of, find_newest
from muster.cli.screen import Table, note, safe, say, size
from muster.core.errors import MusterError, NotFound, SpecError
from muster.core.masking import Masking
from muster.core.replica import LOOPBACK
from muster.core.settings import Settings
from muster.core.status import JobState
from muster.core.text import one_line
from muster.core.wire import plain
from muster.ext.support.blanking import blanked, known, without_values

if TYPE_CHECKING:
    from muster.backends.place import Place, RankSession

FILE_BYTES, WHOLE_BYTES = 2 << 20, 50 << 20
_LOG_LINES, _JOBS, _LOGS = 200, 500, 100
_Part: TypeAlias = tuple[str, str, Callable[[], Any]]  # a file, what it is, what collects it
_README = """What muster knows of itself, for a person who helps. Made by `muster support-bundle`; index.txt says what each file is.
Secrets are blanked as ***: values of variables, of settings that sound like a secret, and passwords in addresses. Read it before
you send it: names of Dags, volumes, hosts and people are as they are, and so is what your code printed.
"""


def support_bundle(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Default: muster-support-DATE.tar.gz.")
    ] = None,
    *,
    since: Annotated[str, typer.Option(help="How far back jobs go: 90m, 24h, 7d, or a date.")] = "24h",
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Only jobs of this run.")] = None,
    job: Annotated[str | None, typer.Option(metavar="JOB", help="Only this job, with its log.")] = None,
    deployment: Annotated[str | None, typer.Option(metavar="NAME", help="Only this deployment.")] = None,
) -> None:
    """Collect what helps another person into one file, no secrets.

    It holds the doctor's answers, versions of packages, settings, the state of the store, jobs with their verdicts, the last 200
    lines of failed ones, deployments, and on a cluster muster's objects and events without Secrets: at most 50 MiB. What cannot be
    read is named in it. Look at it before you send it.
    """
    settings, after = Settings.load(), read_since(since, now=time.time())
    place = open_place()
    masking = known(settings, also=place.secrets())
    path = file or Path(time.strftime("muster-support-%Y%m%d-%H%M%S.tar.gz"))
    try:
        path.touch(mode=0o600, exist_ok=False)
    except OSError as error:
        raise SpecError(f"{path} cannot be written ({error.strerror}): name another file") from error
    parts = _parts(settings, place, after=after, run=run, job=job, deployment=deployment)
    try:
        _write(path, parts, masking).show(empty="nothing was collected")
    except BaseException as error:  # Ctrl-C, too: half a bundle is of no use
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise SpecError(f"{path} cannot be written ({error.strerror}): name another file") from error
        raise
    note(f"{path} is written, {size(path.stat().st_size)}: read it before you send it")


def _write(path: Path, parts: Iterable[_Part], masking: Masking) -> Table:
    """Write each part, then the list of them; return it."""
    import tarfile  # slow to import, as are the next ones of this module

    table, index, whole = Table(["file", ">size", "what"]), list[str](), 0
    first: _Part = ("README.txt", "what this is", lambda: _README)
    last: _Part = ("index.txt", "this list", lambda: "\n".join([*index, ""]))
    with tarfile.open(path, "w:gz") as bundle:
        for name, about, collect in chain([first], parts, [last]):
            try:
                text, cut = _text(collect(), masking)
            except Exception as error:  # this command is for a muster that is broken, in whatever way
                text, cut = blanked(f"cannot be read: {type(error).__name__}: {error}\n", masking), 0
            data = text.encode(errors="replace")
            if len(data) > FILE_BYTES:
                data = b"(cut: the end of a longer file)\n" + data[-FILE_BYTES:]
            if whole + len(data) > WHOLE_BYTES:
                data = b"left out: the bundle would be larger than 50 MiB\n"
            whole += len(data)
            entry = tarfile.TarInfo(f"muster-support/{name}")
            entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
            bundle.addfile(entry, io.BytesIO(data))
            about += f"; {cut} items left out, the last of a longer list" if cut else ""
            table.add(name, size(len(data)), about)
            index.append(f"{name:40} {len(data):>10}  {about}")
    return table


def _text(made: Any, masking: Masking) -> tuple[str, int]:
    """Return a text, or JSON that fits into a file, without secrets, and how many items were left out from the ends of its lists."""
    if isinstance(made, str):
        return blanked(made, masking), 0
    document = without_values(plain(made), masking)
    values = document.values() if isinstance(document, dict) else ()
    lists, cut = [each for each in (document, *values) if isinstance(each, list)], 0
    while len(text := json.dumps(document, indent=1, default=str)) > FILE_BYTES and any(lists):
        longest = max(lists, key=len)
        kept = min(len(longest) - 1, len(longest) * FILE_BYTES // len(text))
        cut += len(longest) - kept
        del longest[kept:]
    return text, cut


def _parts(
    settings: Settings,
    place: Place,
    *,
    after: float,
    run: str | None,
    job: str | None,
    deployment: str | None,
) -> Iterator[_Part]:
    """Yield each file's name, what it is, and what collects it."""
    from importlib.metadata import distributions

    yield "doctor.json", "what muster doctor found", lambda: list(all_checks(settings))
    packages = sorted(f"{each.metadata['Name']}=={each.version}" for each in distributions())
    about = "Python, and the version of each package"
    yield "packages.txt", about, lambda: "\n".join([f"Python {sys.version}", sys.platform, *packages, ""])
    yield "settings.json", "where muster's folders are, and its switches", lambda: settings
    own = settings.home / "up" / "own.cfg"
    if own.is_file():
        yield own.name, "settings, as they are written down", partial(own.read_text, encoding="utf-8")
    yield "store.json", "volumes, room, upkeep, and what a quick check found", lambda: _store(place)
    if deployment is None:
        chosen = partial(_chosen, place, after=after, run=run, job=job)
        try:
            ids = chosen()
            failed = [
                each.job_id for each in place.store.ledger.statuses(ids) if each.state is JobState.FAILED
            ]
        except Exception:  # jobs.json says why
            ids = failed = []
        yield "jobs.json", "status, verdict and spec of each job", lambda: _jobs(place, chosen())
        for job_id in ids if job else failed[:_LOGS]:
            yield f"logs/{job_id}.log", f"the last {_LOG_LINES} lines", partial(_log, place, job_id)
    if job is None and run is None:
        names = None if deployment is None else [deployment]
        yield "deployments.json", "revisions, shares and figures", lambda: place.deployments.look_at(names)
    for name, collect in place.evidence():
        yield f"place/{name}", "of the cluster, without values of variables", collect


def _store(place: Place) -> Mapping[str, Any]:
    store = place.store
    return {
        "volumes": {name: store.count(name) for name in store.volumes()},
        "jobs": len(store.ledger.jobs()),
        "room": room_of(store),
        "upkeep": store.upkept(),
        "check": store.check(),
    }


def _chosen(place: Place, *, after: float, run: str | None, job: str | None) -> list[str]:
    """Return the wanted jobs, newest first."""
    ledger = place.store.ledger
    if job is not None:
        return [find_newest(ledger, job)]
    if run is not None:
        return list(ledger.origins(run_id=run))[::-1][:_JOBS]
    found = ledger.statuses(ledger.jobs()[::-1][:_JOBS])
    return [each.job_id for each in found if max(each.submitted, each.ended or 0) >= after]


def _jobs(place: Place, job_ids: list[str]) -> list[Mapping[str, Any]]:
    ledger = place.store.ledger
    specs = ledger.specs(job_ids)
    return [{"status": each, "spec": specs.get(each.job_id)} for each in ledger.statuses(job_ids)]


def _log(place: Place, job_id: str) -> str:
    return "\n".join(ends_of(place.store.ledger, job_id, _LOG_LINES))


def add(groups: Mapping[str, typer.Typer]) -> None:
    """Add the commands of this extension to those of ``muster``."""
    lines = ("muster support-bundle", "muster support-bundle flights.tar.gz --job flights-train")
    groups[""].command("support-bundle", epilog=example(*lines))(support_bundle)
    ran = ("muster jobs exec flights-train -- nvidia-smi", "muster jobs exec flights-train --rank 3 -- bash")
    groups["jobs"].command("exec", epilog=example(*ran))(execute)
    led = ("muster jobs forward flights-train 8265", "muster jobs forward flights-train 8265:9000")
    groups["jobs"].command("forward", epilog=example(*led))(forward)


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
