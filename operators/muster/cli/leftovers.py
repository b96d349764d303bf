"""``muster jobs gc``: show and delete the files that ended jobs still keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.command import Json, open_store
from muster.cli.screen import Table, emit, note, safe, say, size, when
from muster.core.errors import MusterError
from muster.core.wire import plain

if TYPE_CHECKING:
    from muster.core.room import Room
    from muster.volumes.base import Held
    from muster.volumes.protocols import Store


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
    _show(found)
    if found and not yes:
        note("nothing was deleted: --yes does it")
    elif yes:
        say(f"freed {size(freed)}")
    room = room_of(store)
    if room is not None:
        note(safe(room))


def room_of(store: Store) -> Room | None:
    """Return a store's free space; None, and a warning, if it is unknown."""
    try:
        return store.room()
    except MusterError as error:  # such as a service of an older release
        note(f"warning: the store's free space is unknown: {safe(error)}")
        return None


def _show(found: list[Held]) -> None:
    table = Table(["job", "ended", ">checkpoints", ">outputs"])
    for held in found:
        table.add(held.job_id, when(held.ended), size(held.checkpoints_bytes), size(held.outputs_bytes))
    table.show(empty="no ended job keeps any files")
