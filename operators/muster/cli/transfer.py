"""``muster volumes put`` and ``get``: copies in and out of the store, from and to a folder or an object store."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from muster.cli.command import Json, Where, open_store
from muster.cli.progress import progress
from muster.cli.screen import emit, note, safe, say
from muster.core.address import Address
from muster.core.errors import Corrupt, SpecError, StoreError
from muster.core.ingest import KAFKA, PACKAGE, SQL, Source
from muster.core.interpreters import python_command
from muster.core.settings import Settings
from muster.core.wire import plain

if TYPE_CHECKING:
    from muster.volumes.base import Version
    from muster.volumes.listing import Listing
    from muster.volumes.protocols import LocalStore


_PASSED = (
    "PATH",
    "HOME",
    "TMPDIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
)


_CLIENTS = ("AWS_", "AZURE_", "GOOGLE_")
"""What the variables begin with from which the clients of object stores take credentials and endpoints."""


def is_address(text: str) -> bool:
    """Whether a source or target is outside of this machine's folders: ``s3://bucket/prefix``."""
    return "://" in text


def fetched(
    store: LocalStore, url: str, volume: str, *, connection: str | None, partition: str | None, note: str
) -> Version:
    """Copy all that lies below an address into a new version. What the version before holds is shared with it.

    :raises SpecError: it is no address, or the source refuses or does not answer; nothing is in the store then.
    """
    from muster.client.versions import add

    source = _source(url, connection)
    settings = Settings.load()
    settings.make_home()
    with tempfile.TemporaryDirectory(prefix="put-", dir=settings.home) as folder:
        _run("put", source, Path(folder), store, settings)
        return add(store, Path(folder), volume, partition=partition, note=note or f"put from {url}")


def sent(store: LocalStore, address: str, url: str, *, connection: str | None) -> Mapping[str, Any]:
    """Copy a version's files, or those of a folder in it, to their paths below an address.

    :raises SpecError: something else lies there, or the target refuses or does not answer; calling it again goes on.
    """
    if url.lower().startswith(("http://", "https://")):
        raise SpecError(
            f"{url} is a web server, to which nothing is copied: name a folder, s3://bucket/prefix, gs://, abfs:// or sftp://"
        )
    source = _source(url, connection)
    folder = store.path(address)
    if not folder.is_dir():
        raise SpecError(f"{address} is one file: name the version, or a folder in it")
    return _run("get", source, folder, store, Settings.load())


def _source(url: str, connection: str | None) -> Source:
    for scheme, what in ((SQL, "query"), (KAFKA, "topic")):
        if url.startswith(f"{scheme}://"):
            raise SpecError(f"a {what} is ingested by a Dag: IngestOperator(source={url!r:.120}, …)")
    return Source(url=url, connection=connection)


def _run(verb: str, source: Source, folder: Path, store: LocalStore, settings: Settings) -> Mapping[str, Any]:
    from muster.airflow.outside import outside_connection
    from muster.images.environment import Environments
    from muster.images.folders import find_image, image_folders, put_image

    image = find_image("ingest", image_folders(settings))
    with progress() as tell:
        image_python = Environments(settings.cache).ensure("ingest", image, put_image(store, image), tell)
    connection = outside_connection(source.conn_id) if source.conn_id else None
    told: dict[str, Any] = {"kind": connection.kind, "extras": connection.extras} if connection else {}
    values = connection.values() if connection else {}
    what = {**source.param(**told), "folder": str(folder)}
    environment = passed(os.environ, connected=connection is not None) | values
    last = ""
    with (
        progress() as tell,
        _program(image) as path,
        subprocess.Popen(
            python_command("-m", f"{PACKAGE}.copying", verb, json.dumps(what), of=image_python),
            env={**environment, "PYTHONPATH": str(path)},
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None, "it is a pipe"
        try:
            for last in process.stdout:
                if not last.startswith(("muster: ", "{")):  # a count of files, or how it ended
                    tell(last.rstrip())
        except BaseException:  # nothing is copied any more once this has ended
            process.kill()
            raise
    try:
        ending: Mapping[str, Any] = json.loads(last)
    except ValueError as error:
        raise StoreError(f"the copy with {source.url} failed; what it says stands above") from error
    if "error" in ending:
        raise SpecError(str(ending["error"]))
    return ending


def passed(environ: Mapping[str, str], *, connected: bool) -> dict[str, str]:
    """Return the variables that the program is given: without a connection those of the stores' own clients, too."""
    return {
        name: value
        for name, value in environ.items()
        if name in _PASSED or (name.startswith(_CLIENTS) and not connected)
    }


@contextmanager
def _program(image: Path) -> Iterator[Path]:
    """Lend a folder with the program alone: Python may write its bytecode there."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(image / PACKAGE, Path(folder) / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
        yield Path(folder)


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
    from muster.client.versions import add

    store = open_store(make=True)
    if is_address(source):
        version = fetched(store, source, volume, connection=connection, partition=partition, note=origin)
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
    if target is None:
        wanted = Address.parse(address)
        target = (wanted.path or wanted.volume).rpartition("/")[2]
    if is_address(target):
        store = open_store()
        told = sent(store, _exact(store, address), target, connection=connection)
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
