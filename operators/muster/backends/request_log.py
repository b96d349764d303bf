"""The requests that deployments keep: from the spool files of model servers to versions of ``NAME/predictions``, and found again.

Each hour is a partition; its newest version holds every row of it so far. A version tells, in its Parquet files, up to where each spool
file was read, so a commit may be repeated or killed at any point: nothing is lost, and nothing is there twice. A spool file that no
server holds is deleted once a version has it. Rows that come late, or a commit by hand within the hour, make one more version of the partition.

:mod:`muster.volumes.spool` says where those files are.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from muster.core.errors import BackendError, MusterError, NotFound, StoreError
from muster.core.interpreters import python_command
from muster.core.locks import is_locked, locked
from muster.core.prediction import PredictionId, hour_of, predictions_volume
from muster.core.settings import Settings
from muster.core.shipped import SERVE, shipped
from muster.images.environment import Environments
from muster.images.folders import find_image, image_digest, image_folders
from muster.volumes.base import Version
from muster.volumes.protocols import LocalStore
from muster.volumes.retention import RetentionRules, outlived
from muster.volumes.spool import WRITTEN_SECONDS, Spool

_UNREAD = "; in _unread, since they cannot be read: "  # a note's end, before their number
_PAGE_VERSIONS = 20


class NotRetired(BackendError):
    """All requests are committed, but hours that their log keeps no more are not retired; the next commit that makes a version tries it."""


class Decoder(Protocol):
    """Runs a module of the model server's in its image: muster itself reads no Parquet files."""

    def __call__(
        self,
        module: str,
        *words: str | Path,
        order: Mapping[str, Any] | None = None,
        progress: Callable[[str], None] = lambda _line: None,
    ) -> Any:
        """Return what it prints, read as JSON. :raises BackendError: it failed; the message says why."""


class _Hour(NamedTuple):
    """One hour of a deployment's requests, and the files that they are spooled in. :ivar progress: as in :meth:`Predictions.commit`."""

    spool: Spool
    hour: str
    files: Sequence[Path]
    progress: Callable[[str], None]


class Predictions:
    """The requests of all deployments of one home, in its store and not there yet.

    :param decoder: None for one that makes the image's environment on this machine.
    """

    def __init__(self, settings: Settings, store: LocalStore, *, decoder: Decoder | None = None) -> None:
        self._settings = settings
        self._store = store
        self._ask = decoder or LocalDecoder(settings)

    def commit(
        self,
        name: str,
        *,
        only_over: bool = False,
        progress: Callable[[str], None] = lambda _line: None,
    ) -> tuple[Version, ...]:
        """Commit what servers have spooled; return the versions that were made, none where there is nothing new.

        :param only_over: leave out the present hour, so that each hour is one version.
        :param progress: is told how far the environment is that this needs, where it has to be built.
        :raises BackendError: an hour could not be committed, the others were: the disk is full, say. It is still spooled.
        :raises NotRetired: all were committed.
        """
        spool = Spool(self._settings.home, name)
        if not spool.path.is_dir():
            return ()
        made, troubles, keep = [], list[BackendError](), None
        with locked(spool.lock):
            spool.tidy(time.time())
            for hour, files in spool.hours().items():
                if only_over and (hour >= hour_of(time.time()) or all(map(is_locked, files))):
                    continue
                try:
                    if found := self._commit(_Hour(spool, hour, files, progress)):
                        version, keep = found
                        made.append(version)
                except BackendError as error:  # the next hour may do
                    troubles.append(error)
            kept = self._retire_old(name, keep) if keep else ""
        if troubles:
            more = f"; and so in {len(troubles) - 1} hours more" if troubles[1:] else ""
            raise BackendError(f"{troubles[0]}{more}{kept and '; and '}{kept}") from troubles[0]
        if kept:
            raise NotRetired(f"the requests of {name} are committed, but {kept}")
        return tuple(made)

    def commit_answered(
        self, name: str, *, progress: Callable[[str], None] = lambda _line: None
    ) -> tuple[Version, ...]:
        """Commit all requests that were answered before this call, also those that no server has written yet.

        See :meth:`commit`.
        """
        if Spool(self._settings.home, name).path.is_dir():
            time.sleep(WRITTEN_SECONDS)  # that is when a server has written what it answered
        return self.commit(name, progress=progress)

    def find(self, identity: PredictionId) -> tuple[list[dict[str, Any]], Version | None]:
        """Return a prediction's rows and the version that holds them; None where no version does yet.

        :raises NotFound: they are not there.
        """
        volume = predictions_volume(identity.deployment)
        version = self._newest(volume, identity.hour)
        spool = Spool(self._settings.home, identity.deployment)
        paths = [
            *([self._store.path(version.address)] if version else []),
            *spool.hours().get(identity.hour, []),
        ]
        if paths:
            rows = self._ask("find", identity.text, paths[0]) if version else []
            if rows:
                return rows, version
            if rows := self._ask("find", identity.text, *paths):
                return rows, None
        raise NotFound(
            f"prediction {identity.text}: no row has this id in hour {identity.hour} of {volume}"
            + ("" if version else ", of which there is no version")
            + ". Its deployment must have been served with log=RequestLog(…), here or where this store is"
        )

    def _commit(self, of: _Hour) -> tuple[Version, Mapping[str, Any] | None] | None:
        """Commit one hour as far as it is spooled, and delete the files that end there; return as :meth:`_added`."""
        ended = [file for file in of.files if not is_locked(file)]  # before they are read
        try:
            made = self._added(of)
            for file in ended:
                file.unlink()
        except (OSError, BackendError, StoreError) as error:
            name = of.spool.name
            raise BackendError(
                f"requests of {name} in {of.hour} are not committed ({error}); they still wait to be: once that is "
                f"mended, such as a full disk, run `muster predictions commit {name}`"
            ) from error
        return made

    def _added(self, of: _Hour) -> tuple[Version, Mapping[str, Any] | None] | None:
        """Return a version that was made of what the newest of the hour lacks, and what the log keeps; None where that has all.

        Where another commit was at work meanwhile, of this spool elsewhere, the newest version must not be one that knows
        nothing of the other: it is hidden, and what the other lacks is added to that.
        """
        volume, made = predictions_volume(of.spool.name), None
        while True:
            known = self._last(volume)
            added = self._add(of, self._newest(volume, of.hour))
            if added is None:
                return made
            version, _ = added
            others = [number for number in self._since(volume, of.hour, known) if number != version.number]
            if not others:
                return added
            if version.number > max(others):
                reason = f"made beside version {max(others)}, without its requests"
                self._store.retire(version.address, reason=reason)
            else:
                made = added

    def _add(self, of: _Hour, earlier: Version | None) -> tuple[Version, Mapping[str, Any] | None] | None:
        spool = of.spool
        with tempfile.TemporaryDirectory(dir=spool.path, prefix=".commit-") as out:
            order = {
                "spool": [str(file) for file in of.files],
                "earlier": str(self._store.path(earlier.address)) if earlier else None,
                "out": out,
            }
            found = self._ask("collect", order=order, progress=of.progress)
            if not found["rows"] and not found["unread"]:
                return None
            unread = found["unread"] + (_unread(self._store, earlier) if earlier else 0)
            version = self._store.add(
                predictions_volume(spool.name),
                Path(out),
                partition=of.hour,
                note=f"requests of deployment {spool.name}" + (f"{_UNREAD}{unread}" if unread else ""),
                request=_request(earlier, found["read"]),
            )
        return version, found.get("keep")

    def _retire_old(self, name: str, keep: Mapping[str, Any]) -> str:
        """Retire the hours that the log does not keep any more; gc deletes them. Return what went wrong; empty if nothing did."""
        try:
            rules = RetentionRules(
                keep_partitions=keep.get("keep_partitions"), partition_days=keep.get("partition_days")
            )
            for version in outlived(self._store.versions(predictions_volume(name)), rules):
                with suppress(NotFound):  # gc deleted it meanwhile
                    self._store.retire(version.address, reason="its request log keeps only younger hours")
        except (OSError, MusterError) as error:
            return f"hours that its log keeps no more are not retired: {error}"
        return ""

    def _last(self, volume: str) -> int:
        """Return the highest number of a volume's versions; 0 where there is none."""
        try:
            return max((one.number for one in self._store.newest(volume, limit=1)), default=0)
        except NotFound:
            return 0

    def _since(self, volume: str, hour: str, known: int) -> Iterator[int]:
        """Yield the number of each version of an hour that came after a number, and is not hidden."""
        before: int | None = None
        while page := self._store.newest(volume, limit=_PAGE_VERSIONS, before=before):
            for one in page:
                if one.number <= known:
                    return
                if one.partition == hour and one.retired is None:
                    yield one.number
            before = page[-1].number

    def _newest(self, volume: str, hour: str) -> Version | None:
        try:
            (version,) = self._store.resolve(f"volume://{volume}@{hour}")
        except NotFound:
            return None
        return version


