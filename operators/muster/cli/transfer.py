"""``muster volumes put`` and ``get``: copies in and out of the store."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from muster.cli.command import Json, Where, open_store
from muster.cli.screen import emit, note, safe, say
from muster.core.errors import SpecError
from muster.core.wire import plain


def put(
    source: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder, or one file.")],
    volume: Annotated[
        str, typer.Argument(metavar="VOLUME", help="Such as raw/flights; made where it is new.")
    ],
    *,
    partition: Annotated[str | None, typer.Option(help="The partition it becomes, such as 2013-03.")] = None,
    origin: Annotated[str, typer.Option("--note", help="For the record: where it comes from.")] = "",
    as_json: Json = False,
) -> None:
    """Copy a folder or file into a new version."""
    if not source.exists():
        raise SpecError(f"{source} is not there: name a folder or file to copy")
    text = origin or f"put from {source.absolute()}"
    version = open_store(make=True).add(volume, source.absolute(), partition=partition, note=text)
    if as_json:
        emit({**plain(version), "address": version.address})
    else:
        say(safe(version.address))


def get(
    address: Where,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="What to make; it must not be there yet.")],
) -> None:
    """Copy a version, or one file of it, out.

    The copy is yours to write; blocks are shared where the file system can.
    """
    if os.path.lexists(target):
        raise SpecError(f"{target} is there already: name a target that is not")
    source = open_store().path(address)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _copy(source, target)
    except OSError as error:
        raise SpecError(f"{address} cannot be copied to {target}: {error.strerror}") from error
    note(f"{safe(source)} copied to {safe(target)}")


def _copy(source: Path, target: Path) -> None:
    """Copy beside the target and rename, so that an interrupted copy is never taken for a whole one."""
    from muster.volumes import tree

    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        if source.is_dir():
            tree.copy_tree(source, part)
        else:
            tree.copy_file(str(source), str(part))
        part.rename(target)
    finally:
        tree.remove(part)
