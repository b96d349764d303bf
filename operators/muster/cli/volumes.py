"""``muster volumes``: list versions, show their origin, and pin, retire or collect them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.cli import transfer, upkeep
from muster.cli.command import Json, Where, example, group, open_store, store_is_here
from muster.cli.diff import diff
from muster.cli.screen import Table, emit, note, safe, say, size, when
from muster.core.address import Address
from muster.core.errors import Corrupt, NotFound, SpecError
from muster.core.settings import Settings
from muster.core.wire import plain
from muster.volumes.changes import files_below

if TYPE_CHECKING:
    from muster.volumes.base import Record, Version
    from muster.volumes.protocols import LocalStore


_PREFIX = "b3:"
_DIGITS = 64


app = group("Versioned volumes: what jobs read and write.")

Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Largest number of versions, newest first.")]
Reason = Annotated[str, typer.Option("--reason", help="The reason; each reason is a separate pin.")]
Why = Annotated[str, typer.Option("--reason", help="The reason, which is shown with the version.")]


@app.command("ls", epilog=example("muster volumes ls", "muster volumes ls --json | jq -r '.[].volume'"))
def list_volumes(*, as_json: Json = False) -> None:
    """List the volumes with their latest versions."""
    store = open_store()
    found = [(name, store.count(name), _latest(store, name)) for name in store.volumes()]
    if as_json:
        emit([_volume(name, count, latest) for name, count, latest in found])
        return
    table = Table(["volume", ">versions", "latest", "partition", ">size", "made"])
    for name, count, latest in found:
        if latest is None:
            table.add(name, count, None, None, None, None)
        else:
            room, made = size(latest.size_bytes), when(latest.created)
            table.add(name, count, f"@{latest.number}", latest.partition, room, made)
    table.show(empty="no volumes yet")


def _latest(store: LocalStore, name: str) -> Version | None:
    """Return the version of `@latest`; None if every version is retired or damaged."""
    try:
        return store.resolve(name)[0]
    except NotFound:
        return None
    except Corrupt as error:
        note(str(error), style="yellow")
        return None


def _volume(name: str, count: int, latest: Version | None) -> dict[str, Any]:
    known = latest and {**plain(latest), "address": latest.address}
    return {"volume": name, "versions": count, "latest": known}


@app.command(
    "log",
    epilog=example(
        "muster volumes log flights/model",
        "muster volumes log flights/model --sort auc --columns auc,epochs",
        "muster volumes log flights/model --sort loss --ascending",
        "muster volumes log 'flights/features@<2013-10'",
    ),
)
def log(
    volume: Annotated[
        str, typer.Argument(metavar="VOLUME", help="A volume, or an address of one or more versions.")
    ],
    *,
    sort: Annotated[
        str | None,
        typer.Option(
            "--sort", metavar="NAME", help="By this metric or param, the greatest first; as a table."
        ),
    ] = None,
    ascending: Annotated[bool, typer.Option("--ascending", help="With --sort: the least first.")] = False,
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="A,B", help="A table with these metrics and params, by name."),
    ] = None,
    limit: Limit = 20,
    as_json: Json = False,
) -> None:
    """Show the origin of versions, newest first.

    For each version: code, inputs with their digests, params, metrics, job and run. With --sort or --columns a line each.
    """
    from muster.cli import lineage

    if ascending and sort is None:
        raise typer.BadParameter("--ascending is for --sort: give it a metric or param")
    store = open_store()
    versions, count = _newest(store, volume, limit if sort is None else EVERY)
    records = store.records([version.address for version in versions])
    chosen = list(zip(records, versions, strict=True))
    names = lineage.columns_of(columns, sort)
    lineage.check_columns(names, records)
    if sort is not None:
        chosen = lineage.ranked(chosen, sort, ascending=ascending)[:limit]
    if as_json:
        emit([lineage.document(record, version) for record, version in chosen])
    elif names:
        lineage.table(chosen, names).show(empty="no versions")
    else:
        for index, (record, version) in enumerate(chosen):
            if index:
                say()
            lineage.show(record, version)
    if not as_json and len(chosen) == limit < count:
        which = "older" if sort is None else "other"
        note(f"{count - limit} {which} versions: --limit {count} shows them")


def _newest(store: LocalStore, where: str, limit: int) -> tuple[Sequence[Version], int]:
    """Return the newest versions of a volume or address, newest first, and the number of all."""
    if "@" not in where:
        volume = Address.parse(where).volume
        if found := store.newest(volume, limit=limit):
            return found, store.count(volume)
    versions = store.resolve(where)  # for a volume without versions the error lists the volumes
    return versions[::-1][:limit], len(versions)


@app.command(
    "show",
    epilog=example("muster volumes show flights/model", "muster volumes show flights/features@2013-03"),
)
def show(address: Where, *, as_json: Json = False) -> None:
    """Show one version: its origin and its files."""
    from muster.backends.tracking import SHOWN_AT, run_link
    from muster.cli import lineage
    from muster.core.settings import Settings
    from muster.volumes.lineage import ancestors

    store = open_store()
    record, version = _known(store, address)
    exact = f"{record.volume}@{record.number}"
    made_from = list(ancestors(store, exact))
    entries = list(store.manifest(exact).values())
    path = store.path(exact) if version and store_is_here() else None
    run = run_link(store.ledger, record.job_id, home=Settings.load().home, shown_at=SHOWN_AT)
    if as_json:
        more = {"path": str(path) if path else None, "entries": plain(entries), "ancestors": plain(made_from)}
        emit({**lineage.document(record, version), **more, "mlflow": run})
        return
    lineage.show(record, version)
    if run:
        lineage.line("MLflow", run)
    if path is not None:
        lineage.line("path", path)
    for index, text in enumerate(lineage.trace(made_from)):
        lineage.line("" if index else "made from", text)
    say()
    table = Table([">size", "hash", "file"])
    for entry in entries:
        table.add(size(entry.size_bytes), entry.hash[:12], entry.path)
    table.show(empty="no files")


def _known(store: LocalStore, address: str) -> tuple[Record, Version | None]:
    """Return a version's record, and the version; None where gc deleted its data."""
    record = store.record(address)
    try:
        return record, store.resolve(f"{record.volume}@{record.number}")[0]
    except NotFound:
        return record, None


