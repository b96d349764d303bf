"""Servers of the object stores of two clouds: fake-gcs-server and Azurite, each built or installed once into the cache."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import npm
from tests.cluster.programs import GCS, build
from tests.ports import free_port
from tests.waiting import eventually

AZURITE = Path(__file__).with_name("azurite")
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own account, which its documentation names."""
_CHANGE = """
import json, sys
import fsspec

told = json.loads(sys.argv[1])
fs = fsspec.filesystem(told["kind"], **told["options"])
for bucket in told["buckets"]:
    fs.mkdir(bucket)
for key, text in told["objects"].items():
    fs.pipe_file(key, text.encode()) if text is not None else fs.rm_file(key)
"""


class Cloud:
    """One server, asked with fsspec by the image's own Python.

    :param kind: of fsspec's file systems.
    :param extra: of a connection to it; `fields` are its login and password.
    """

    def __init__(self, *, kind: str, python: Path, folder: Path) -> None:
        self.kind, self._python, self._folder = kind, python, folder
        self.port = free_port()
        self.fields: dict[str, str] = {}
        self.extra: dict[str, Any] = {}
        self._options: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str | Path]:
        """The words that start it."""
        raise NotImplementedError

    def url(self, bucket: str, prefix: str) -> str:
        """What an ingest is given."""
        raise NotImplementedError

    def __enter__(self) -> Cloud:
        self._folder.mkdir()
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, env={"PATH": os.environ["PATH"]}
            )
        eventually(self._answers)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def change(self, objects: Mapping[str, str | None], *, buckets: Sequence[str] = ()) -> None:
        """Make buckets, write objects, and delete those whose text is None."""
        told = {
            "kind": self.kind,
            "options": self._options,
            "buckets": list(buckets),
            "objects": dict(objects),
        }
        words = [self._python, "-c", _CHANGE, json.dumps(told)]
        plain = {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}  # this server speaks HTTP alone
        subprocess.run(words, check=True, timeout=120, env={"PATH": os.environ["PATH"], **plain})

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True


class Gcs(Cloud):
    """Google's Cloud Storage, in memory."""

    def __init__(self, python: Path, folder: Path) -> None:
        super().__init__(kind="gs", python=python, folder=folder)
        where = f"http://127.0.0.1:{self.port}"
        self.extra = {"endpoint_url": where, "anon": True}
        self._options = {"endpoint_url": where, "token": "anon"}

    def command(self) -> Sequence[str | Path]:
        here = f"127.0.0.1:{self.port}"
        program = build(programs=GCS) / "fake-gcs-server"
        words = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port), "-backend", "memory"]
        return [program, *words, "-public-host", here, "-external-url", f"http://{here}"]

    def url(self, bucket: str, prefix: str) -> str:
        return f"gs://{bucket}/{prefix}"


class Azure(Cloud):
    """Azure's Blob Storage, in memory."""

    def __init__(self, python: Path, folder: Path) -> None:
        super().__init__(kind="abfs", python=python, folder=folder)
        self._options = {"connection_string": self.connection(KEY)}
        self.extra = dict(self._options)

    def connection(self, key: str) -> str:
        """What says where it is, and who asks."""
        where = f"http://127.0.0.1:{self.port}/{ACCOUNT}"
        return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key};BlobEndpoint={where};"

    def command(self) -> Sequence[str | Path]:
        words = ["--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--inMemoryPersistence", "--silent"]
        return [azurite(), *words, "--skipApiVersionCheck", "--disableTelemetry"]

    def url(self, bucket: str, prefix: str) -> str:
        return f"abfs://{bucket}/{prefix}"


def azurite() -> Path:
    """Return the program, installed by its lock into the cache."""
    return npm.installed(AZURITE) / ".bin" / "azurite-blob"
