"""The cluster's networks: a namespace for the control plane, one for each node, a bridge between them.

No namespace has a way out, and nothing of them shows on the machine: no port is taken, no link appears,
and what runs inside reaches nothing outside.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.cluster.layout import CONTROL_ADDRESS, NODES, SERVICE_RANGE, Layout, Node

from muster.core.errors import BackendError

_BRIDGE = "br0"
_CLONE_NEWNET = 0x40000000  # sched.h
_FORWARDING = ("net.ipv4.ip_forward=1", "net.bridge.bridge-nf-call-iptables=1")


def create(layout: Layout) -> None:
    """Make the control plane's namespace with its bridge."""
    if layout.network().exists():
        return
    inside = ("-n", layout.network().name)
    _ip("netns", "add", layout.network().name)
    _ip(*inside, "link", "set", "lo", "up")
    _ip(*inside, "link", "add", _BRIDGE, "type", "bridge")
    _ip(*inside, "addr", "add", f"{CONTROL_ADDRESS}/24", "dev", _BRIDGE)
    _ip(*inside, "link", "set", _BRIDGE, "up")
    # to anywhere: kube-proxy's rules say where, but only about what has a way
    _ip(*inside, "route", "add", SERVICE_RANGE, "dev", _BRIDGE)


def plug(layout: Layout, node: Node) -> None:
    """Make a node's namespace, joined to the bridge, with the ways to all pods."""
    control, own = layout.network().name, layout.network(node).name
    _ip("netns", "add", own)
    _ip("-n", control, "link", "add", node.name, "type", "veth", "peer", "name", "eth0", "netns", own)
    _ip("-n", control, "link", "set", node.name, "master", _BRIDGE, "up")
    _ip("-n", control, "route", "replace", node.pod_range, "via", node.address)
    _ip("-n", own, "addr", "add", f"{node.address}/24", "dev", "eth0")
    for link in ("lo", "eth0"):
        _ip("-n", own, "link", "set", link, "up")
    _ip("-n", own, "route", "add", "default", "via", CONTROL_ADDRESS)
    for other in NODES:
        if other != node:
            _ip("-n", own, "route", "add", other.pod_range, "via", other.address)
    _run(["nsenter", f"--net={layout.network(node)}", "sysctl", "-qw", *_FORWARDING])


def unplug(layout: Layout, node: Node) -> None:
    """Take a node's cable away, for good: nothing is heard of it, also not that what runs there ends. None is fine."""
    cable = ("-n", layout.network().name, "link")
    if (
        subprocess.run(["ip", *cable, "show", "dev", node.name], capture_output=True, check=False).returncode
        == 0
    ):
        _ip(*cable, "del", node.name)


def connect(layout: Layout, node: Node, *, up: bool) -> None:
    """Pull a node's cable, or put it back: what runs on the node goes on."""
    _ip("-n", layout.network().name, "link", "set", node.name, "up" if up else "down")
    if up:  # went with the link's state
        _ip("-n", layout.network().name, "route", "replace", node.pod_range, "via", node.address)


def remove(namespace: Path) -> None:
    """Remove a namespace with all links in it; none is fine."""
    if namespace.exists():
        _ip("netns", "del", namespace.name)


def namespaces(layout: Layout) -> list[Path]:
    """Return the namespaces that are there."""
    folder = layout.network().parent
    return sorted(folder.glob(f"{layout.name}*")) if folder.is_dir() else []


def processes(layout: Layout) -> list[int]:
    """Return who is in one of the namespaces, but for this process and those that it was started by.

    What tests start is in no control group of the cluster's, and stays when they are killed.
    """
    networks = {_identity(path) for path in namespaces(layout)} - {None}
    ours = {os.getpid(), *_ancestors()}
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return [pid for pid in pids if pid not in ours and _identity(Path(f"/proc/{pid}/ns/net")) in networks]


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells one namespace from another; None for that of a process which has ended, or is not root's."""
    try:
        found = path.stat()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return (found.st_dev, found.st_ino)


def _ancestors() -> Iterator[int]:
    pid = os.getppid()
    while pid > 1:
        yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def enter(layout: Layout) -> None:
    """Move this thread into the control plane's namespace, and with it all it will start."""
    if not layout.network().exists():
        raise BackendError(f"no cluster is up at {layout.root}: make cluster-up")
    with layout.network().open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise BackendError(f"cannot enter {layout.network()}: {os.strerror(number)}; are you root?")


def _ip(*words: str) -> None:
    _run(["ip", *words])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BackendError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