class LocalDecoder:
    """A :class:`Decoder` in the image's environment on this machine."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def __call__(
        self,
        module: str,
        *words: str | Path,
        order: Mapping[str, Any] | None = None,
        progress: Callable[[str], None] = lambda _line: None,
    ) -> Any:
        """Run the module in a process of its own."""
        python = self.prepare(progress)
        done = subprocess.run(
            python_command("-m", f"muster_serving.{module}", *map(str, words), of=python),
            input=json.dumps(order),
            capture_output=True,
            check=False,
            text=True,
            env={**os.environ, "PYTHONPATH": str(shipped("serving"))},
        )
        if done.returncode:
            said = done.stderr.strip().splitlines()
            raise BackendError(
                f"the requests cannot be read: {said[-1] if said else f'exit code {done.returncode}'}"
            )
        return json.loads(done.stdout)

    def prepare(self, progress: Callable[[str], None] = lambda _line: None) -> Path:
        """Make the image's environment, if there is none yet; return its Python."""
        folder = find_image(SERVE, image_folders(self._settings))
        return Environments(self._settings.cache).ensure(SERVE, folder, image_digest(folder), progress)


def unread(store: LocalStore, name: str) -> Mapping[str, int]:
    """Return how many requests of a deployment could not be read, by the address of the version that holds them as they came.

    Its newest 24 versions are looked at.
    """
    newest: dict[str | None, Version] = {}
    with suppress(NotFound):
        for version in store.newest(predictions_volume(name), limit=24):
            if version.retired is None:
                newest.setdefault(version.partition, version)
    return {each.address: number for each in newest.values() if (number := _unread(store, each))}


def _unread(store: LocalStore, version: Version) -> int:
    _, _, number = store.record(version.address).note.partition(_UNREAD)
    return int(number) if number.isdecimal() else 0


def _request(earlier: Version | None, read: Mapping[str, int]) -> str:
    """Name a commit by what it is made of, so that one that is repeated after a crash makes the same version."""
    said = json.dumps([earlier.digest if earlier else "", sorted(read.items())])
    return hashlib.sha256(said.encode()).hexdigest()[:16]
