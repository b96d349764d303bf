"""``muster deployments``: show deployments, and release, roll back, repair and retire by hand."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.cli import boot
from muster.cli.command import Json, example, group, open_deployments, open_place, open_store, person
from muster.cli.screen import Table, complain, digest, emit, fields, note, safe, say, when
from muster.core.address import short
from muster.core.errors import DeploymentError, MusterError, NotFound, SpecError
from muster.core.names import check_label
from muster.core.status import JobState
from muster.core.wire import plain

if TYPE_CHECKING:
    from muster.backends.releases.deployments import Deployments
    from muster.backends.releases.figures import DeploymentSample, Figures
    from muster.core.deployment import DeploymentStatus, Revision
    from muster.core.origin import Origin


WINDOW_SECONDS = 10.0
ANSWER_SECONDS = 60.0
LOOK_SECONDS = 1.0
_ANSWER_LOOK_SECONDS = 0.1
_CLEAR = "\x1b[H\x1b[2J"

app = group("Deployments: named models that answer predictions.")
_tokens = group("Tokens: who may ask a deployment that has tokens=True.")
app.add_typer(_tokens, name="token")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A deployment's name, such as flights.")]
Watch = Annotated[
    bool,
    typer.Option(
        "--watch", help=f"Refresh every second until Ctrl-C; figures of the last {WINDOW_SECONDS:g} s."
    ),
]


@app.command("ls", epilog=example("muster deployments ls", "muster deployments ls --json | jq -r '.[].url'"))
def list_deployments(*, watch: Watch = False, as_json: Json = False) -> None:
    """List deployments: what each serves, and its figures."""
    for found in _looks(open_deployments().look_at, watch=watch):
        if as_json:
            emit([_document(seen) for seen in found])
        else:
            _show_list(found)


def _show_list(found: list[DeploymentSample]) -> None:
    table = Table(
        ["deployment", "state", "serves", "under way", ">requests", ">errors", ">p95", "since", "url"]
    )
    for seen in found:
        status, champion = seen.status, seen.status.champion
        table.add(
            status.name,
            _state(status),
            champion and short(champion.model.address),
            _under_way(status),
            *_figures(seen.total),
            when(champion.since) if champion else None,
            status.url,
        )
    table.show(empty="no deployments yet")
    for seen in found:
        if seen.status.drift:
            note(f"{seen.status.name}: {seen.status.drift}")


@app.command(
    "show", epilog=example("muster deployments show flights", "muster deployments show flights --watch")
)
def show(name: Name, *, watch: Watch = False, as_json: Json = False) -> None:
    """Show one deployment: its revisions, shares and figures."""
    from muster.backends.releases.figures import look

    deployments = open_deployments()
    for (seen,) in _looks(lambda: [look(deployments, name)], watch=watch):
        if as_json:
            emit(_document(seen))
        else:
            _show_one(seen)
    if not (watch or as_json):
        tell_unread(name)


def tell_unread(name: str) -> None:
    """Say how many of the last hours' requests of a deployment are no rows, and where they are."""
    from muster.backends.request_log import unread

    try:
        found = unread(open_store(), name)
    except MusterError as error:  # what was asked for is shown all the same
        note(f"whether there are requests that cannot be read is not known: {error}")
        return
    for address, number in found.items():
        note(
            f"{number:,} requests cannot be read, and are no rows: they lie as they came in _unread of {address}"
        )


