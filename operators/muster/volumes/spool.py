"""Where model servers put the requests of one deployment until a version holds them: a folder of spool files.

::

    ROOT/predictions/NAME/HOUR.PID-HEX.spool   requests of one server process; it holds the file's lock
                          key                  of the hashes of hashed columns
    ROOT/predictions/.locks/NAME               held to commit

ROOT is a machine's home, and on a cluster the store's folder on the claim. There another node may not see a lock, and one that is lost
may keep it, so time alone tells which files are settled: a server writes a request within a second, and its file ends with the hour.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG

from muster.core.holding import closing_handle, write_all
from muster.core.locks import is_locked
from muster.core.names import check_label
from muster.core.prediction import hour_of
from muster.volumes.durability import sync_folder
from muster.volumes.tree import open_regular

SUFFIX = ".spool"
WRITTEN_SECONDS = 1.0
"""A server has written a request this long after its answer."""
HALF_MADE_SECONDS = 3600.0
SETTLED_SECONDS = 300.0
KEY = "key"
_KEY_BYTES = 32

_KEY = re.compile(rb"[0-9a-f]{%d}\Z" % (2 * _KEY_BYTES))
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

        What is there in a key's place, and is none, is put aside. Two at once need a lock of their own.

        :raises OSError: it cannot be made.
        """
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        place = self.path / KEY
        if (found := _key(place)) is None:
            with suppress(FileNotFoundError):
                place.rename(self.path / f".{KEY}-{secrets.token_hex(8)}")
            found = secrets.token_hex(_KEY_BYTES)
            _write_new(place, found.encode("ascii"))
        return found

    def hours(self) -> dict[str, list[Path]]:
        """Return the files by hour, the oldest first."""
        found: dict[str, list[Path]] = defaultdict(list)
        for file in sorted(self.path.glob(f"[!.]*{SUFFIX}")):
            if match := _NAME.match(file.name):
                found[match["hour"]].append(file)
        return dict(found)

    def settled(self, now: float) -> dict[str, list[Path]]:
        """Return the files, and no links, to which nothing is added any more, by hour, told by time alone.

        Their hour is over and no server has written them for some minutes; of an hour that has others, none are returned.
        """
        found = {}
        for hour, files in self.hours().items():
            seen = {file: status for file in files if (status := _status(file)) and S_ISREG(status.st_mode)}
            quiet = all(status.st_mtime < now - SETTLED_SECONDS for status in seen.values())
            if seen and quiet and hour < hour_of(now):
                found[hour] = list(seen)
        return found

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


def _key(place: Path) -> str | None:
    """Return a key; None where there is none. A server can write here: no link is followed, and little is read."""
    try:
        handle = open_regular(str(place))
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as file:
        found = file.read(2 * _KEY_BYTES + 1)
    return found.decode("ascii") if _KEY.match(found) else None


def _write_new(place: Path, data: bytes) -> None:
    """Write a file that does not exist. :raises OSError: it does."""
    handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with closing_handle(handle):
        write_all(handle, data)
        os.fsync(handle)
    sync_folder(place.parent)


def _status(file: Path) -> os.stat_result | None:
    try:
        return file.lstat()
    except FileNotFoundError:  # another has just committed it
        return None
