"""Detects, while a gang trains, that two of its replicas write the same file, which no commit accepts.

Each replica lists the files that it writes in a file in the folder of seals, which all replicas of the
attempt see, and reads the lists of the replicas before it. Only names are compared: no file is opened.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

from muster.core.advice import one_replica
from muster.core.replica import Replica

EVERY_SECONDS = 20.0
_SHARE = 100  # at most one part in this many of the time goes into it
_MOST_FILES = 10_000


class Doubles:
    """The files that this replica and others write.

    :param say: writes a line to the log.
    """

    def __init__(self, replica: Replica, *, say: Callable[[str], None]) -> None:
        self._replica, self._say = replica, say
        self._folder = os.path.dirname(replica.sealed)
        self._listed: list[str] = []
        self._told: set[str] = set()
        spec = replica.spec
        names = [f"{role.name}-{index}" for role in spec.roles for index in range(role.replicas)]
        self._name = f"{replica.role}-{replica.index}"
        self._before = names[: names.index(self._name)]  # so only one of the two reports it
        self._due = (
            time.monotonic() + EVERY_SECONDS
            if len(names) > 1 and replica.staging and not replica.works
            else float("inf")
        )

    def left(self) -> float:
        """Seconds until :meth:`look` is due."""
        return self._due - time.monotonic()

    def look(self, *, now: bool = False) -> None:
        """Report files that other replicas write too, once for each of them, if it is due or `now`."""
        begun = time.monotonic()
        if self._due == float("inf") or not (now or begun >= self._due):
            return
        self._list()
        mine = set(self._listed)
        for other in self._before:
            both = sorted(mine.intersection(_read(self._path(other))))
            if both and other not in self._told:
                self._told.add(other)
                self._tell(other, both)
        took = time.monotonic() - begun
        self._due = time.monotonic() + max(EVERY_SECONDS, _SHARE * took)

    def _tell(self, other: str, both: list[str]) -> None:
        output, _, path = both[0].partition("/")
        more = f" and {len(both) - 1} more" if len(both) > 1 else ""
        self._say(
            f"[muster] warning: replicas {other} and {self._name} both write {path!r:.200}{more} of output "
            f"{output!r}: that cannot become a version; {one_replica(self._replica.spec)}"
        )

    def _list(self) -> None:
        """Write the list for the other replicas, if it has changed."""
        listed = list(islice(self._files(), _MOST_FILES))
        if listed == self._listed:
            return
        self._listed = listed
        new = f"{self._path(self._name)}.new"
        with suppress(OSError):  # the ranks report a full disk themselves
            with open(new, "w", encoding="utf-8") as file:
                json.dump(listed, file)
            os.replace(new, self._path(self._name))

    def _files(self) -> Iterator[str]:
        for output, root in sorted(self._replica.staging.items()):
            waiting = [""]
            while waiting:
                below = waiting.pop()
                with suppress(OSError), os.scandir(os.path.join(root, below)) as entries:  # it is gone by now
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(f"{below}{entry.name}/")
                        else:
                            yield f"{output}/{below}{entry.name}"

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, f"{name}.writes")


def _read(path: str) -> list[str]:
    """Read the list of another replica; empty where there is none yet."""
    with suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        listed = json.load(file)
        return [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    return []