def _show_one(seen: DeploymentSample) -> None:
    status = seen.status
    say(typer.style(safe(status.name), bold=True))
    fields(
        [
            ("state", _state(status)),
            ("url", status.url),
            ("grpc", status.grpc),
            ("under way", _release(status)),
            ("reason", status.reason),
            ("not kept", status.paused),
        ]
    )
    say()
    table = Table(
        [
            *("revision", "model", "digest", "state", ">share", ">ready", ">restarts"),
            *(">requests", ">errors", ">p95", "since", "reason"),
        ]
    )
    figures = seen.figures
    for revision in status.revisions:
        table.add(
            revision.name,
            short(revision.model.address),
            digest(revision.model.digest),
            _standing(revision),
            f"{revision.percent} %",
            None if revision.state.over else f"{revision.ready}/{revision.wanted}",
            None if revision.state.over else revision.restarts,
            *_figures(figures.get(revision.name)),
            when(revision.since),
            revision.reason,
        )
    table.show(empty="no revisions")
    for name, counts in (seen.counts or {}).items():
        if counts.dropped:
            note(
                f"{name}: {counts.dropped:,} answered requests are not in its request log; the log of its server says why"
            )
    for name, each in figures.items():
        if each.outside:
            counted = ", ".join(
                f"{safe(column)} in {number:,}" for column, number in sorted(each.outside.items())
            )
            note(
                f"{name}: values outside what its training rows had, of {each.requests:,} requests: {counted}"
            )


@app.command(
    "promote",
    epilog=example("muster deployments promote flights", "muster deployments promote flights r7"),
)
def promote(
    name: Name,
    revision: Annotated[
        str | None,
        typer.Argument(
            metavar="[REVISION]", help="Such as r7 or flights/model@7; by default the one under way."
        ),
    ] = None,
) -> None:
    """Give a revision all traffic at once; no rule is checked.

    The revision that had the traffic is kept for a rollback. The command waits until users get answers, for at most a
    minute.
    """
    from muster.backends.releases.manual import promote as give_everything

    deployments = open_deployments()
    chosen = _chosen(deployments.deployment(name), revision)
    give_everything(deployments, name, chosen.name, by=_by())
    _await_answer(deployments, name, f"{chosen.name} ({short(chosen.model.address)})")
    note(f"{name}: {chosen.name} ({short(chosen.model.address)}) has all of the traffic")
    note(f"back: muster deployments rollback {name}")
    _warn(deployments, chosen.model.address)


@app.command(
    "rollback",
    epilog=example(
        "muster deployments rollback flights",
        "muster deployments rollback flights --reason 'too many alarms'",
    ),
)
def rollback(
    name: Name,
    *,
    reason: Annotated[str, typer.Option(help="One line, recorded with the revision.")] = "",
) -> None:
    """Roll back: traffic moves within two seconds.

    A release under way gives its traffic back to its champion; otherwise the kept revision gets it. If that revision
    does not answer yet, the command waits, for at most a minute.
    """
    from muster.backends.releases.manual import roll_back, to_be_rolled_back

    deployments = open_deployments()
    before = deployments.deployment(name)
    bad = to_be_rolled_back(before).revision
    roll_back(deployments, name, by=_by(), reason=safe(reason), revision=bad, seen=before)
    after = deployments.deployment(name)
    serves = after.champion
    note(f"{name}: {bad} ({_model_of(before, bad)}) is rolled back")
    if serves:
        _await_answer(deployments, name, f"{serves.name} ({short(serves.model.address)})", seen=after)
        note(f"{serves.name} ({short(serves.model.address)}) has {serves.percent} % of the traffic")
        _warn(deployments, serves.model.address)


def _warn(deployments: Deployments, address: str) -> None:
    if warning := deployments.warning(address):
        note(f"warning: {safe(warning)}")


def _await_answer(
    deployments: Deployments, name: str, what: str, *, seen: DeploymentStatus | None = None
) -> None:
    """Wait until users get answers. :raises DeploymentError: they get none for a minute."""
    deadline, told = time.monotonic() + ANSWER_SECONDS, False
    status = seen or deployments.deployment(name)
    while not status.ready:
        why = f": {status.reason}" if status.reason else ""
        if time.monotonic() > deadline:
            raise DeploymentError(
                f"{name}: the traffic goes to {what}, which does not answer yet{why}. `muster deployments show {name} "
                "--watch` shows when it does"
            )
        if not told:
            note(f"{name}: the traffic goes to {what}, which does not answer yet{why}; waiting")
            told = True
        pause(_ANSWER_LOOK_SECONDS)
        status = deployments.deployment(name)


