"""What the machine must have for a cluster: root, and a few programs of the distribution."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from muster.core.errors import BackendError

# program: its package in Debian and Ubuntu
_NEEDED = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "sysctl": "procps",
}
_WATCHERS_LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
_WATCHERS = 60  # 45 by count, and some for what the tests run


def missing() -> list[str]:
    """Return the packages to install, by Debian's names."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    lacking = {
        package
        for program, package in _NEEDED.items()
        if not (Path(program).exists() if program.startswith("/") else shutil.which(program, path=path))
    }
    return sorted(lacking)


def check() -> None:
    """Refuse a machine that cannot hold one more cluster, before anything is made on it.

    :raises BackendError: what is missing, and the one command that brings it.
    """
    if sys.platform != "linux" or not shutil.which("apt-get"):
        raise BackendError("a test cluster needs Debian or Ubuntu: it runs their containerd and runc")
    check_root()
    if packages := missing():
        raise BackendError(
            f"a test cluster needs {', '.join(packages)}: "
            f"apt-get install --no-install-recommends {' '.join(packages)}"
        )
    if (left := _watchers(_WATCHERS)) < _WATCHERS:
        raise BackendError(
            f"a test cluster needs {_WATCHERS} inotify instances, and {left} are left: "
            "sysctl fs.inotify.max_user_instances=512"
        )


@contextmanager
def more_watchers(clusters: int = 1) -> Iterator[None]:
    """Have inotify instances for so many clusters more: where they are too few the limit is raised, and put back.

    :raises BackendError: they are, and it cannot be raised here.
    """
    needed = clusters * _WATCHERS
    if _watchers(needed) >= needed:
        yield
        return
    before = _WATCHERS_LIMIT.read_text()
    wanted = int(before) + 2 * needed
    try:
        _WATCHERS_LIMIT.write_text(str(wanted))
    except OSError as error:
        raise BackendError(
            f"{clusters} more on this machine need {needed} inotify instances, and fewer are left; "
            f"{_WATCHERS_LIMIT} cannot be written ({error.strerror}): its owner runs "
            f"sysctl fs.inotify.max_user_instances={wanted}"
        ) from error
    try:
        yield
    finally:
        _WATCHERS_LIMIT.write_text(before)


def check_root() -> None:
    """Refuse a user who is not root."""
    if os.geteuid():
        raise BackendError("a test cluster makes namespaces and control groups: run it as root")


def _watchers(wanted: int) -> int:
    """Return how many of the wanted inotify instances are left, by trying: the kernel does not tell."""
    make = ctypes.CDLL(None).inotify_init1
    made = [file for file in (make(os.O_CLOEXEC) for _ in range(wanted)) if file >= 0]
    for file in made:
        os.close(file)
    return len(made)
