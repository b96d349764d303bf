"""A file system that behaves as NFS does at its worst: one client's view of a server's folder.

``python -m tests.fuse.filesystem SERVER MOUNTPOINT FAULTS`` serves until it is told to end (SIGTERM),
or until the process that started it is gone. Several mounts of one SERVER are several clients; who writes
into SERVER itself is another one. :class:`Faults` says what is amiss; it can be changed while it runs.
"""

# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH108, PTH115, PTH118, PTH120, PTH211 - a file system is asked in text

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import os
import random
import signal
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass

FAULTS, POWER = "user.faults", "user.power"  # attributes of the mount's root; to set one is to tell it
_HIDDEN = "/.fuse_hidden"  # what libfuse calls a file that is deleted while it is open …
_SILLY = "/.nfs"  # … and what NFS does
_PR_SET_PDEATHSIG = 1
_TIMES = ("st_atime", "st_mtime", "st_ctime")
_FACTS = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks")


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What is amiss. An open file that is deleted gets another name, ``.nfs…``, in any case.

    :param links: hard links can be made.
    :param moves: a rename may lead from one folder into another; else it fails with EXDEV.
    :param locks: flock(2) excludes; else it does nothing, and says that it did.
    :param late: what others made is left out of the first listing of a folder, unless this client has
        changed the folder since its last one: then the server's reply tells it of the others.
    :param lost: how often (0 to 1) a rename or symlink is done and an error is returned, be it because
        no reply comes (EIO), or because it is asked again (ENOENT and EEXIST, or ESTALE).
    :param stale: a file that another client deleted cannot be read further by who has it open (ESTALE).
    """

    links: bool = True
    moves: bool = True
    locks: bool = True
    late: bool = False
    lost: float = 0.0
    stale: bool = False

    def dumps(self) -> str:
        """As :meth:`loads` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Faults:
        """Read what :meth:`dumps` wrote."""
        return cls(**json.loads(text))


