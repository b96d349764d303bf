"""``muster jobs``: list jobs, show their logs, cancel them, and delete the files that ended ones still keep."""

from __future__ import annotations

import time
from collections.abc import Iterator
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from muster.cli.command import Json, example, group, open_backend, open_place, open_store, person, room_of
from muster.cli.screen import Table, complain, digest, emit, fields, note, safe, say, seconds, size, when
from muster.core.cancelling import by_command
from muster.core.errors import Corrupt, NotFound, SpecError
from muster.core.status import JobState, JobStatus
from muster.core.wire import plain

if TYPE_CHECKING:
    from muster.backends.base import Backend
    from muster.backends.capacity import Part
    from muster.core.job import JobSpec
    from muster.core.series import Series
    from muster.volumes.base import Held
    from muster.volumes.protocols import Ledger

_LOOKED_AT = 30

app = group("Jobs: running and ended ones, with their logs and verdicts.")

Which = Annotated[str, typer.Argument(metavar="JOB", help="A job's id, or a unique beginning of it.")]
Newest = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="A job's id, or its beginning; if several jobs of one task match, the newest."
    ),
]
# JobState as the choices of an option: typer shows an Enum's values.
State = Enum("State", {state.name: state.value for state in JobState}, type=str)  # type: ignore[misc]


