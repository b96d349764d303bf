"""``muster volumes code``: shows the code that made a version, from the store."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.command import Json, open_store, store_is_here
from muster.cli.screen import Table, emit, safe, size
from muster.core.errors import NotFound, SpecError
from muster.core.settings import Settings
from muster.volumes.changes import files_below

if TYPE_CHECKING:
    from muster.volumes.protocols import LocalStore

_PREFIX = "b3:"
_DIGITS = 64


def code(
    address: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS", help="A version, or the digest of a code snapshot, such as b3:46ada269."
        ),
    ],
    file: Annotated[str | None, typer.Argument(metavar="[FILE]", help="A file of it, to print.")] = None,
    *,
    as_json: Json = False,
) -> None:
    """List the code that made a version, or print one file of it."""
    store = open_store()
    digest = _digest(store, address)
    files = files_below(store.code(digest))
    if file is not None:
        if file not in files:
            raise NotFound(f"code {digest[:11]} holds no {file!r:.120}; it holds {', '.join([*files][:8])}")
        data = files[file].read_bytes()
        if as_json:
            emit({"code": digest, "file": file, "text": _text(data, file)})
        else:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
    elif as_json:
        emit({"code": digest, "files": {path: where.stat().st_size for path, where in files.items()}})
    else:
        table = Table([">size", "file"])
        for path, where in files.items():
            table.add(size(where.stat().st_size), safe(path))
        table.show(empty="no files")


def _text(data: bytes, file: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise SpecError(f"{file!r:.120} is no text, which JSON could hold: leave --json out") from error


def _digest(store: LocalStore, address: str) -> str:
    """Return the full digest of the wanted snapshot."""
    if not address.startswith(_PREFIX):
        record = store.record(address)
        if record.code is None:
            made = record.note or "its origin is unknown"
            raise NotFound(f"{record.volume}@{record.number} was not made by a Dag's code: {made}")
        return record.code
    digits = address.removeprefix(_PREFIX)
    if len(digits) == _DIGITS:
        return address
    if not digits or set(digits) - set("0123456789abcdef"):
        raise SpecError(
            f"{address!r:.80} is no digest: expected b3: and its first digits, such as b3:46ada269"
        )
    if not store_is_here():
        raise SpecError(
            f"{address} is the beginning of a digest, and the store is a cluster's: name the version instead"
        )
    found = [path.name for path in (Settings.load().store / "code").glob(f"{digits}*")]
    if len(found) != 1:
        many = (
            f"{len(found)} snapshots begin so" if found else "it was deleted by gc, or put into another store"
        )
        raise NotFound(
            f"no code snapshot {address}: {many}; `muster volumes show` says which code made a version"
        )
    return _PREFIX + found[0]
