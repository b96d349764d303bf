"""Makes inputs read-only for root too, in a mount namespace of the replica's own.

Files of a version have modes that keep all users but root from writing; what root opens by mistake
would change a version for all who read it. From mount_namespaces(7) and mount(2): a process that may
(CAP_SYS_ADMIN) gets a view of the mounts that it alone and its children see, which ends with them.

An input lies in its version's folder, ``<n>/data``. All of that folder is protected: its manifest and its
RECORD.json, which say what it is and where it comes from, are no more the job's to change than its data.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

_CLONE_NEWNS = 0x0002_0000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND = 1, 32, 4096
_MS_REC, _MS_SLAVE = 16384, 1 << 19


def version_folder(path: str) -> str:
    """Return the folder of the version that an input lies in; of an input that is in none itself."""
    folder = path
    while (above := os.path.dirname(folder)) != folder:
        if os.path.basename(folder) == "data" and os.path.isfile(os.path.join(above, "RECORD.json")):
            return above
        folder = above
    return path


def protect(folders: Iterable[str]) -> bool:
    """Make folders read-only for this process, which has one thread, and for all that it starts.

    :returns: whether the kernel let us. Where it does not, we are not root as a rule, and the files'
        modes say the same.
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

    if not mount(None, b"/", _MS_REC | _MS_SLAVE):  # else all processes would see what follows
        return False
    names = map(os.fsencode, wanted)
    done = [mount(n, n, _MS_BIND) and mount(None, n, _MS_REMOUNT | _MS_BIND | _MS_RDONLY) for n in names]
    return all(done)