@app.command(
    "ls", epilog=example("muster jobs ls --state running", "muster jobs ls --json | jq -r '.[0].job_id'")
)
def list_jobs(
    *,
    state: Annotated[State | None, typer.Option(help="Only jobs in this state.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Largest number of jobs.")] = 30,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    backend = open_backend()
    ledger = backend.store.ledger
    chosen = _newest(backend, ledger, state=state and state.value, limit=limit)
    if as_json:
        emit([{**plain(status), "name": spec.name} for status, spec in chosen])
        return
    table = Table(["job", "name", "state", "submitted", ">seconds", "why"])
    for status, spec in chosen:
        table.add(
            status.job_id,
            spec.name,
            status.state.value,
            when(status.submitted),
            seconds(_took(status)),
            _why(status),
        )
    table.show(empty=f"no jobs {state.value}" if state else "no jobs yet")


def _newest(
    backend: Backend, ledger: Ledger, *, state: str | None, limit: int
) -> list[tuple[JobStatus, JobSpec]]:
    """Return the newest jobs in a state, reading no more jobs than needed."""
    chosen: list[JobStatus] = []
    job_ids, step = ledger.jobs()[::-1], limit if state is None else _LOOKED_AT
    for start in range(0, len(job_ids), step):
        if len(chosen) < limit:
            statuses = _readable(backend, job_ids[start : start + step])
            chosen += [status for status in statuses if state in (None, status.state.value)]
    specs = ledger.specs([status.job_id for status in chosen[:limit]])
    return [(status, specs[status.job_id]) for status in chosen[:limit] if status.job_id in specs]


def _readable(backend: Backend, job_ids: list[str]) -> Iterator[JobStatus]:
    """Yield the statuses of jobs in the given order; note those that cannot be read."""
    found = backend.statuses(job_ids)
    for job_id in job_ids:
        if job_id in found:
            yield found[job_id]
        else:
            note(f"{job_id} cannot be read; `muster jobs show {job_id}` says why")


def _took(status: JobStatus) -> float | None:
    if status.started is None:
        return None
    return (status.ended if status.ended is not None else time.time()) - status.started


def _why(status: JobStatus) -> str:
    if status.verdict is not None:
        return status.verdict.line
    return status.reason or (_progress(status) if not status.state.ended else "")


def _progress(status: JobStatus) -> str:
    return " ".join(f"{name}={number}" for name, number in status.progress.items())


@app.command("show", epilog=example("muster jobs show flights-train"))
def show(job: Newest, *, as_json: Json = False) -> None:
    """Show one job: its spec, result and verdict.

    While it runs, also where: its ranks with their pids, or on a cluster its pods with their nodes.
    """
    from muster.cli.curves import drawn

    backend = open_backend()
    job_id = find_newest(backend.store.ledger, job)
    status, spec = backend.status(job_id), backend.store.ledger.spec(job_id)
    parts = () if status.state.ended else open_place().capacity.parts(job_id)
    series = _series(backend.store.ledger, job_id)
    if as_json:
        emit(
            {
                "status": plain(status),
                "spec": plain(spec),
                "parts": [plain(part) for part in parts],
                "series": plain(series),
            }
        )
        return
    say(typer.style(job_id, bold=True))
    fields(chain(_status_fields(status), _tracked(status), map(_where, parts)))
    say()
    fields(_spec_fields(spec))
    if pictures := list(drawn(series)):
        say()
        fields(pictures)
    if status.verdict is not None:
        say()
        for line in status.verdict.render(job_id=job_id).splitlines():
            say(safe(line), style="red")


def _series(ledger: Ledger, job_id: str) -> Series:
    """Return a job's curves; where their file cannot be read, a note says so and there are none."""
    from muster.core.series import Series

    try:
        return ledger.series(job_id)
    except Corrupt as error:
        complain(error)
        return Series()


def _where(part: Part) -> tuple[str, str]:
    return part.name, f"{part.process} on {part.node}" if part.node else part.process


def _status_fields(status: JobStatus) -> Iterator[tuple[str, object]]:
    yield "state", status.state.value
    yield (
        "survived" if status.state is JobState.SUCCEEDED else "reason",
        "" if status.verdict else status.reason,
    )
    yield "progress", _progress(status)
    yield "submitted", when(status.submitted)
    yield "took", seconds(_took(status)) if status.started else None
    yield "restarts", status.restarts or None
    yield "owner", status.owner
    for title, url in status.links.items():
        yield f"link {title}", url
    if status.result is not None:
        for name, versions in status.result.outputs.items():
            yield f"output {name}", ", ".join(versions)
        yield "metrics", " ".join(f"{name}={value:.6g}" for name, value in status.result.metrics.items())


def _tracked(status: JobStatus) -> Iterator[tuple[str, object]]:
    """The run that the job tracked on this machine; one of which it told itself is among its links."""
    from muster.backends.tracking import SHOWN_AT, shown_run
    from muster.core.settings import Settings

    if run := shown_run(Settings.load().home, status.job_id):
        yield "MLflow run", f"{SHOWN_AT}/{run} (while `muster mlflow` runs)"


def _spec_fields(spec: JobSpec) -> Iterator[tuple[str, object]]:
    yield "name", spec.name
    yield "image", f"{spec.image}  {digest(spec.image_digest)}"
    if spec.interpreter:
        yield "interpreter", f"{spec.interpreter.path} ({spec.interpreter}), not the image's lock"
    yield "code", digest(spec.code) if spec.code else None
    for role in spec.roles:
        asked = role.resources
        runs = role.entrypoint or " ".join(role.command or ())
        gpus = f", {asked.gpus} GPUs" if asked.gpus else ""
        replicas = f"{role.least} to {role.replicas}" if role.least < role.replicas else f"{role.replicas}"
        yield (
            f"role {role.name}",
            (
                f"{replicas} x {role.ranks} ranks of {runs}  ({asked.cpus:g} CPUs, {asked.memory_gib:g} GiB{gpus})"
            ),
        )
    for name, source in spec.inputs.items():
        within = f"/{source.path}" if source.path else ""
        yield f"input {name}", ", ".join(f"{version.address}{within}" for version in source.versions)
    for name, value in spec.params.items():
        yield f"param {name}", value
    yield "goes on from", spec.follows
    yield (
        "run",
        " / ".join(part for part in (spec.origin.dag_id, spec.origin.run_id, spec.origin.task_id) if part),
    )


def _find_going_on(ledger: Ledger, text: str) -> str:
    """Return the job whose id is `text` or begins with it; if several do, the only one that has not ended.

    :raises NotFound: no job matches. :raises SpecError: several match; the message names them.
    """
    matches = _matches(ledger, text)
    if len(matches) == 1:
        return matches[0]
    going_on = [status.job_id for status in ledger.statuses(matches) if not status.state.ended]
    return going_on[0] if len(going_on) == 1 else _refuse(text, going_on or matches)


def find_newest(ledger: Ledger, text: str) -> str:
    """Return the job whose id is `text` or begins with it; if several jobs of one task do, the newest, with a note.

    :raises NotFound: no job matches. :raises SpecError: jobs of several tasks match.
    """
    matches = _matches(ledger, text)
    if len(matches) == 1:
        return matches[0]
    specs = ledger.specs(matches).values()
    if len({(spec.name, spec.origin.dag_id, spec.origin.task_id) for spec in specs}) > 1:
        _refuse(text, matches)
    note(f"the newest of {len(matches)} jobs: {matches[-1]}")
    return matches[-1]


def _matches(ledger: Ledger, text: str) -> list[str]:
    """Return the job with that id, or all whose id begins with it, oldest first. :raises NotFound: there is none."""
    known = ledger.jobs()
    if text in known:
        return [text]
    matches = [job_id for job_id in known if text and job_id.startswith(text)]
    if not matches:
        last = f"the newest is {known[-1]}; `muster jobs ls` lists them" if known else "there are no jobs yet"
        raise NotFound(f"no job {text!r:.60}: {last}")
    return matches


def _refuse(text: str, matches: list[str]) -> NoReturn:
    shown = ", ".join(matches[-5:])
    raise SpecError(f"{text!r:.60} is the beginning of {len(matches)} jobs ({shown}): give more of the id")


@app.command(
    "logs", epilog=example("muster jobs logs flights-train -f", "muster jobs logs flights-train --tail 20")
)
def logs(
    job: Newest,
    *,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Print new lines until the job ends; Ctrl-C does not end the job."
        ),
    ] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last N lines.")] = None,
    as_json: Json = False,
) -> None:
    """Print a job's log. With -f, follow it until the job ends."""
    if follow and (as_json or tail is not None):
        raise typer.BadParameter("--follow prints lines as they come: leave out --json and --tail")
    if follow:
        _follow(job)
        return
    ledger = open_store().ledger
    job_id = find_newest(ledger, job)
    lines = ends_of(ledger, job_id, tail)
    if as_json:
        emit({"job_id": job_id, "lines": list(lines)})
        return
    silent = tail != 0
    for line in lines:
        say(safe(line))
        silent = False
    if silent:
        _note_silence(ledger.status(job_id))