@app.command("repair", epilog=example("muster deployments repair flights", "muster deployments repair --all"))
def repair(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Of the deployment.")] = None,
    *,
    every: Annotated[
        bool, typer.Option("--all", help="Repair every deployment, such as after a reboot.")
    ] = False,
) -> None:
    """Restore a deployment, or all, to muster's last state.

    This restores an edited route, deleted objects of a revision, and on one machine its keeper. The command waits until
    all revisions with traffic answer, for at most three minutes. A release under way goes on.
    """
    if every == (name is not None):
        raise SpecError("name one deployment, or give --all: `muster deployments ls` lists them")
    deployments = open_deployments()
    if name is not None:
        _repair(deployments, name)
        return
    _each(deployments.names(), lambda name: _repair(deployments, name))


def _repair(deployments: Deployments, name: str, *, done: bool = False) -> None:
    """Bring one back, and say what it serves. :param done: whether something was done before."""
    from muster.backends.releases.manual import repair as bring_back

    for line in bring_back(deployments, name):
        note(f"{name}: {safe(line)}")
        done = True
    shares = ", ".join(f"{each} {percent} %" for each, percent in deployments.deployment(name).shares.items())
    note(f"{name}: {'' if done else 'nothing to repair; '}it serves {shares or 'nothing'}")


@app.command("export", epilog=example("muster deployments export > deployments.json"))
def export() -> None:
    """Write down all deployments: revisions, shares and clients.

    `muster deployments import` makes them again. A client's token is in it as its digest, which lets no client in.
    """
    from muster.backends.releases.book import SavedDeployments
    from muster.core.wire import dumps

    deployments = open_deployments()
    say(dumps(SavedDeployments(deployments=tuple(map(deployments.saved, deployments.names())))))


@app.command("import", epilog=example("muster deployments import deployments.json"))
def import_saved(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `muster deployments export` wrote.")],
) -> None:
    """Make deployments again, as they were written down.

    The store must have their versions: restore it first. A deployment that is there is left as it is. The command waits until
    all revisions with traffic answer, for at most three minutes each.
    """
    from muster.backends.releases.book import SavedDeployments
    from muster.core.wire import loads

    try:
        saved = loads(SavedDeployments, file.read_bytes()).deployments
    except (OSError, SpecError) as error:
        raise SpecError(
            f"{file} is not what `muster deployments export` writes, whole: {error}. Nothing was made"
        ) from error
    deployments = open_deployments()

    def make(name: str) -> None:
        deployments.make_again(named[name])
        _repair(deployments, name, done=True)

    named = {each.book.name: each for each in saved}
    _each(named, make)


def _each(names: Iterable[str], act: Callable[[str], None]) -> None:
    """Act on each deployment, also after one with which that fails. The exit code is 1 then."""
    failed = False
    for name in names:
        try:
            act(name)
        except (MusterError, OSError) as error:
            complain(f"{name}: {error}")
            failed = True
    if failed:
        raise typer.Exit(1)


@app.command(
    "keep",
    epilog=example(
        "muster deployments keep",
        "muster deployments keep --pause flights --reason 'ann tries another image'",
        "muster deployments keep --resume flights",
    ),
)
def keep(
    *,
    pause: Annotated[
        str | None, typer.Option(metavar="NAME", help="Leave what others edit of this deployment as it is.")
    ] = None,
    resume: Annotated[str | None, typer.Option(metavar="NAME", help="Keep it again.")] = None,
    reason: Annotated[str, typer.Option(help="One line, with --pause.")] = "",
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Tell at this port, to all, when it last looked; 0: at none."),
    ] = 0,
) -> None:
    """Keep all deployments as muster left them, until Ctrl-C.

    Every five seconds the command looks at all of them, and puts back what was deleted or edited outside muster, as `muster
    deployments repair` does; on one machine it brings up what died. A release under way on a cluster is left alone. On a
    cluster the chart runs it. With --pause it leaves the objects of one deployment to you, and with --resume it keeps them
    again; the deployment serves all the time.
    """
    if pause is not None and resume is not None:
        raise SpecError("give --pause or --resume, not both")
    if reason and pause is None:
        raise SpecError("--reason says why a deployment is paused: give it with --pause NAME")
    name = pause if pause is not None else resume
    if name is not None:
        check_label("deployment", name)
        why = f"paused by {_by()} on {when(time.time())}" + (f": {safe(reason)}" if reason else "")
        open_deployments().pause(name, why if pause else "")
        note(f"{name}: {'what others edit is left as it is' if pause else 'it is kept again'}")
        if pause:
            note(f"end that: muster deployments keep --resume {name}")
        return
    import logging
    import signal
    import threading

    from muster.backends.releases.keeping import ROUND_SECONDS, Keeping

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    kept, over = Keeping(open_place().deployments), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    if port:
        threading.Thread(target=kept.answer(port=port).serve_forever, daemon=True).start()
    note("all deployments are kept   Ctrl-C ends it")
    while not over.is_set():
        kept.look()
        over.wait(ROUND_SECONDS)


