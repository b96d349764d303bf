"""``muster volumes put`` and ``get``: copies in and out of the store, from and to a folder or an object store."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.command import Json, Where, open_store
from muster.cli.screen import emit, note, safe, say
from muster.core.address import Address
from muster.core.errors import Corrupt, SpecError
from muster.core.wire import plain

if TYPE_CHECKING:
    from muster.volumes.listing import Listing
    from muster.volumes.protocols import LocalStore


Connection = Annotated[
    str | None,
    typer.Option(
        metavar="ID", help="The Airflow connection with an object store's credentials and endpoint."
    ),
]


def put(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="A folder, one file, or an address such as s3://bucket/prefix."
        ),
    ],
    volume: Annotated[str, typer.Argument(metavar="VOLUME", help="Such as raw/flights; created if new.")],
    *,
    partition: Annotated[
        str | None, typer.Option(help="The new version's partition, such as 2013-03.")
    ] = None,
    origin: Annotated[str, typer.Option("--note", help="Where the data comes from, for the record.")] = "",
    connection: Connection = None,
    as_json: Json = False,
) -> None:
    """Copy a folder, file or object store's files into a new version."""
    from muster.cli import object_stores
    from muster.client.versions import add

    store = open_store(make=True)
    if object_stores.is_address(source):
        version = object_stores.fetched(
            store, source, volume, connection=connection, partition=partition, note=origin
        )
    else:
        _check_local(source, connection)
        version = add(store, Path(source), volume, partition=partition, note=origin)
    if as_json:
        emit({**plain(version), "address": version.address})
    else:
        say(safe(version.address))


def get(
    address: Where,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]",
            help="The copy's path, which must not exist; or an address such as s3://bucket/prefix. By default the last part of "
            "the address, in this folder.",
        ),
    ] = None,
    *,
    connection: Connection = None,
) -> None:
    """Copy a version, or one file of it, out of the store.

    You may change the copy; it shares disk blocks with the store if the file system supports that. A copy to an object store that was
    interrupted is completed by the same command.
    """
    from muster.cli import object_stores

    if target is None:
        wanted = Address.parse(address)
        target = (wanted.path or wanted.volume).rpartition("/")[2]
    if object_stores.is_address(target):
        store = open_store()
        told = object_stores.sent(store, _exact(store, address), target, connection=connection)
        note(f"{safe(address)} copied to {safe(target)}: {told['files']} files, {told['sent']} of them sent")
        return
    _check_local(target, connection)
    _get(address, Path(target))


def _check_local(place: str, connection: str | None) -> None:
    if connection is not None:
        raise SpecError(
            f"--connection {connection}: {place} is of this machine; name an object store, such as s3://bucket/prefix"
        )


def _exact(store: LocalStore, address: str) -> str:
    """Name the one version that an address selects now, and the file in it."""
    wanted, version = Address.parse(address), store.resolve(address)[0]
    if wanted.many:
        return address  # for which the store raises the error
    return "/".join(filter(None, (version.address, wanted.path)))


def _get(address: str, target: Path) -> None:
    if os.path.lexists(target):
        raise SpecError(f"{target} already exists: name another target")
    store = open_store()
    wanted, version = Address.parse(address), store.resolve(address)[0]
    address = _exact(store, address)
    source = store.path(address)
    entries = store.manifest(version.address)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _copy(source, target, entries, inner=wanted.path)
    except OSError as error:
        where = f" ({Path(error.filename).name!r:.200})" if error.filename else ""
        raise SpecError(f"{address} cannot be copied to {target}: {error.strerror}{where}") from error
    note(f"{safe(source)} copied to {safe(target)}")


def _copy(source: Path, target: Path, entries: Listing, *, inner: str) -> None:
    """Copy beside the target and rename, so that an interrupted copy never looks complete.

    :raises Corrupt: a file differs from its committed content.
    """
    from muster.volumes import tree

    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        if source.is_dir():
            tree.copy_tree(source, part)
        else:
            tree.copy_file(str(source), str(part))
        _check(part, entries, inner)
        part.rename(target)
    finally:
        tree.remove(part)


def _check(copy: Path, entries: Listing, inner: str) -> None:
    """Check the copy against the manifest, to find damaged bytes."""
    from muster.volumes.hashing import hash_file

    for entry in entries.below(inner):
        path = entry.path
        copied = copy if path == inner else copy / path[len(inner) + 1 if inner else 0 :]
        if not copied.is_file() or hash_file(str(copied)) != entry.hash:
            raise Corrupt(
                f"{path!r:.200} differs from what was committed: nothing was copied. `muster volumes fsck --deep` names all "
                "such files; retire this version and run the stage that wrote it again, or bring its bytes from a mirror (--repair-from)"
            )
