"""``muster deployments``: what answers predictions now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.cli.command import Json, example, group, open_backend
from muster.cli.screen import Table, digest, emit, fields, note, safe, say, when
from muster.core.errors import NotFound
from muster.core.names import check_label
from muster.core.wire import plain

if TYPE_CHECKING:
    from muster.backends.base import Backend
    from muster.core.deployment import DeploymentStatus

app = group("Deployments: names that answer predictions.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A deployment's name, such as flights.")]


@app.command("ls", epilog=example("muster deployments ls", "muster deployments ls --json | jq -r '.[].url'"))
def list_deployments(*, as_json: Json = False) -> None:
    """List the deployments and what each serves."""
    backend = open_backend()
    found = [backend.deployment(name) for name in backend.deployments()]
    if as_json:
        emit([_document(status) for status in found])
        return
    table = Table(["deployment", "state", "serves", "since", "url"])
    for status in found:
        champion = status.champion
        table.add(
            status.name,
            _state(status),
            champion and _model(champion.model.address),
            when(champion.since) if champion else None,
            status.url,
        )
    table.show(empty="no deployments yet")


@app.command("show", epilog=example("muster deployments show flights"))
def show(name: Name, *, as_json: Json = False) -> None:
    """Show one deployment: its address and its revisions, newest first."""
    status = _known(open_backend(), name)
    if as_json:
        emit(_document(status))
        return
    say(typer.style(safe(status.name), bold=True))
    fields([("state", _state(status)), ("url", status.url), ("reason", status.reason)])
    say()
    table = Table(["revision", "model", "digest", "state", ">share", "since", "reason"])
    for revision in status.revisions:
        table.add(
            revision.name,
            _model(revision.model.address),
            digest(revision.model.digest),
            revision.state.value,
            f"{revision.percent} %",
            when(revision.since),
            revision.reason,
        )
    table.show(empty="no revisions")


@app.command("retire", epilog=example("muster deployments retire flights"))
def retire(name: Name) -> None:
    """Take a deployment away; its model versions stay."""
    backend = open_backend()
    _known(backend, name)
    backend.retire(name)
    note(f"{name} no longer answers")


def _known(backend: Backend, name: str) -> DeploymentStatus:
    known = backend.deployments()
    if check_label("deployment", name) not in known:
        there = f"there is {', '.join(known)}" if known else "there are none yet"
        raise NotFound(f"no deployment {name}: {there}")
    return backend.deployment(name)


def _document(status: DeploymentStatus) -> dict[str, Any]:
    return plain(status)  # type: ignore[no-any-return]


def _state(status: DeploymentStatus) -> str:
    return "serving" if status.ready else "down"


def _model(address: str) -> str:
    return address.removeprefix("volume://")
