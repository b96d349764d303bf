"""Makes inputs read-only for root too, in a mount namespace of the replica's own.

The modes of a version's files keep all users but root from writing. A mistake of root would change a version
for all its readers. From mount_namespaces(7) and mount(2): a process that may (CAP_SYS_ADMIN) gets its own
view of the mounts, seen by it and its children alone, which ends with them.

An input lies in its version's folder, ``<n>/data``. The whole version folder is protected: its manifest and
RECORD.json, which describe the data and its origin, are not the job's to change either.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

_CLONE_NEWNS = 0x0002_0000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND = 1, 32, 4096
_MS_REC, _MS_SLAVE = 16384, 1 << 19


def version_folder(path: str) -> str:
    """Return the folder of the version that an input lies in, or the input where it lies in none."""
    folder = path
    while (above := os.path.dirname(folder)) != folder:
        if os.path.basename(folder) == "data" and os.path.isfile(os.path.join(above, "RECORD.json")):
            return above
        folder = above
    return path


def protect(folders: Iterable[str]) -> bool:
    """Make folders read-only for this process, which has one thread, and for all its children.

    :returns: whether the kernel allowed it. Where it does not, the process usually is not root, and the
        files' modes protect them.
    """
    wanted = sorted({version_folder(folder) for folder in folders})
    if not wanted or os.geteuid() != 0:
        return False
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        return False

    def mount(source: bytes | None, target: bytes, flags: int) -> bool:
        return bool(libc.mount(source, target, None, ctypes.c_ulong(flags), None) == 0)

    if not mount(None, b"/", _MS_REC | _MS_SLAVE):  # else all processes would see the mounts below
        return False
    names = map(os.fsencode, wanted)
    done = [mount(n, n, _MS_BIND) and mount(None, n, _MS_REMOUNT | _MS_BIND | _MS_RDONLY) for n in names]
    return all(done)