app.command(
    "install-service",
    epilog=example(
        "muster deployments install-service",
        "sudo env MUSTER_HOME=$PWD/.muster .venv/bin/muster deployments install-service --system",
    ),
)(boot.install_service)


@app.command("retire", epilog=example("muster deployments retire flights"))
def retire(name: Name) -> None:
    """End a deployment; its model versions stay."""
    deployments = open_deployments()
    known = deployments.names()
    if check_label("deployment", name) not in known:
        there = f"there is {', '.join(known)}" if known else "there are none yet"
        raise NotFound(f"no deployment {name!r}: {there}")
    deployments.retire(name)
    note(f"{name} no longer answers")


def _looks(look: Callable[[], list[DeploymentSample]], *, watch: bool) -> Iterator[list[DeploymentSample]]:
    """Yield one reading, or one each second with the figures of the last seconds."""
    earlier: list[tuple[float, dict[str, DeploymentSample]]] = []
    while True:
        now, found = time.monotonic(), look()
        if not watch:
            yield found
            return
        earlier.append((now, {seen.status.name: seen for seen in found}))
        while len(earlier) > 1 and earlier[1][0] <= now - WINDOW_SECONDS:
            del earlier[0]
        first = earlier[0][1]
        if sys.stdout.isatty():
            say(_CLEAR)
        yield [seen.after(first.get(seen.status.name, seen)) for seen in found]
        pause(LOOK_SECONDS)


def pause(seconds: float) -> None:
    """Wait between two readings."""
    time.sleep(seconds)


def _chosen(status: DeploymentStatus, wanted: str | None) -> Revision:
    """Return the named revision, or the one being released. :raises NotFound: there is none."""
    if wanted is None and status.release:
        wanted = status.release.revision
    there = [one for one in status.revisions if not one.state.over]
    for one in there:
        if wanted is not None and short(wanted) in (one.name, short(one.model.address)):
            return one
    names = ", ".join(f"{one.name} ({short(one.model.address)})" for one in there) or "none"
    if wanted is None:
        raise NotFound(f"deployment {status.name}: nothing is under way; name a revision, there is {names}")
    for one in status.revisions:
        if short(wanted) in (one.name, short(one.model.address)):
            over = f"{one.name} ({short(one.model.address)}) is {one.state.value}"
            why = f": {one.reason}" if one.reason else ""
            raise NotFound(
                f"deployment {status.name}: {over}{why}; there is {names}. To have that version again, run its deploy task "
                f"again: `muster run DAG --resume=strict`, or clear the task in Airflow"
            )
    raise NotFound(f"deployment {status.name} has no revision {wanted!r:.60}; there is {names}")


def _by() -> str:
    """Return the user, as recorded with a revision."""
    return f"{person()} at the command line"


def _document(seen: DeploymentSample) -> dict[str, Any]:
    status: dict[str, Any] = plain(seen.status)
    return {**status, "figures": plain(seen.figures)}


def _state(status: DeploymentStatus) -> str:
    if not status.ready:
        return "down"
    return "drifted" if status.drift else "serving"


