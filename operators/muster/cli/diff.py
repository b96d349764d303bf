"""``muster volumes diff``: shows what differs between two versions, and possible causes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.command import Json, open_store
from muster.cli.screen import emit, note, safe, say, size
from muster.core.address import pinned
from muster.core.errors import NotFound
from muster.volumes.changes import differing_files

if TYPE_CHECKING:
    from muster.volumes.lineage import Fact, FileDifference
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
    from muster.volumes.lineage import compare, facts as facts_of

    store = open_store()
    before, after = store.record(old), store.record(new)
    files = compare(store.manifest(old), store.manifest(new))
    facts = facts_of(before, after)
    code = list(changed_code(store, before.code, after.code))
    if as_json:
        addresses = {"old": pinned(before.volume, before.number), "new": pinned(after.volume, after.number)}
        emit({**addresses, "files": files, "record": facts, "code": code})
        return
    for sign, colour, text in sorted(_changes(files), key=lambda change: change[2]):
        say(f"{sign} {safe(text)}", style=colour)
    show_facts(facts, code)
    if before.digest == after.digest:
        note("the committed files are the same")


def _changes(files: FileDifference) -> Iterator[tuple[str, str, str]]:
    for path, size_bytes in files.added.items():
        yield "+", "green", f"{path}  {size(size_bytes)}"
    for path, size_bytes in files.removed.items():
        yield "-", "red", f"{path}  {size(size_bytes)}"
    for path, (was, now) in files.changed.items():
        yield "~", "yellow", f"{path}  {size(was)} → {size(now)}"


def show_facts(facts: Iterable[Fact], code: Iterable[str]) -> None:
    """Print the facts that differ, one line for each, and below the code its changed files."""
    for fact in facts:
        old, new = ("none" if value is None else safe(value) for value in (fact.old, fact.new))
        say(f"  {safe(fact.name)}: {old} → {new}")
        if fact.name == "code":
            for path in code:
                say(f"    {safe(path)}")


def changed_code(store: LocalStore, before: str | None, after: str | None) -> Iterator[str]:
    """Name the files that differ between two code snapshots, each with its change; none if one is unknown."""
    if before == after or before is None or after is None:
        return
    try:
        found = differing_files(store.code(before), store.code(after))
    except NotFound as error:
        note(f"the differing files of the code are unknown: {error}")
        return
    for path, old, new in found:
        yield f"{path} ({'new' if old is None else 'gone' if new is None else 'changed'})"
