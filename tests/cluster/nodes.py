"""The nodes: each a kubelet, a containerd and a kube-proxy in namespaces of its own, with a power switch.

For the tests of faults::

    nodes.power_off(layout, node)  # as a machine that loses power: nothing of it runs on
    nodes.power_on(layout, node)
    nodes.disconnect(layout, node)  # its pods go on, and nothing hears of them
    nodes.reconnect(layout, node)
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import daemons, groups, kubectl, kubelet, network, proxy, runtime
from tests.cluster.daemons import Daemon
from tests.cluster.images import USER, import_all
from tests.cluster.layout import CLAIM, DISK, HIDDEN_FROM_NODES, NODES, Layout, Node

from muster.core.errors import BackendError

GPU = "nvidia.com/gpu"
PROGRAMS = ("kubelet", "kube-proxy", "containerd")
_FURNISH = """
set -e
disk=$1 disk_here=$2 claim=$3 claim_here=$4 processors=$5; shift 5
# other namespaces are let go of, which would live on as long as this one
for other in /run/netns/*; do [ ! -e "$other" ] || umount --lazy "$other"; done
# what the machine keeps in these folders is covered
for folder in "$@"; do mount -t tmpfs -o mode=755 tmpfs "$folder"; done
mkdir -p "$disk_here" "$claim_here"
mount --bind "$disk" "$disk_here"
mount --bind "$claim" "$claim_here"
# where the kubelet counts the processors: a node has more of them than a machine for tests
cd /sys/devices/system
[ ! -d node ] || mount -t tmpfs tmpfs node
mount -t tmpfs tmpfs cpu
for number in $(seq 0 $((processors - 1))); do mkdir "cpu/cpu$number"; done
cd /
# mounts of the kubelet reach the containers alone
mount --make-rshared /
"""


def make_room(layout: Layout) -> None:
    """Make the folder that holds mount namespaces: they cannot be in one that is shared with others."""
    folder = layout.mounts(NODES[0]).parent
    folder.mkdir()
    _run("mount", "--bind", str(folder), str(folder))
    _run("mount", "--make-private", str(folder))


def prepare(layout: Layout, node: Node) -> None:
    """Write what a node has on its disk: credentials and configurations."""
    layout.folder(node).mkdir(parents=True, exist_ok=True)
    kubelet.prepare(layout, node)
    runtime.prepare(layout, node)


def power_on(layout: Layout, node: Node) -> None:
    """Start a node, from nothing or after :func:`power_off`, and return when it is Ready with its GPUs."""
    furnish(layout, node)
    switch_on(layout, node)
    start(layout, node)
    wait_ready(layout, node)


def furnish(layout: Layout, node: Node) -> None:
    """Make a node's namespaces and the group of its pods, what is not there of them."""
    if not layout.network(node).exists():
        network.plug(layout, node)
    if not _is_mounted(layout, node):
        _mount(layout, node)
    groups.create(layout.group(node.name))


def switch_on(layout: Layout, node: Node) -> None:
    """Start a node's container runtime, and give it the images."""
    containerd = runtime.runtime(layout, node, namespaces=_inside(layout, node))
    daemons.start(layout, containerd)
    daemons.wait(layout, containerd)
    import_all(layout, node)


def start(layout: Layout, node: Node) -> None:
    """Start a node's kubelet and kube-proxy."""
    for program in _need_the_api_server(layout, node):
        daemons.start(layout, program)


def wait_ready(layout: Layout, node: Node, *, seconds: float = 120) -> None:
    """Return when a node is Ready, after giving it its GPUs, which a starting kubelet forgets.

    The kubelet looks for no device where no plugin names one, so the pods need none.
    """
    for program in _need_the_api_server(layout, node):
        daemons.wait(layout, program)
    kubectl.until(f"node {node.name} is Ready", lambda: is_ready(layout, node), seconds=seconds)
    if not node.gpus:
        return
    path = f"/status/capacity/{GPU.replace('/', '~1')}"
    patch = json.dumps([{"op": "add", "path": path, "value": str(node.gpus)}])
    words = ("node", node.name, "--subresource=status", "--type=json", f"--patch={patch}")
    kubectl.run(layout, "patch", *words)
    there = str(node.gpus)
    kubectl.until(
        f"{node.name} has {there} GPUs", lambda: _allocatable(layout, node) == there, seconds=seconds
    )


def power_off(layout: Layout, node: Node) -> None:
    """End all that runs on a node, at once and unheard, as a power cut does; its disk stays. Off already is fine."""
    network.unplug(layout, node)  # first, or the kernel that ends its processes would close their connections
    for program in PROGRAMS:
        daemons.stop(layout, f"{node.name}.{program}")
    groups.kill(layout.group(node.name))
    groups.remove(layout.group(node.name))
    if _is_mounted(layout, node):
        _run("umount", str(layout.mounts(node)))
    network.remove(layout.network(node))


@contextmanager
def small_claim(layout: Layout, node: Node, *, size_mib: int) -> Iterator[None]:
    """Have a node see a small disk in place of the claim: for pods that start there meanwhile."""
    inside = ("nsenter", f"--mount={layout.mounts(node)}")
    options = f"size={size_mib}m,mode=700,uid={USER},gid={USER}"
    _run(*inside, "mount", "-t", "tmpfs", "-o", options, "tmpfs", str(CLAIM))
    try:
        yield
    finally:
        _run(*inside, "umount", "--lazy", str(CLAIM))  # a pod that is on its way out may have it still


def disconnect(layout: Layout, node: Node) -> None:
    """Pull a node's cable: its pods live on and reach nothing."""
    network.connect(layout, node, up=False)


def reconnect(layout: Layout, node: Node) -> None:
    """Put a node's cable back."""
    network.connect(layout, node, up=True)


def is_ready(layout: Layout, node: Node) -> bool:
    """Whether the API server holds a node for Ready."""
    query = "--output=jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    return kubectl.ask(layout, "get", "node", node.name, query) == "True"


def _need_the_api_server(layout: Layout, node: Node) -> tuple[Daemon, ...]:
    inside = _inside(layout, node)
    return kubelet.kubelet(layout, node, namespaces=inside), proxy.proxy(layout, node, namespaces=inside)


def _allocatable(layout: Layout, node: Node) -> str:
    escaped = GPU.replace(".", r"\.")
    return kubectl.ask(
        layout, "get", "node", node.name, f"--output=jsonpath={{.status.allocatable.{escaped}}}"
    )


def _mount(layout: Layout, node: Node) -> None:
    """Make a node's mount namespace, which a file holds (:func:`make_room`)."""
    mounts = layout.mounts(node)
    mounts.touch()
    places = (layout.folder(node), DISK, layout.claim, CLAIM)
    _run(
        *("unshare", f"--mount={mounts}", "--propagation=private", "sh", "-c", _FURNISH, "sh"),
        *(*map(str, places), str(node.cpus), *HIDDEN_FROM_NODES),
    )


def _is_mounted(layout: Layout, node: Node) -> bool:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split()[4] == str(layout.mounts(node)) for line in lines)


def _inside(layout: Layout, node: Node) -> tuple[str, ...]:
    return f"--net={layout.network(node)}", f"--mount={layout.mounts(node)}"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BackendError(f"{' '.join(command)[:200]}: {done.stderr.strip() or done.returncode}")
