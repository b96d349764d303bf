"""``muster tokens``: the tokens of persons, for who is on call."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.command import Json, example, group, open_store, person
from muster.cli.screen import Table, emit, say, when
from muster.core.errors import NotFound, SpecError
from muster.core.wire import plain

if TYPE_CHECKING:
    from muster.volumes.service.client import ServiceStore

app = group("Tokens of persons: who has some, and ending them. They are made on the page.")
User = Annotated[str | None, typer.Option(help="Only those of this person, by the name that Airflow knows.")]


@app.command("ls", epilog=example("muster tokens ls", "muster tokens ls --user ana"))
def list_tokens(*, user: User = None, as_json: Json = False) -> None:
    """List the tokens of persons.

    It tells what each may do, when it was used last, and how long it counts.
    The token that MUSTER_CLUSTER's file names must be an operator's.
    """
    found = _store().tokens(user or "")
    if as_json:
        emit([plain(each) for each in found])
        return
    now, table = time.time(), Table(["token", "user", "name", "teams", "may", "made", "used", "until"])
    for each in found:
        until = when(each.expires) if each.ended is None else f"ended by {each.ended_by}"
        may = "change" if each.rights.changes else "read"
        table.add(
            *(each.token_id, each.user, each.name, ", ".join(each.rights.teams) or "all", may),
            *(when(each.made), when(each.used), until if each.counts(now=now) or each.ended else "expired"),
        )
    table.show(empty=f"{user} has no tokens" if user else "no person has a token")


@app.command("end", epilog=example("muster tokens end 9f2c01d4a7b3e856", "muster tokens end --user ana"))
def end(
    token: Annotated[list[str] | None, typer.Argument(metavar="[TOKEN]...", help="Ids of tokens.")] = None,
    *,
    user: Annotated[str | None, typer.Option(help="All of this person, who has left, say.")] = None,
) -> None:
    """End tokens of persons: the next request with one is refused."""
    if bool(token) == bool(user):
        raise typer.BadParameter("name the tokens, or a person with --user")
    store, now = _store(), time.time()
    ids = token or [each.token_id for each in store.tokens(user or "") if each.counts(now=now)]
    if not ids:
        raise NotFound(f"{user} has no token that counts: `muster tokens ls` lists all")
    for each in ids:
        ended = store.end_token(each, by=person())
        say(f"{ended.token_id} of {ended.user} ({ended.name}) has ended")


def _store() -> ServiceStore:
    from muster.volumes.service.client import ServiceStore

    store = open_store()
    if not isinstance(store, ServiceStore):
        raise SpecError(
            "the store is a folder of this machine, which asks for no token: name a cluster by MUSTER_CLUSTER"
        )
    return store


def add(groups: Mapping[str, typer.Typer]) -> None:
    """Add the commands of this extension to those of ``muster``."""
    groups[""].add_typer(app, name="tokens")
