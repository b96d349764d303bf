"""Tells, while a gang trains, that two of its replicas write one file: no commit takes that.

Each replica leaves the list of what it writes in the folder in which the replicas of an attempt seal, which
all of them see, and looks at the lists of those before it. Names alone are read: no file is opened.
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
_SHARE = 100  # of the time at most one part in so many is spent on it
_MOST_FILES = 10_000


class Doubles:
    """What one replica of a gang knows of the files that others write.

    :param say: takes a line for the log.
    """

    def __init__(self, replica: Replica, *, say: Callable[[str], None]) -> None:
        self._replica, self._say = replica, say
        self._folder = os.path.dirname(replica.sealed)
        self._listed: list[str] = []
        self._told: set[str] = set()
        spec = replica.spec
        names = [f"{role.name}-{index}" for role in spec.roles for index in range(role.replicas)]
        self._name = f"{replica.role}-{replica.index}"
        self._before = names[: names.index(self._name)]  # so one of two says it
        self._due = time.monotonic() + EVERY_SECONDS if len(names) > 1 and replica.staging else float("inf")

    def left(self) -> float:
        """Seconds until :meth:`look` does something."""
        return self._due - time.monotonic()

    def look(self, *, now: bool = False) -> None:
        """Tell of files that others write too, each other once; where it is due, or `now`."""
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
        """Leave the list where the others see it, if there is something new on it."""
        listed = list(islice(self._files(), _MOST_FILES))
        if listed == self._listed:
            return
        self._listed = listed
        new = f"{self._path(self._name)}.new"
        with suppress(OSError):  # of a disk that is full the ranks tell themselves
            with open(new, "w", encoding="utf-8") as file:
                json.dump(listed, file)
            os.replace(new, self._path(self._name))

    def _files(self) -> Iterator[str]:
        for output, root in sorted(self._replica.staging.items()):
            waiting = [""]
            while waiting:
                below = waiting.pop()
                with suppress(OSError), os.scandir(os.path.join(root, below)) as entries:  # it went meanwhile
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(f"{below}{entry.name}/")
                        else:
                            yield f"{output}/{below}{entry.name}"

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, f"{name}.writes")


def _read(path: str) -> list[str]:
    """The list that another replica left; empty where it has none yet."""
    with suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        listed = json.load(file)
        return [each for each in listed if isinstance(each, str)] if isinstance(listed, list) else []
    return []
