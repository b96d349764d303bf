"""The nodes: each a kubelet, a containerd and a kube-proxy in namespaces of its own, with a power switch.

For the tests of faults::

    nodes.power_off(layout, node)  # as a machine that loses power: nothing of it runs on
    nodes.power_on(layout, node)
    nodes.disconnect(layout, node)  # what runs there goes on, and nobody hears of it
    nodes.reconnect(layout, node)
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.cluster import daemons, groups, kubectl, network
from tests.cluster.authority import Authority
from tests.cluster.daemons import Daemon
from tests.cluster.images import import_all
from tests.cluster.layout import CONTROL_ADDRESS, HIDDEN_FROM_NODES, NODES, Layout, Node
from tests.cluster.proxy import proxy
from tests.cluster.runtime import SOCKET, runtime

from muster.core.errors import BackendError

GPU = "nvidia.com/gpu"
GPU_CLASS = "muster.dev/gpu-class"
PROGRAMS = ("kubelet", "kube-proxy", "containerd")
# Other namespaces are let go of, which would live on as long as this one; what the machine keeps in
# these folders is covered; the claim is mounted; mounts of the kubelet reach the containers, nobody else.
CLAIM = "/run/muster/claim"  # where a node has the shared folder, as if it had mounted it from a server
_FURNISH = """
set -e
for other in /run/netns/*; do [ -e "$other" ] && umount --lazy "$other"; done
claim=$0 seen=$1; shift
for folder in "$@"; do mount -t tmpfs -o mode=755 tmpfs "$folder"; done
mkdir -p "$seen"
mount --bind "$claim" "$seen"
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
    authority = Authority(folder=layout.credentials)
    authority.issue(node.name, f"system:node:{node.name}", "system:nodes", addresses=(node.address,))
    authority.kubeconfig(node.name, f"system:node:{node.name}", "system:nodes")
    folder = layout.folder(node)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "resolv.conf").write_text("")
    (folder / "kubelet.json").write_text(json.dumps(_kubelet(layout, node), indent=1))


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
    containerd = runtime(layout, node, namespaces=_inside(layout, node))
    daemons.start(layout, containerd)
    daemons.wait(layout, containerd)
    import_all(layout, node)


def start(layout: Layout, node: Node) -> None:
    """Start a node's kubelet and kube-proxy, which need the API server."""
    inside = _inside(layout, node)
    daemons.start(layout, _kubelet_daemon(layout, node))
    daemons.start(layout, proxy(layout, node=node, name=f"{node.name}.kube-proxy", namespaces=inside))


def wait_ready(layout: Layout, node: Node, *, seconds: float = 60) -> None:
    """Return when a node is Ready, after giving it its GPUs, which a starting kubelet forgets.

    The kubelet looks for no device where no plugin names one, so the pods need none.
    """
    kubectl.until(f"node {node.name} is Ready", lambda: is_ready(layout, node), seconds=seconds)
    if not node.gpus:
        return
    path = f"/status/capacity/{GPU.replace('/', '~1')}"
    patch = json.dumps([{"op": "add", "path": path, "value": str(node.gpus)}])
    kubectl.run(layout, "patch", "node", node.name, "--subresource=status", "--type=json", f"--patch={patch}")
    kubectl.until(
        f"node {node.name} has {node.gpus} GPUs",
        lambda: _allocatable(layout, node) == str(node.gpus),
        seconds=seconds,
    )


def power_off(layout: Layout, node: Node) -> None:
    """End all that runs on a node, at once, as a power cut does; its disk stays. Off already is fine."""
    for program in PROGRAMS:
        daemons.stop(layout, f"{node.name}.{program}")
    groups.kill(layout.group(node.name))
    groups.remove(layout.group(node.name))
    if _is_mounted(layout, node):
        _run("umount", str(layout.mounts(node)))
    network.remove(layout.network(node))


def disconnect(layout: Layout, node: Node) -> None:
    """Pull a node's cable: its pods live on and reach nobody."""
    network.connect(layout, node, up=False)


def reconnect(layout: Layout, node: Node) -> None:
    """Put a node's cable back."""
    network.connect(layout, node, up=True)


def is_ready(layout: Layout, node: Node) -> bool:
    """Whether the API server holds a node for Ready."""
    query = "--output=jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    return kubectl.ask(layout, "get", "node", node.name, query) == "True"


def _allocatable(layout: Layout, node: Node) -> str:
    escaped = GPU.replace(".", r"\.")
    return kubectl.ask(
        layout, "get", "node", node.name, f"--output=jsonpath={{.status.allocatable.{escaped}}}"
    )


def _mount(layout: Layout, node: Node) -> None:
    """Make a node's mount namespace, which a file holds (:func:`make_room`)."""
    mounts = layout.mounts(node)
    mounts.touch()
    script = ("sh", "-c", _FURNISH, str(layout.claim), CLAIM, *HIDDEN_FROM_NODES)
    _run("unshare", f"--mount={mounts}", "--propagation=private", *script)


def _is_mounted(layout: Layout, node: Node) -> bool:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split()[4] == str(layout.mounts(node)) for line in lines)


def _inside(layout: Layout, node: Node) -> tuple[str, ...]:
    return f"--net={layout.network(node)}", f"--mount={layout.mounts(node)}"


def _kubelet_daemon(layout: Layout, node: Node) -> Daemon:
    folder, name = layout.folder(node), f"{node.name}.kubelet"
    return Daemon(
        name=name,
        command=(
            layout.programs / "kubelet",
            f"--kubeconfig={layout.credentials / f'{node.name}.kubeconfig'}",
            f"--config={folder / 'kubelet.json'}",
            f"--root-dir={folder / 'kubelet'}",
            f"--cert-dir={folder / 'kubelet' / 'pki'}",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
            f"--node-labels={GPU_CLASS}={node.gpu_class}",
        ),
        namespaces=_inside(layout, node),
        ready=lambda: bool(daemons.running(layout, name)),
    )


def _kubelet(layout: Layout, node: Node) -> dict[str, object]:
    own, folder = layout.credentials, layout.folder(node)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "failSwapOn": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.group(node.name)}",
        "enforceNodeAllocatable": ["pods"],
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(own / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(own / f"{node.name}.crt"),
        "tlsPrivateKeyFile": str(own / f"{node.name}.key"),
        "address": node.address,
        "clusterDNS": [CONTROL_ADDRESS],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "podLogsDir": str(folder / "logs"),
        "resolvConf": str(folder / "resolv.conf"),
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "4s",
        "nodeLeaseDurationSeconds": 20,
        "serializeImagePulls": False,
        "maxPods": 200,
    }


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BackendError(f"{' '.join(command)[:200]}: {done.stderr.strip() or done.returncode}")
