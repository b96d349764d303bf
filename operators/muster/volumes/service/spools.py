"""The client of :mod:`muster.volumes.service.spooling`, and the messages of the two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from muster.core.names import check_label
from muster.core.wire import dumps, loads
from muster.volumes.gather import check_path
from muster.volumes.service.archives import unpack
from muster.volumes.service.connection import Connection

AT = "/v1/predictions"


@dataclass(frozen=True, kw_only=True)
class SpooledHour:
    """An hour of a deployment's requests that is over, of which files wait; :attr:`hour` is such as ``2026-11-26T07``."""

    deployment: str
    hour: str


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """All hours that wait, by deployment, the oldest first."""

    hours: tuple[SpooledHour, ...]


@dataclass(frozen=True, kw_only=True)
class Read:
    """The files that were read, each with the bytes that it had."""

    sizes: Mapping[str, int]


class ServiceSpools:
    """The requests that wait on a cluster's claim."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def open(self, deployment: str) -> None:
        """Make the folder where the pods of a deployment may keep requests. Idempotent.

        :raises SpecError: nothing on that cluster commits them.
        """
        self._connection.request("PUT", f"{AT}/{check_label('deployment', deployment)}")

    def waiting(self) -> tuple[SpooledHour, ...]:
        """Return the hours that can be committed."""
        return loads(Waiting, self._connection.request("GET", AT, slow=True).content).hours

    def fetch(self, hour: SpooledHour, folder: Path) -> dict[str, int]:
        """Write the files of an hour into `folder`, which is empty; return the bytes of each.

        :raises NotFound: another has committed them; :raises Unavailable: the service went away: ask again.
        """
        with self._connection.stream(f"{AT}/{hour.deployment}/{hour.hour}") as archive:
            return unpack(archive, folder, check=lambda path: check_path(path, output="predictions"))

    def drop(self, hour: SpooledHour, sizes: Mapping[str, int]) -> None:
        """Delete files that a version has, but for those that have grown since they were fetched."""
        path = f"{AT}/{hour.deployment}/{hour.hour}/drop"
        self._connection.request("POST", path, content=dumps(Read(sizes=sizes)).encode())
