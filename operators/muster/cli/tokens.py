"""``muster deployments token``: make, list and end the tokens of a deployment's clients."""

from __future__ import annotations

from typing import Annotated

import typer

from muster.cli.command import Json, example, group, open_deployments
from muster.cli.screen import Table, emit, note, say, when

app = group("Tokens: who may ask a deployment that has tokens=True.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A deployment's name, such as flights.")]
Client = Annotated[str, typer.Argument(metavar="CLIENT", help="Whose token it is, such as shop.")]


@app.command(
    "make",
    epilog=example(
        "muster deployments token make flights shop",
        "muster deployments token make flights shop --json | jq -r .token > shop.token",
    ),
)
def make(name: Name, client: Client, *, as_json: Json = False) -> None:
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


@app.command(
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


@app.command("end", epilog=example("muster deployments token end flights shop"))
def end(name: Name, client: Client) -> None:
    """End a client's token: two seconds later no server takes it."""
    open_deployments().end_token(name, client)
    note(f"{name} no longer takes the token of {client}")
