"""The requests that deployments keep: from the spool files of model servers to versions of ``NAME/predictions``, and found again.

Each hour is a partition; its newest version holds every row of it so far. A version tells, in its Parquet files, up to where each spool
file was read, so a commit may be repeated or killed at any point: nothing is lost, and nothing is there twice. A spool file that no
server holds is deleted once a version has it. Rows that come late, or a commit by hand within the hour, make one more version of the partition.

::

    HOME/predictions/NAME/HOUR.PID-HEX.spool   requests of one server process; it holds the file's lock
                          key                  of the hashes of hashed columns
    HOME/predictions/.locks/NAME               held to commit
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from muster.core.errors import BackendError, NotFound
from muster.core.locks import is_locked, locked
from muster.core.names import check_label
from muster.core.prediction import PredictionId, hour_of, predictions_volume
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.images.environment import Environments
from muster.images.folders import find_image, image_digest, image_folders
from muster.volumes.base import Version
from muster.volumes.durability import write_whole
from muster.volumes.protocols import LocalStore

IMAGE = "serve"
SUFFIX = ".spool"
HALF_MADE_SECONDS = 3600.0
KEY = "key"
KEY_BYTES = 32

_NAME = re.compile(r"(?P<hour>\d{4}-\d\d-\d\dT\d\d)\.\d+-[0-9a-f]+\.spool\Z")


class Spool:
    """The spool files of one deployment."""

    def __init__(self, home: Path, name: str) -> None:
        root = home / "predictions"
        self.name = check_label("deployment", name)
        self.path = root / name
        self.lock = root / ".locks" / name

    def begin(self) -> str:
        """Make the folder, and return the key of its hashes, in hexadecimal; it stays the same as long as the home does.

        :raises OSError: it cannot be made.
        """
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        key = self.path / KEY
        with locked(self.lock):
            if not key.exists():
                write_whole(key, secrets.token_hex(KEY_BYTES))
        return key.read_text(encoding="ascii")

    def hours(self) -> dict[str, list[Path]]:
        """Return the files by hour, the oldest first."""
        found: dict[str, list[Path]] = defaultdict(list)
        for file in sorted(self.path.glob(f"[!.]*{SUFFIX}")):
            if match := _NAME.match(file.name):
                found[match["hour"]].append(file)
        return dict(found)

    def tidy(self, now: float) -> None:
        """Delete what a killed server or a killed commit has left half-made. Call it with the lock held."""
        for left in self.path.glob(".commit-*"):
            shutil.rmtree(left)
        for part in self.path.glob(f".*{SUFFIX}"):
            if part.stat().st_mtime < now - HALF_MADE_SECONDS and not is_locked(part):
                part.unlink(missing_ok=True)

    def over(self, now: float) -> bool:
        """Whether an hour is over of which a file waits that no server writes any more."""
        return any(
            hour < hour_of(now) and not all(map(is_locked, files)) for hour, files in self.hours().items()
        )


class Predictions:
    """The requests of all deployments of one home, in its store and not there yet."""

    def __init__(self, settings: Settings, store: LocalStore) -> None:
        self._settings = settings
        self._store = store

    def commit(
        self,
        name: str,
        *,
        only_over: bool = False,
        now: Callable[[], float] = time.time,
        progress: Callable[[str], None] = lambda _line: None,
    ) -> tuple[Version, ...]:
        """Commit what servers have spooled; return the versions that were made, none where there is nothing new.

        :param only_over: leave out the present hour, so that each hour is one version.
        :param progress: is told how far the environment is that this needs, where it has to be built.
        :raises BackendError: a spool file cannot be read, or the disk is full; what was not committed is still spooled.
        """
        spool = Spool(self._settings.home, name)
        if not spool.path.is_dir():
            return ()
        made = []
        with locked(spool.lock):
            spool.tidy(now())
            for hour, files in spool.hours().items():
                if only_over and (hour >= hour_of(now()) or all(map(is_locked, files))):
                    continue
                if (version := self._commit(spool, hour, files, progress)) is not None:
                    made.append(version)
        return tuple(made)

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

    def _commit(
        self, spool: Spool, hour: str, files: Sequence[Path], progress: Callable[[str], None]
    ) -> Version | None:
        """Commit one hour as far as it is spooled, and delete the files that end there."""
        ended = [file for file in files if not is_locked(file)]  # before they are read
        volume = predictions_volume(spool.name)
        earlier = self._newest(volume, hour)
        try:
            with tempfile.TemporaryDirectory(dir=spool.path, prefix=".commit-") as out:
                order = {
                    "spool": [str(file) for file in files],
                    "earlier": str(self._store.path(earlier.address)) if earlier else None,
                    "out": out,
                }
                found = self._ask("collect", order=order, progress=progress)
                version = None
                if found["rows"]:
                    version = self._store.add(
                        volume,
                        Path(out),
                        partition=hour,
                        note=f"requests of deployment {spool.name}",
                        request=_request(earlier, found["read"]),
                    )
            for file in ended:
                file.unlink()
        except OSError as error:
            raise BackendError(
                f"requests of {spool.name} in {hour} are not committed ({error}); they stay in {spool.path}"
            ) from error
        return version

    def _newest(self, volume: str, hour: str) -> Version | None:
        try:
            (version,) = self._store.resolve(f"volume://{volume}@{hour}")
        except NotFound:
            return None
        return version

    def _ask(
        self,
        module: str,
        *words: str | Path,
        order: Mapping[str, Any] | None = None,
        progress: Callable[[str], None] = lambda _line: None,
    ) -> Any:
        """Run a module of the model server's in its image: muster itself reads no Parquet files."""
        folder = find_image(IMAGE, image_folders(self._settings))
        python = Environments(self._settings.cache).ensure(IMAGE, folder, image_digest(folder), progress)
        done = subprocess.run(
            [str(python), "-P", "-m", f"muster_serving.{module}", *map(str, words)],
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


def _request(earlier: Version | None, read: Mapping[str, int]) -> str:
    """Name a commit by what it is made of, so that one that is repeated after a crash makes the same version."""
    said = json.dumps([earlier.digest if earlier else "", sorted(read.items())])
    return hashlib.sha256(said.encode()).hexdigest()[:16]