def _note_silence(status: JobStatus) -> None:
    note(f"{status.job_id} {'printed nothing' if status.state.ended else 'has printed nothing yet'}")


def _lines(ledger: Ledger, job_id: str) -> Iterator[str]:
    """Yield the log's lines, read in pieces."""
    after = 0
    while True:
        data, end = ledger.read(job_id, after=after)
        if end == after:
            return
        yield from data.decode(errors="replace").splitlines()
        after = end


def ends_of(ledger: Ledger, job_id: str, count: int | None) -> Iterator[str]:
    """Return the last `count` lines of a log, or all of them."""
    from collections import deque

    lines = _lines(ledger, job_id)
    return lines if count is None else iter(deque(lines, maxlen=count))


def _follow(job: str) -> None:
    import asyncio

    backend = open_backend(patient=True)
    job_id = find_newest(backend.store.ledger, job)
    try:
        asyncio.run(_watch(backend, job_id))
    except KeyboardInterrupt:
        note(f"\n{job_id} goes on; `muster jobs cancel {job_id}` ends it")
        raise


async def _watch(backend: Backend, job_id: str) -> None:
    silent = True
    async for event in backend.watch(job_id):
        for line in event.lines:
            say(safe(line))
            silent = False
        if event.status is not None:
            note(f"{job_id}: {event.status.state.value} {safe(event.status.reason)}".rstrip())
    if silent:
        _note_silence(backend.status(job_id))


@app.command("cancel", epilog=example("muster jobs cancel flights-train"))
def cancel(job: Which) -> None:
    """End a job and all its processes.

    A job that has already ended stays as it is.
    """
    backend = open_backend(patient=True)
    job_id = _find_going_on(backend.store.ledger, job)
    before = backend.status(job_id)
    if before.state.ended:
        had = "was" if before.state is JobState.CANCELLED else "had"
        note(f"{job_id} {had} {before.state.value} already")
        return
    if before.alive:
        note(f"{job_id} is {before.state.value}: its ranks get time to save")
    backend.cancel(job_id, why=by_command(person()))
    say(f"{job_id}: {backend.status(job_id).state.value}")


@app.command("gc", epilog=example("muster jobs gc", "muster jobs gc --yes"))
def gc(
    job: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB]...", help="Ids of jobs; by default all that ended."),
    ] = None,
    *,
    yes: Annotated[bool, typer.Option("--yes/--dry-run", help="Delete, or only show.")] = False,
    as_json: Json = False,
) -> None:
    """Show the files that ended jobs keep; with --yes, delete them.

    A failed job's outputs are deleted at its end, except its checkpoints, from which its next run continues. Complete
    outputs that could not be committed are kept too: `muster jobs get` fetches them.
    """
    store = open_store()
    for job_id in job or ():
        store.ledger.status(job_id)  # raises NotFound if there is none
    found = [held for held in store.held() if not job or held.job_id in job]
    freed = store.let_go([held.job_id for held in found]) if yes and found else 0
    if as_json:
        emit({"done": yes, "freed_bytes": freed, "held": plain(tuple(found))})
        return
    _show_held(found)
    if found and not yes:
        note("nothing was deleted: --yes does it")
    elif yes:
        say(f"freed {size(freed)}")
    room = room_of(store)
    if room is not None:
        note(safe(room))


def _show_held(found: list[Held]) -> None:
    table = Table(["job", "ended", ">checkpoints", ">outputs"])
    for held in found:
        table.add(held.job_id, when(held.ended), size(held.checkpoints_bytes), size(held.outputs_bytes))
    table.show(empty="no ended job keeps any files")


@app.command("get", epilog=example("muster jobs get flights-train-0a1b2c-1 written"))
def get(
    job: Annotated[
        str, typer.Argument(metavar="JOB", help="The job's id, from its verdict, or its beginning.")
    ],
    target: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="Target folder; by default a new one named after the job."),
    ] = None,
) -> None:
    """Fetch a job's outputs that could not be committed.

    The target has a folder for each replica, and in it one for each output.
    """
    store = open_store()
    job = find_newest(store.ledger, job)
    folder = target or Path(job)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise SpecError(f"{safe(folder)} already exists: name a new or an empty folder")
    count = store.salvage(job, folder)
    say(f"{count} file{'s' * (count != 1)} in {safe(folder)}")
