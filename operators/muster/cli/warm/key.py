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
from collections.abc import Mapping
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


def key_of(facts: Mapping[str, Any]) -> str:
    """Return the key of these facts."""
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def facts_of(home: EmbeddedHome) -> dict[str, Any]:
    """Return the facts that are fixed for a process of this user, started here and now, once Airflow is imported."""
    return {
        "muster": __version__,
        "airflow": home.environment(),
        "variables": variables(os.environ),
        "python": _python(),
        "folders": [(entry, signature(Path(entry))) for entry in absolute(sys.path)],
        "files": [
            (str(path), signature(path))
            for path in (home.root / "airflow.cfg", home.root / "config", home.root / "plugins", _ZONE)
        ],
        "system": _system(),
    }


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a library may have read when it was imported."""
    return {name: value for name, value in environment.items() if name not in _SHELLS_OWN}


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


_ZONE = Path("/etc/localtime")


def _python() -> list[str]:
    binary = signature(Path(sys.executable))
    return [sys.executable, binary, sys.version, str(sys.flags), str(sys._xoptions), str(sys.warnoptions)]


def _system() -> dict[str, Any]:
    """Return rights, limits and namespaces, which a container, a batch system or ``ulimit`` may change."""
    found: dict[str, Any] = {
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "root": signature(Path("/")),
        "limits": [
            resource.getrlimit(getattr(resource, name))
            for name in dir(resource)
            if name.startswith("RLIMIT_")
        ],
    }
    rows = (line.partition(":") for line in _read("/proc/self/status").splitlines())
    found["rights"] = {name: value.strip() for name, _, value in rows if name in _RIGHTS}
    for name in ("cgroup", "oom_score_adj"):
        found[name] = _read(f"/proc/self/{name}")
    with suppress(OSError):
        found["namespaces"] = sorted(str(path.readlink()) for path in Path("/proc/self/ns").iterdir())
    return found


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