class Client:
    """The operations of one mount; libfuse calls them one at a time."""

    use_ns = True

    def __init__(self, server: str, faults: Faults) -> None:
        self._server = server
        self._faults = faults
        self._random = random.Random(0)
        self._no_link = itertools.cycle((errno.EPERM, errno.EOPNOTSUPP))
        self._no_reply = itertools.cycle((errno.EIO, errno.ENOENT, errno.ESTALE))
        self._listed: defaultdict[int, set[str]] = defaultdict(set)
        self._changed: set[int] = set()
        self._unsynced: set[int] = set()

    # Names

    def getattr(self, path, fh=None):
        if fh is None:
            return _facts(os.lstat(self._at(path)))
        self._refuse_stale(fh)
        return _facts(os.fstat(fh))

    def readdir(self, path, fh):
        folder = self._at(path)
        with os.scandir(folder) as entries:
            found = [
                (
                    entry.name,
                    {"st_mode": entry.stat(follow_symlinks=False).st_mode, "st_ino": entry.inode()},
                    0,
                )
                for entry in entries
            ]
        return [(".", None, 0), ("..", None, 0), *self._shown(os.lstat(folder).st_ino, found)]

    def _shown(self, folder, found):
        known = self._listed[folder]
        fresh = not self._faults.late or folder in self._changed
        shown = [entry for entry in found if fresh or entry[0] in known]
        self._listed[folder] = {name for name, _, _ in found}
        self._changed.discard(folder)
        return shown

    def readlink(self, path):
        return os.readlink(self._at(path))

    def mkdir(self, path, mode):
        os.mkdir(self._at(path), mode)
        self._forget(path)
        self._change(path)

    def rmdir(self, path):
        self._forget(path)
        os.rmdir(self._at(path))
        self._change(path)

    def unlink(self, path):
        os.unlink(self._at(path))
        self._change(path)

    def symlink(self, path, target):
        os.symlink(target, self._at(path))
        self._change(path)
        if self._lost():
            raise OSError(errno.EEXIST, "asked again, it was there")

    def link(self, path, target):
        if not self._faults.links:
            raise OSError(next(self._no_link), "no hard links here")
        if not self._faults.moves and os.path.dirname(path) != os.path.dirname(target):
            raise OSError(errno.EXDEV, "not from one folder into another")
        os.link(self._at(target), self._at(path), follow_symlinks=False)
        self._change(path)

    def rename(self, old, new):
        if not self._faults.moves and os.path.dirname(old) != os.path.dirname(new):
            raise OSError(errno.EXDEV, "not from one folder into another")
        os.rename(self._at(old), self._at(new))
        self._change(old)
        self._change(new)
        if not new.rpartition("/")[2].startswith(_HIDDEN[1:]) and self._lost():
            raise OSError(next(self._no_reply), "it is done, and you are told otherwise")

    def chmod(self, path, mode):
        os.chmod(self._at(path), mode)
        self._changed.add(os.lstat(self._at(path)).st_ino)

    def chown(self, path, uid, gid):
        os.lchown(self._at(path), uid, gid)

    def utimens(self, path, times=None):
        os.utime(self._at(path), ns=times, follow_symlinks=False)
        self._changed.add(os.lstat(self._at(path)).st_ino)

    def statfs(self, path):
        found = os.statvfs(self._at(path))
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_")}

    # Files

    def open(self, path, flags):
        return os.open(self._at(path), flags & ~(os.O_APPEND | os.O_DIRECT))

    def create(self, path, mode, flags):
        fh = os.open(self._at(path), flags & ~os.O_APPEND | os.O_CREAT, mode)
        self._change(path)
        return fh

    def read(self, path, size, offset, fh):
        self._refuse_stale(fh)
        return os.pread(fh, size, offset)

    def write(self, path, data, offset, fh):
        self._refuse_stale(fh)
        self._unsynced.add(os.fstat(fh).st_ino)
        return os.pwrite(fh, data, offset)

    def truncate(self, path, length, fh=None):
        os.truncate(self._at(path) if fh is None else fh, length)

    def flush(self, path, fh):
        return 0

    def fsync(self, path, datasync, fh):
        self._unsynced.discard(os.fstat(fh).st_ino)

    def release(self, path, fh):
        os.close(fh)

    def fsyncdir(self, path, datasync, fh):
        return 0

    def flock(self, path, fh, operation):
        return 0

    # What the tests tell it

    def setxattr(self, path, name, value, options, position=0):
        if path != "/" or name not in (FAULTS, POWER):
            raise OSError(errno.EOPNOTSUPP, "no attributes here")
        if name == FAULTS:
            self._faults = Faults.loads(value.decode())
        else:
            self._lose_unsynced()

    def _lose_unsynced(self):
        """The server's power goes: unsynced files keep their names, and lose their data."""
        for folder, _, names in os.walk(self._server):
            for name in names:
                path = os.path.join(folder, name)
                if os.lstat(path).st_ino in self._unsynced:
                    os.truncate(path, 0)
        self._unsynced.clear()

    def _at(self, path):
        return self._server + path.replace(_HIDDEN, _SILLY)

    def _change(self, path):
        """Remember that this client changed the folder of `path`: its next listing is the server's."""
        self._changed.add(os.lstat(os.path.dirname(self._at(path))).st_ino)

    def _forget(self, path):
        """Of a folder that is new or goes: its inode number may have been another's."""
        folder = os.lstat(self._at(path)).st_ino
        self._listed.pop(folder, None)

    def _lost(self):
        return self._random.random() < self._faults.lost

    def _refuse_stale(self, fh):
        if self._faults.stale and os.fstat(fh).st_nlink == 0:
            raise OSError(errno.ESTALE, "another client deleted it")


def _facts(found):
    facts = {name: getattr(found, name) for name in _FACTS}
    return facts | {name: getattr(found, f"{name}_ns") for name in _TIMES}


def serve(server: str, mountpoint: str, faults: Faults) -> None:
    """Mount, and answer until SIGTERM."""
    import mfusepy

    class Fuse(mfusepy.FUSE):
        def rename_fuse_3(self, old, new, flags):
            return -errno.EINVAL if flags else super().rename_fuse_3(old, new, flags)  # as NFS has it

    client = Client(server, faults)
    if faults.locks:
        client.flock = None  # the kernel does it then, for this mount alone, as with NFS' local_lock
    Fuse(
        client,
        mountpoint,
        foreground=True,
        nothreads=True,
        fsname="server",
        subtype="nfs-at-its-worst",
        default_permissions=True,
        use_ino=True,
        attr_timeout=0,
        entry_timeout=0,
        negative_timeout=0,
    )


def main(server: str, mountpoint: str, faults: str) -> None:
    """See the module."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    os.umask(0)
    serve(server, mountpoint, Faults.loads(faults))


if __name__ == "__main__":
    main(*sys.argv[1:])