def _standing(revision: Revision) -> str:
    return "kept" if revision.kept and revision.state.value == "ready" else revision.state.value


def _under_way(status: DeploymentStatus) -> str:
    """Return the release in progress in a few words: ``@8 at 5 %, held``."""
    release = status.release
    if release is None:
        return ""
    mine = status.called(release.revision)
    name = "@" + mine.model.address.rpartition("@")[2] if mine else release.revision
    ends = ", taken back" if release.failed else ", held" if release.held else ""
    return f"{name} at {mine.percent if mine else 0} %{ends}"


def _release(status: DeploymentStatus) -> str:
    release = status.release
    if release is None:
        return ""
    said = f"{release.revision} at {status.shares.get(release.revision, 0)} % since {when(release.since)}"
    why = f"; it is taken back: {release.failed}" if release.failed else ""
    waits = "" if release.failed else "; what it waits for stands in the log of who asked"
    if release.held:
        waits = "; it is held there until it is given more"
    elif not release.failed and release.origin and _has_died(release.origin):
        waits = (
            f"; the run that drives it has died: {release.origin.again} goes on with it, "
            "muster deployments promote or rollback ends it"
        )
    return f"{said}, asked for by {release.by}{waits}{why}"


def _has_died(run: Origin) -> bool:
    """Whether the process of a run is gone, so that nothing drives its release; no where the store cannot say.

    A run of this machine holds a lock while it lives. What the store notes of another machine's counts for three minutes.
    """
    from muster.cli.runs import unended
    from muster.volumes.runs import noted

    if (died := unended().get(run.run_id)) is not None:
        return died
    try:
        return noted(open_store().ledger).get((run.dag_id, run.run_id)) is JobState.FAILED
    except MusterError:  # what was asked for is shown all the same
        return False


def _figures(figures: Figures | None) -> tuple[object, object, object]:
    if figures is None:
        return None, None, None
    from muster.backends.releases.figures import shown

    p95 = figures.p95_seconds
    return figures.requests, figures.failed, None if p95 is None else shown(p95)


def _model_of(status: DeploymentStatus, name: str) -> str:
    found = status.called(name)
    return short(found.model.address) if found else "gone"


Client = Annotated[str, typer.Argument(metavar="CLIENT", help="Whose token it is, such as shop.")]


@_tokens.command(
    "make",
    epilog=example(
        "muster deployments token make flights shop",
        "muster deployments token make flights shop --json | jq -r .token > shop.token",
    ),
)
def make_token(name: Name, client: Client, *, as_json: Json = False) -> None:
    """Make a client's token, and print it this once.

    Only its digest is kept. The client sends it with each request, as the header Authorization: Bearer TOKEN. Servers take it within two seconds.
    """
    deployments = open_deployments()
    token = deployments.make_token(name, client)
    if as_json:
        emit({"deployment": name, "client": client, "token": token})
        return
    say(token)
    note(f"{client} sends it to {name} as the header Authorization: Bearer TOKEN; it is not shown again")


@_tokens.command(
    "ls",
    epilog=example(
        "muster deployments token ls flights",
        "muster deployments token ls flights --json | jq -r '.[] | select(.ended == null) | .client'",
    ),
)
def list_tokens(name: Name, *, as_json: Json = False) -> None:
    """List the tokens of clients: when each was made and ended."""
    found = open_deployments().tokens(name).tokens
    if as_json:
        emit([{"client": each.client, "made": each.made, "ended": each.ended} for each in found])
        return
    table = Table(["client", "made", "ended"])
    for each in found:
        table.add(each.client, when(each.made), when(each.ended) if each.ended is not None else None)
    table.show(empty=f"no tokens yet: muster deployments token make {name} CLIENT makes one")


@_tokens.command("end", epilog=example("muster deployments token end flights shop"))
def end_token(name: Name, client: Client) -> None:
    """End a client's token: two seconds later no server takes it."""
    open_deployments().end_token(name, client)
    note(f"{name} no longer takes the token of {client}")
