"""Computes the key of the waiting process that may serve a command: all that could make a fork differ from a new process.

What a fork receives with its command (arguments, working folder, umask, terminal) is not in the key. Variables are,
although a fork receives them too: a library may have read one while it was imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from muster import __version__
from muster.airflow.embedded.home import EmbeddedHome

# A shell sets these anew for each command or folder; no library reads them when it is imported.
_SHELLS_OWN = frozenset({"PWD", "OLDPWD", "SHLVL", "_", "COLUMNS", "LINES"})
_RIGHTS = (
    *("Uid", "Gid", "Groups", "SigBlk", "SigIgn", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"),
    *("NoNewPrivs", "Seccomp", "Cpus_allowed_list", "Mems_allowed_list"),
)


def key_of(home: EmbeddedHome) -> str:
    """Return the key of all that is fixed for a process of this user, started here and now, once Airflow is imported."""
    root, zone = home.root, Path("/etc/localtime")
    files = [root / "airflow.cfg", root / "config", root / "plugins", zone, Path(sys.executable), Path("/")]
    facts = [
        __version__,
        home.environment(),
        {name: value for name, value in os.environ.items() if name not in _SHELLS_OWN},
        [sys.executable, sys.version, str(sys.flags), str(sys._xoptions), str(sys.warnoptions)],
        [(str(path), signature(path)) for path in (*map(Path, absolute(sys.path)), *files)],
        _system(),
    ]
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def absolute(entries: list[str]) -> list[str]:
    """Return Python's path without entries that depend on the working folder."""
    return [str(Path(entry).absolute()) for entry in entries]


def signature(path: Path) -> str:
    """Return a text that changes when a file is written or replaced, or a folder gains or loses an entry; "" if it is missing.

    An installation makes or removes a folder beside the packages, ``NAME-VERSION.dist-info``.
    """
    try:
        found = path.stat()
    except OSError:
        return ""
    return f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns}"


def _system() -> list[Any]:
    """Return rights, limits and namespaces, which a container, a batch system or ``ulimit`` may change."""
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    found: list[Any] = [
        os.getpriority(os.PRIO_PROCESS, 0),
        [resource.getrlimit(getattr(resource, name)) for name in limits],
        [line for line in _read("status").splitlines() if line.partition(":")[0] in _RIGHTS],
        *map(_read, ("cgroup", "oom_score_adj")),
    ]
    with suppress(OSError):
        found.append(sorted(str(path.readlink()) for path in Path("/proc/self/ns").iterdir()))
    return found


def _read(name: str) -> str:
    try:
        return Path("/proc/self", name).read_text(errors="replace")
    except OSError:
        return ""
