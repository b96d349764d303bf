"""``muster volumes``: what is kept, where it comes from, and putting in and taking out."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.cli import upkeep
from muster.cli.command import Json, example, group, open_store
from muster.cli.screen import Table, digest, emit, note, safe, say, size, when
from muster.core.address import Address
from muster.core.errors import SpecError
from muster.core.wire import plain

if TYPE_CHECKING:
    from muster.volumes.base import Store, Version
    from muster.volumes.manifest import Entry

app = group("Versioned volumes: what jobs read and write.")

Where = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="Such as flights/model@7 or flights/features@2013-03.")
]


@app.command("ls", epilog=example("muster volumes ls", "muster volumes ls --json | jq -r '.[].volume'"))
def list_volumes(*, as_json: Json = False) -> None:
    """List the volumes, each with its latest version."""
    store = open_store()
    found = [(name, store.versions(name)) for name in store.volumes()]
    if as_json:
        emit([_volume(store, name, versions) for name, versions in found])
        return
    table = Table(["volume", ">versions", "latest", "partition", ">size", "made"])
    for name, versions in found:
        latest = _latest(store, name, versions)
        if latest is None:
            table.add(name, len(versions), None, None, None, None)
        else:
            table.add(
                name,
                len(versions),
                f"@{latest.number}",
                latest.partition,
                size(latest.size_bytes),
                when(latest.created),
            )
    table.show(empty="no volumes yet")


def _latest(store: Store, name: str, versions: list[Version]) -> Version | None:
    live = [version for version in versions if version.retired is None]
    return store.resolve(name)[0] if live else None


def _volume(store: Store, name: str, versions: list[Version]) -> dict[str, Any]:
    latest = _latest(store, name, versions)
    return {"volume": name, "versions": len(versions), "latest": latest and _version(latest)}


def _version(version: Version) -> dict[str, Any]:
    return {**plain(version), "address": version.address}


@app.command(
    "log",
    epilog=example("muster volumes log flights/model", "muster volumes log 'flights/features@<2013-10'"),
)
def log(
    volume: Annotated[
        str, typer.Argument(metavar="VOLUME", help="A volume, or an address of one or more versions.")
    ],
    *,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="At most so many versions, newest first.")
    ] = 20,
    as_json: Json = False,
) -> None:
    """Show where versions come from, newest first.

    For each version: code, inputs with their digests, params, metrics, job and run.
    """
    from muster.cli import lineage

    store = open_store()
    versions = list(store.resolve(volume)) if "@" in volume else store.versions(_existing(store, volume))
    chosen = [(version, store.record(version.address)) for version in versions[::-1][:limit]]
    if as_json:
        emit([lineage.document(version, record) for version, record in chosen])
        return
    for i, (version, record) in enumerate(chosen):
        say("" * i) if i else None
        lineage.show(version, record)
    if len(versions) > limit:
        note(f"{len(versions) - limit} older versions: --limit {len(versions)} shows them")


def _existing(store: Store, volume: str) -> str:
    """Return the volume's name; where it holds no version, the store's own error says what there is."""
    name = Address.parse(volume).volume
    if name not in store.volumes():
        store.resolve(name)
    return name


@app.command(
    "show",
    epilog=example("muster volumes show flights/model", "muster volumes show flights/features@2013-03"),
)
def show(address: Where, *, as_json: Json = False) -> None:
    """Show one version: where it comes from and its files."""
    from muster.cli import lineage

    store = open_store()
    version = _one(store, address)
    record, entries = store.record(version.address), _files(store, version)
    if as_json:
        emit(
            {
                **lineage.document(version, record),
                "path": str(store.path(version.address)),
                "entries": [plain(e) for e in entries],
            }
        )
        return
    lineage.show(version, record)
    say(f"  {typer.style('path'.ljust(8), dim=True)}  {safe(store.path(version.address))}")
    say()
    table = Table([">size", "hash", "file"])
    for entry in entries:
        table.add(size(entry.size_bytes), entry.hash[:12], entry.path)
    table.show(empty="no files")


def _one(store: Store, address: str) -> Version:
    found = store.resolve(address)
    if len(found) != 1:
        raise SpecError(f"{address} names {len(found)} versions, this needs one: add @ and its number")
    return found[0]


def _files(store: Store, version: Version) -> list[Entry]:
    from muster.volumes import manifest

    entries = manifest.read(store.path(version.address).parent / "MANIFEST")
    return sorted(entries.values(), key=lambda entry: entry.path)


@app.command("diff", epilog=example("muster volumes diff flights/model@1 flights/model@2"))
def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="Address of a version.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Address of another.")],
    *,
    as_json: Json = False,
) -> None:
    """Compare two versions.

    Files by their hashes, then code, inputs, params and metrics.
    """
    store = open_store()
    before, after = _one(store, old), _one(store, new)
    files = _changes(_files(store, before), _files(store, after))
    facts = _facts(store, before, after)
    if as_json:
        emit(
            {
                "old": before.address,
                "new": after.address,
                "same": before.digest == after.digest,
                "files": files,
                "record": facts,
            }
        )
        return
    for change in files:
        say(
            f"{_SIGNS[change['change']]} {safe(change['path'])}  {_sizes(change)}",
            style=_SHADES[change["change"]],
        )
    for fact in facts:
        say(f"  {safe(fact['name'])}: {safe(fact['old'])} → {safe(fact['new'])}")
    if not files:
        note("the files are the same")


_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_SHADES = {"added": "green", "removed": "red", "changed": "yellow"}


def _changes(old: list[Entry], new: list[Entry]) -> list[dict[str, Any]]:
    before, after = {e.path: e for e in old}, {e.path: e for e in new}
    changes = []
    for path in sorted(before.keys() | after.keys()):
        was, now = before.get(path), after.get(path)
        if was and now and was.hash == now.hash:
            continue
        kind = "changed" if was and now else "added" if now else "removed"
        changes.append(
            {
                "path": path,
                "change": kind,
                "old_bytes": was and was.size_bytes,
                "new_bytes": now and now.size_bytes,
            }
        )
    return changes


def _sizes(change: dict[str, Any]) -> str:
    known = [size(change[side]) for side in ("old_bytes", "new_bytes") if change[side] is not None]
    return " → ".join(known)


def _facts(store: Store, before: Version, after: Version) -> list[dict[str, Any]]:
    old, new = (_flat(plain(store.record(version.address))) for version in (before, after))
    names = sorted(old.keys() | new.keys())
    return [{"name": n, "old": old.get(n), "new": new.get(n)} for n in names if old.get(n) != new.get(n)]


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """Take what can explain a difference: code, environment, params, metrics, inputs by digest."""
    flat = {name: record[name] for name in ("code", "entrypoint", "image_digest")}
    for kind in ("params", "metrics"):
        flat |= {f"{kind}.{name}": value for name, value in record[kind].items()}
    for name, versions in record["inputs"].items():
        flat[f"inputs.{name}"] = " ".join(digest(version["digest"]) for version in versions)
    return flat


@app.command("put", epilog=example("muster volumes put ./rows raw/flights --partition 2013-03"))
def put(
    source: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder, or one file.")],
    volume: Annotated[
        str, typer.Argument(metavar="VOLUME", help="Such as raw/flights; made where it is new.")
    ],
    *,
    partition: Annotated[str | None, typer.Option(help="The partition it becomes, such as 2013-03.")] = None,
    reason: Annotated[str, typer.Option("--note", help="For the record: where it comes from.")] = "",
    as_json: Json = False,
) -> None:
    """Copy a folder or file into a new version."""
    if not source.exists():
        raise SpecError(f"{source} is not there: name a folder or file to copy")
    text = reason or f"put from {source.absolute()}"
    version = open_store(make=True).add(volume, source.absolute(), partition=partition, note=text)
    emit(_version(version)) if as_json else say(safe(version.address))


@app.command(
    "get",
    epilog=example(
        "muster volumes get flights/model@7 ./model",
        "muster volumes get flights/model@7/model.onnx ./model.onnx",
    ),
)
def get(
    address: Where,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="What to make; it must not be there yet.")],
) -> None:
    """Copy a version, or one file of it, out.

    The copy is yours to write; blocks are shared where the file system can.
    """
    from muster.volumes import tree

    if os.path.lexists(target):
        raise SpecError(f"{target} is there already: name a target that is not")
    source = open_store().path(address)
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        tree.copy_tree(source, part) if source.is_dir() else tree.copy_file(str(source), str(part))
        part.rename(target)
    except OSError as error:
        raise SpecError(f"{address} cannot be copied to {target}: {error.strerror}") from error
    finally:
        tree.remove(part)
    note(f"{safe(source)} copied to {safe(target)}")


Reason = Annotated[str, typer.Option("--reason", help="Why; each reason is a pin of its own.")]


@app.command("pin", epilog=example("muster volumes pin flights/model@7 --reason 'in the paper'"))
def pin(address: Where, *, reason: Reason = "by hand") -> None:
    """Keep a version from gc."""
    version = open_store().pin(address, reason=reason)
    say(f"{version.address} is pinned: {safe(', '.join(version.pins))}")


@app.command("unpin", epilog=example("muster volumes unpin flights/model@7 --reason 'in the paper'"))
def unpin(address: Where, *, reason: Reason = "by hand") -> None:
    """Take one pin away."""
    version = open_store().unpin(address, reason=reason)
    left = f"still pinned: {safe(', '.join(version.pins))}" if version.pins else "not pinned"
    say(f"{version.address} is {left}")


app.command("fsck", epilog=example("muster volumes fsck", "muster volumes fsck --deep"))(upkeep.fsck)
app.command("gc", epilog=example("muster volumes gc", "muster volumes gc --keep 2 --yes"))(upkeep.gc)
