"""A server of Amazon's S3 over a folder: versitygw, built once into the cache."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

from tests.cluster.programs import S3, build
from tests.ports import free_port
from tests.waiting import eventually

USER, WORD = "muster-test", "a-word-of-the-tests"


class ObjectStore:
    """One server. A bucket is a folder below :attr:`folder`, and an object a file in it.

    :ivar url: where it answers.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "buckets"
        self.folder.mkdir(parents=True)
        self._log = folder / "s3.log"
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ObjectStore:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        program = build(programs=S3) / "versitygw"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [program, "--port", f"127.0.0.1:{self._port}", "posix", self.folder],
                env={"PATH": os.environ["PATH"], "ROOT_ACCESS_KEY": USER, "ROOT_SECRET_KEY": WORD},
                stdout=log,
                stderr=log,
            )
        eventually(self._answers)

    def stop(self) -> None:
        """Kill it: it is away from one moment to the next."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def put(self, key: str, data: bytes | str) -> Path:
        """Write an object, whole: it is at no moment another one's part."""
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        part = self.folder.parent / "part"
        part.write_bytes(data if isinstance(data, bytes) else data.encode())
        return part.replace(path)

    def variables(self, *, word: str = WORD) -> dict[str, str]:
        """What a job's connection is to this server, by variable; the extra's fields in the order of their names."""
        return {
            "INGEST_LOGIN": USER,
            "INGEST_PASSWORD": word,
            "INGEST_EXTRA_0": self.url,
            "INGEST_EXTRA_1": "us-east-1",
        }

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True


EXTRAS = ("endpoint_url", "region_name")
