"""What the machine must have for a cluster: root, and a few programs of the distribution."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from muster.core.errors import BackendError

# program: its package in Debian and Ubuntu
_NEEDED = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "iptables": "iptables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "sysctl": "procps",
    "go": "golang-go",
}
_BUILT_WITH = "go"


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
    """Refuse a machine that cannot hold a cluster, before anything is made on it.

    :raises BackendError: what is missing, and the one command that brings it.
    """
    if sys.platform != "linux" or not shutil.which("apt-get"):
        raise BackendError("a test cluster needs Debian or Ubuntu: it runs their containerd, etcd and runc")
    if os.geteuid():
        raise BackendError("a test cluster makes namespaces and control groups: run it as root")
    if packages := missing():
        raise BackendError(
            f"a test cluster needs {', '.join(packages)}: "
            f"apt-get install --no-install-recommends {' '.join(packages)}"
        )
