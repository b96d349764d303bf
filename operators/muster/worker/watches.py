"""Looks at a replica while its ranks run: whether it hangs, what no version keeps, what two replicas write, and old checkpoints."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice

from muster.core.advice import one_replica
from muster.core.data import CHECKPOINTS
from muster.core.kept import look, refusal
from muster.core.replica import HANG_WORD, Replica

QUIET_SECONDS = 10.0
_MOST_FILES = 10_000
_SIGN_EVERY_SECONDS = 1.0
_GOING = ".muster-deletes-"


class Watch:
    """Looks every `every_seconds`, or less often where a look takes long: at most one part in `share` of the time goes into it.

    :param say: writes a line to the log.
    :param wanted: whether there is anything to look at.
    """

    first_seconds = every_seconds = 20.0
    share = 100
    spent = staticmethod(time.monotonic)

    def __init__(self, say: Callable[[str], None], *, wanted: bool = True) -> None:
        self._say = say
        self._due = time.monotonic() + self.first_seconds if wanted else math.inf

    def left(self) -> float:
        """Seconds until :meth:`look` is due."""
        return self._due - time.monotonic()

    def look(self, *, now: bool = False) -> None:
        """Look, if it is due or `now`."""
        if self._due == math.inf or not (now or self.left() <= 0):
            return
        begun = self.spent()
        self._look()
        self._due = time.monotonic() + max(self.every_seconds, self.share * (self.spent() - begun))

    def _look(self) -> None:
        raise NotImplementedError

    def _warn(self, text: str) -> None:
        self._say(f"[muster] warning: {text}")


class Unkept(Watch):
    """Tells once of each output what no version keeps: the commit, hours later, refuses it.

    Links to nothing are left to the seal: what they name may come.
    """

    def __init__(self, replica: Replica, *, say: Callable[[str], None]) -> None:
        self._folders = {} if replica.works else dict(replica.staging)
        if CHECKPOINTS in replica.spec.outputs and replica.first_rank == 0:
            self._folders[CHECKPOINTS] = replica.checkpoints
        super().__init__(say, wanted=bool(self._folders))

    def _look(self) -> None:
        for output, folder in list(self._folders.items()):
            with suppress(OSError):  # a rank deletes or replaces what is looked at
                odd = sorted(each for each in look(folder, most=_MOST_FILES) if not each.passing)
                if odd:
                    del self._folders[output]
                    said = refusal(f"output {output!r}", odd)
                    self._warn(f"{said}: as it is, nothing of this job is committed")


class Doubles(Watch):
    """Tells once of each other replica that it writes a file which this one writes, too: no commit accepts that.

    Each replica lists the files that it writes in a file in the folder of seals, which all replicas of the
    attempt see, and reads the lists of the replicas before it. Only names are compared: no file is opened.
    """

    def __init__(self, replica: Replica, *, say: Callable[[str], None]) -> None:
        self._replica = replica
        self._folder = os.path.dirname(replica.sealed)
        self._listed: list[str] = []
        self._told: set[str] = set()
        names = [f"{role.name}-{index}" for role in replica.spec.roles for index in range(role.replicas)]
        self._name = f"{replica.role}-{replica.index}"
        self._before = names[: names.index(self._name)]  # so only one of the two reports it
        super().__init__(say, wanted=len(names) > 1 and bool(replica.staging) and not replica.works)

    def _look(self) -> None:
        self._list()
        mine = set(self._listed)
        for other in self._before:
            both = sorted(mine.intersection(_read(self._path(other))))
            if both and other not in self._told:
                self._told.add(other)
                self._tell(other, both)

    def _tell(self, other: str, both: list[str]) -> None:
        output, _, path = both[0].partition("/")
        more = f" and {len(both) - 1} more" if len(both) > 1 else ""
        self._warn(
            f"replicas {other} and {self._name} both write {path!r:.200}{more} of output "
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


class Pruning(Watch):
    """Deletes old checkpoints, so that as many stay as the author asked for (``keep=``); the first replica does it.

    Every entry at the top of the folder of checkpoints is one checkpoint, but links, and names that begin with a dot. One of
    which a file was written in the last :data:`QUIET_SECONDS` may still be written: it counts as none, so that a crash in the
    middle of it leaves whole ones.

    :param now: seconds since the epoch, as the file system counts them.
    """

    first_seconds, every_seconds, share = 0.0, 10.0, 0

    def __init__(
        self, replica: Replica, *, say: Callable[[str], None], now: Callable[[], float] = time.time
    ) -> None:
        self._folder, self._keep, self._now = replica.checkpoints, replica.spec.keep, now
        self._told = False
        super().__init__(say, wanted=bool(self._keep) and replica.first_rank == 0)

    def finish(self) -> None:
        """Delete what is too old once all ranks have ended: every checkpoint is whole now."""
        if self._due < math.inf:
            self._prune(math.inf)

    def _look(self) -> None:
        self._prune(self._now() - QUIET_SECONDS)

    def _prune(self, quiet: float) -> None:
        with suppress(FileNotFoundError):  # a rank deletes them too
            whole = sorted((written, name) for name, written in self._checkpoints() if written < quiet)
            for _, name in whole[: -self._keep]:  # the oldest
                try:
                    self._delete(name)
                except OSError as error:
                    if not self._told:
                        self._told = True
                        self._warn(f"checkpoint {name!r:.120} cannot be deleted: {error.strerror}")

    def _checkpoints(self) -> Iterator[tuple[str, float]]:
        """Yield each checkpoint and when it was last written; finish what a killed worker was deleting."""
        with os.scandir(self._folder) as entries:
            found = list(entries)
        for entry in found:
            if entry.name.startswith(_GOING):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif not entry.name.startswith(".") and not entry.is_symlink():
                yield entry.name, max(_written(entry))

    def _delete(self, name: str) -> None:
        """Delete a checkpoint; no rank ever finds a part of it under its name."""
        path = os.path.join(self._folder, name)
        if not os.path.isdir(path):
            os.unlink(path)
            return
        going = os.path.join(self._folder, _GOING + name)
        os.rename(path, going)
        shutil.rmtree(going)


def _written(entry: os.DirEntry[str]) -> Iterator[float]:
    """Yield the times of an entry and of everything below it."""
    yield entry.stat(follow_symlinks=False).st_mtime
    if entry.is_dir(follow_symlinks=False):
        with os.scandir(entry.path) as entries:
            for each in list(entries):
                yield from _written(each)


class Silence:
    """How long the gang has neither printed a line nor changed a file of its checkpoints or outputs.

    Each worker sees only its own ranks, and often one rank prints for all. So each worker touches the folder
    of seals, whose time all replicas of the attempt see. The worker that finds a hang leaves a file there
    before its ranks print their stacks, which would count as life. All replicas then show their stacks; a
    later one may be told to stop before it finds the hang itself.

    :param seconds: this long is a hang; 0 turns the check off.
    :param sign: the folder of seals.
    :param watched: folders in which a change counts as progress.
    :ivar line_count: how many times a line came.
    """

    def __init__(self, seconds: float, *, sign: str, watched: Sequence[str] = ()) -> None:
        self.seconds = seconds
        self._sign = sign
        self._word = os.path.join(sign, HANG_WORD)
        self._watched = watched
        self._ahead = _ahead()
        self._heard = time.time()
        self._signed = 0.0
        self.line_count = 0

    def broken(self) -> None:
        """Note that a line came."""
        self.line_count += 1
        self._ahead, self._heard = _ahead(), time.time()
        if self.seconds and self._heard >= self._signed + min(_SIGN_EVERY_SECONDS, self.seconds / 10):
            self._signed = self._heard
            with suppress(OSError):  # the ranks report a full or missing disk themselves
                os.utime(self._sign)

    def left(self, now: float) -> float:
        """Seconds until :meth:`is_hang` may be true."""
        return self._heard + self.seconds - now if self.seconds else math.inf

    def is_hang(self, now: float) -> bool:
        """Whether this is a hang: long silence here and no sign of others since, or another found one."""
        self._pass_over_sleep()
        if not self.seconds or now < self._heard + self.seconds:
            return False
        if self.is_found():
            return True
        changed = max(map(_changed, islice(self._paths(), _MOST_FILES)), default=0.0)
        self._heard = max(self._heard, changed)
        return now >= self._heard + self.seconds

    def find(self) -> None:
        """Tell the other replicas that this is a hang."""
        with suppress(OSError):  # another replica did, or the disk is full
            open(self._word, "x").close()

    def is_found(self) -> bool:
        """Whether a replica of this attempt has found a hang."""
        return os.path.lexists(self._word)

    def _pass_over_sleep(self) -> None:
        """Leave out the time of a suspend or a change of the clock: that was no silence."""
        ahead = _ahead()
        self._heard += ahead - self._ahead
        self._ahead = ahead

    def _paths(self) -> Iterator[str]:
        yield self._sign
        for root in self._watched:
            for folder, _, files in os.walk(root):
                yield folder
                yield from (os.path.join(folder, name) for name in files)


def _ahead() -> float:
    """How far the wall clock, which dates files, is ahead of the monotonic one, which stops in a suspend."""
    return time.time() - time.monotonic()


def _changed(path: str) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0  # it is gone by now