@app.command("pin", epilog=example("muster volumes pin flights/model@7 --reason 'in the paper'"))
def pin(address: Where, *, reason: Reason = "by hand") -> None:
    """Keep a version from gc."""
    version = open_store().pin(address, reason=reason)
    say(f"{version.address} is pinned: {safe(', '.join(version.pins))}")


@app.command("unpin", epilog=example("muster volumes unpin flights/model@7 --reason 'in the paper'"))
def unpin(address: Where, *, reason: Reason = "by hand") -> None:
    """Remove one pin."""
    from muster.backends.releases.book import check_marks

    store = open_store()
    check_marks(store, address, unpins=reason)
    version = store.unpin(address, reason=reason)
    left = f"still pinned: {safe(', '.join(version.pins))}" if version.pins else "not pinned"
    say(f"{version.address} is {left}")


@app.command("retire", epilog=example("muster volumes retire flights/features@3 --reason 'torn'"))
def retire(address: Where, *, reason: Why = "by hand") -> None:
    """Hide a version from every selector."""
    from muster.backends.releases.book import check_marks

    store = open_store()
    check_marks(store, address, retires=True)
    version = store.retire(address, reason=reason)
    say(f"{version.address} is retired: {safe(reason)}; `muster volumes reinstate` brings it back until gc")


@app.command("reinstate", epilog=example("muster volumes reinstate flights/features@3"))
def reinstate(address: Where) -> None:
    """Let selectors find a retired version again."""
    say(f"{open_store().reinstate(address).address} is live")


app.command("diff", epilog=example("muster volumes diff flights/model@1 flights/model@2"))(diff)


@app.command(
    "code",
    epilog=example(
        "muster volumes code flights/model@7",
        "muster volumes code flights/model@7 train.py",
        "muster volumes code b3:46ada269 train.py",
    ),
)
def show_code(
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


EVERY = 1 << 30


app.command(
    "put",
    epilog=example(
        "muster volumes put ./rows raw/flights --partition 2013-03",
        "muster volumes put s3://lake/events raw/events --connection lake",
    ),
)(transfer.put)
app.command(
    "get",
    epilog=example(
        "muster volumes get flights/model@7 ./model",
        "muster volumes get flights/model@7/model.onnx ./model.onnx",
        "muster volumes get flights/model@7 s3://lake/models/7 --connection lake",
    ),
)(transfer.get)
app.command(
    "fsck",
    epilog=example(
        "muster volumes fsck",
        "muster volumes fsck --deep",
        "muster volumes fsck --deep --repair-from /backup/muster/store",
    ),
)(upkeep.fsck)
app.command(
    "gc",
    epilog=example(
        "muster volumes gc",
        "muster volumes gc --keep 2 --young-days 7 --yes",
        "muster volumes gc flights/model --keep 1 --yes",
    ),
)(upkeep.gc)
