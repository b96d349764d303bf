"""The kubelet of one node."""

from __future__ import annotations

import json

from tests.cluster import daemons
from tests.cluster.authority import Authority
from tests.cluster.daemons import Daemon
from tests.cluster.layout import CONTROL_ADDRESS, Layout, Node
from tests.cluster.runtime import SOCKET

GPU_CLASS = "muster.dev/gpu-class"


def prepare(layout: Layout, node: Node) -> None:
    """Write a node's credentials and the configuration of its kubelet."""
    authority = Authority(folder=layout.credentials)
    authority.issue(node.name, f"system:node:{node.name}", "system:nodes", addresses=(node.address,))
    authority.kubeconfig(node.name, f"system:node:{node.name}", "system:nodes")
    folder = layout.folder(node)
    (folder / "resolv.conf").write_text("")
    (folder / "kubelet.json").write_text(json.dumps(_configuration(layout, node), indent=1))


def kubelet(layout: Layout, node: Node, *, namespaces: tuple[str, ...]) -> Daemon:
    """Return a node's kubelet."""
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
        namespaces=namespaces,
        ready=lambda: bool(daemons.running(layout, name)),
    )


def _configuration(layout: Layout, node: Node) -> dict[str, object]:
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
