"""Copies between the store and an object store, by the image ``ingest`` in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.cli.progress import progress
from muster.core.errors import SpecError, StoreError
from muster.core.ingest import KAFKA, PACKAGE, SQL, Source
from muster.core.interpreters import python_command
from muster.core.settings import Settings

if TYPE_CHECKING:
    from muster.volumes.base import Version
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
