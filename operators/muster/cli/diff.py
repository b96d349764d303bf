"""``muster volumes diff``: shows what differs between two versions, and possible causes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.cli.code import snapshot_files
from muster.cli.command import Json, open_store
from muster.cli.screen import digest, emit, note, safe, say, size
from muster.core.address import pinned
from muster.core.errors import NotFound
from muster.core.wire import plain

if TYPE_CHECKING:
    from muster.volumes.base import Record
    from muster.volumes.lineage import Difference
    from muster.volumes.protocols import LocalStore


def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="Address of a version.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Address of another.")],
    *,
    as_json: Json = False,
) -> None:
    """Compare two versions.

    Compares files by their hashes, then the code's files, inputs, params and metrics.
    """
    from muster.volumes.lineage import compare

    store = open_store()
    before, after = store.record(old), store.record(new)
    files = compare(store.manifest(old), store.manifest(new))
    facts = list(_facts(before, after))
    if as_json:
        addresses = {"old": pinned(before.volume, before.number), "new": pinned(after.volume, after.number)}
        emit({**addresses, "files": files, "record": facts, "code": list(_code(store, before, after))})
        return
    for sign, colour, text in sorted(_changes(files), key=lambda change: change[2]):
        say(f"{sign} {safe(text)}", style=colour)
    for fact in facts:
        say(f"  {safe(fact['name'])}: {safe(fact['old'])} → {safe(fact['new'])}")
        if fact["name"] == "code":
            for path in _code(store, before, after):
                say(f"    {safe(path)}")
    if before.digest == after.digest:
        note("the committed files are the same")


def _changes(files: Difference) -> Iterator[tuple[str, str, str]]:
    for path, size_bytes in files.added.items():
        yield "+", "green", f"{path}  {size(size_bytes)}"
    for path, size_bytes in files.removed.items():
        yield "-", "red", f"{path}  {size(size_bytes)}"
    for path, (was, now) in files.changed.items():
        yield "~", "yellow", f"{path}  {size(was)} → {size(now)}"


def _code(store: LocalStore, before: Record, after: Record) -> Iterator[str]:
    """Name the files that differ between the code of two versions, each with its change."""
    if before.code == after.code or before.code is None or after.code is None:
        return
    try:
        old, new = (snapshot_files(store.code(code)) for code in (before.code, after.code))
    except NotFound as error:
        note(f"the differing files of the code are unknown: {error}")
        return
    for path in sorted(old.keys() | new.keys()):
        if path not in old or path not in new:
            yield f"{path} ({'new' if path in new else 'gone'})"
        elif old[path].read_bytes() != new[path].read_bytes():
            yield f"{path} (changed)"


def _facts(before: Record, after: Record) -> Iterator[dict[str, Any]]:
    old, new = _flat(plain(before)), _flat(plain(after))
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            yield {"name": name, "old": old.get(name), "new": new.get(name)}


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that may explain a difference: code, environment, params, metrics, inputs by digest."""
    flat = {name: record[name] for name in ("code", "entrypoint", "image_digest")}
    for kind in ("params", "metrics"):
        flat |= {f"{kind}.{name}": value for name, value in record[kind].items()}
    for name, versions in record["inputs"].items():
        flat[f"inputs.{name}"] = " ".join(digest(version["digest"]) for version in versions)
    return flat
