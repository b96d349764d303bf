"""Commits the requests that the model servers of a cluster keep: ``python -m muster.backends.kubernetes.collecting``.

A CronJob of the chart runs it each hour, in a pod of two containers. This one has a token of the store's, and reads no file that a model
server wrote; the other, in the image ``serve``, reads them and has no token. They share a folder, and a socket in it.

It may be killed at any point, and two of them do what one does: hours are fetched, committed and then dropped, and a version tells up to
where it holds each file.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from muster.backends.kubernetes.cluster_file import read_file
from muster.backends.kubernetes.serving.server import archive
from muster.backends.request_log import Decoder, LocalDecoder, NotRetired, Predictions
from muster.core.errors import BackendError, MusterError, NotFound, SpecError
from muster.core.patience import Patience
from muster.core.settings import Settings
from muster.volumes.base import Version
from muster.volumes.durability import translated
from muster.volumes.service.client import ServiceStore
from muster.volumes.service.spools import ServiceSpools, SpooledHour
from muster.volumes.spool import Spool

CONNECT_SECONDS = 300.0  # until the other container runs: its image may have to be pulled


class ClusterCollecting:
    """The requests that wait on one cluster.

    :param decoder: reads spool files; None for one that makes the image's environment on this machine.
    """

    def __init__(self, settings: Settings, store: ServiceStore, *, decoder: Decoder | None = None) -> None:
        self._settings = settings
        self._store = store
        self._spools = ServiceSpools(store.connection)
        self._decoder = decoder or LocalDecoder(settings)

    def run(
        self,
        made: Callable[[Version], None],
        *,
        name: str = "",
        progress: Callable[[str], None] = lambda _line: None,
    ) -> Iterator[str]:
        """Commit all that waits; yield what went wrong, and go on with the other hours.

        :param made: is told of each version. :param name: of one deployment alone.
        """
        for hour in in_turn(each for each in self._spools.waiting() if name in ("", each.deployment)):
            try:
                for version in self.commit(hour, progress=progress):
                    made(version)
            except MusterError as error:
                yield f"{hour.deployment}, {hour.hour}: {' '.join(str(error).split())}"

    def commit(
        self, hour: SpooledHour, *, progress: Callable[[str], None] = lambda _line: None
    ) -> tuple[Version, ...]:
        """Commit an hour and drop its files; return the version that was made, none where one had all of it.

        :raises BackendError: a file cannot be read; all of the hour still waits. :raises NotRetired: nothing waits any more.
        """
        if isinstance(
            self._decoder, LocalDecoder
        ):  # before, and not while another may commit what was fetched
            self._decoder.prepare(progress)
        self._settings.home.mkdir(parents=True, exist_ok=True)
        with (
            translated(f"commit the requests of {hour.deployment} in {hour.hour}"),
            tempfile.TemporaryDirectory(dir=self._settings.home, prefix=".requests-") as home,
        ):
            spool = Spool(Path(home), hour.deployment)
            spool.path.mkdir(parents=True)
            try:
                sizes = self._spools.fetch(hour, spool.path)
            except NotFound:  # another was first
                return ()
            here = replace(self._settings, home=Path(home))
            try:
                made = Predictions(here, self._store, decoder=self._decoder).commit(
                    hour.deployment, progress=progress
                )
            except NotRetired:  # the hour is committed
                self._spools.drop(hour, sizes)
                raise
            self._spools.drop(hour, sizes)
            return made


class SocketDecoder:
    """A :class:`~muster.backends.request_log.Decoder` in another container: ``muster_serving.collect --listen``.

    :raises BackendError: nothing listens.
    """

    def __init__(self, path: Path) -> None:
        self._line = _connected(path)
        self._file = self._line.makefile("rwb")

    def __call__(
        self,
        module: str,
        *words: str | Path,
        order: Mapping[str, Any] | None = None,
        progress: Callable[[str], None] = lambda _line: None,  # noqa: ARG002 nothing is built there
    ) -> Any:
        """Have an order carried out. :raises BackendError: it failed, or the other container has ended."""
        if module != "collect" or words:
            raise BackendError(f"muster_serving.{module} is not reached by this socket: collect alone is")
        try:
            self._file.write(json.dumps(order).encode() + b"\n")
            self._file.flush()
            line = self._file.readline()
        except OSError:
            line = b""
        answer = json.loads(line or b'{"error": "the container that reads them has ended"}')
        if "error" in answer:
            raise BackendError(f"the requests cannot be read: {answer['error']}")
        return answer

    def close(self) -> None:
        """Have the other container end, if it has not."""
        with suppress(OSError):
            self._file.close()
        self._line.close()


def _connected(path: Path) -> socket.socket:
    def connect() -> socket.socket:
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(str(path))
        except OSError:
            line.close()
            raise
        return line

    try:
        return Patience(CONNECT_SECONDS, first=0.1, longest=2.0).persist(connect)
    except OSError as error:
        raise BackendError(f"nothing reads spool files at {path} ({error.strerror})") from error


def in_turn(hours: Iterable[SpooledHour]) -> Iterator[SpooledHour]:
    """Yield one hour of each deployment after the other, its oldest first: none waits for all of another's."""
    of: dict[str, list[SpooledHour]] = defaultdict(list)
    for hour in sorted(hours, key=lambda each: (each.hour, each.deployment)):
        of[hour.deployment].append(hour)
    for turn in zip_longest(*of.values()):
        yield from (hour for hour in turn if hour)


def main(arguments: Sequence[str]) -> int:
    """Write the model servers' code, or commit what waits; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m muster.backends.kubernetes.collecting")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--write-code", type=Path, metavar="FILE", help="write the code that reads spool files")
    task.add_argument("--decoder", type=Path, metavar="SOCKET", help="where that code listens")
    asked = parser.parse_args(arguments)
    if asked.write_code:
        asked.write_code.write_bytes(archive())
        return 0
    settings = Settings.load()
    try:
        with _store(settings) as store, closing(SocketDecoder(asked.decoder)) as decoder:
            return sum(map(_tell, ClusterCollecting(settings, store, decoder=decoder).run(_say))) and 1
    except MusterError as error:
        return _tell(str(error))


def _store(settings: Settings) -> ServiceStore:
    if settings.cluster is None:
        raise SpecError("MUSTER_CLUSTER names no cluster whose requests could be committed")
    cluster = read_file(settings.cluster).settings
    return ServiceStore(cluster.store_url, token=cluster.token, cache=settings.cache / "store")


def _tell(trouble: str) -> int:
    """Say what went wrong, as it happens: this may be killed at any point."""
    sys.stderr.write(f"{trouble}\n")
    sys.stderr.flush()
    return 1


def _say(version: Version) -> None:
    sys.stdout.write(f"{version.partition}  {version.address}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
