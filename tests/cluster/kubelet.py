"""The kubelet of one node."""

from __future__ import annotations

import json

from tests.cluster.authority import Authority
from tests.cluster.daemons import Daemon
from tests.cluster.layout import CONTROL_ADDRESS, DISK, Layout, Node
from tests.cluster.probes import answers
from tests.cluster.runtime import SOCKET

GPU_CLASS = "muster.dev/gpu-class"
_HEALTH_PORT = 10248


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
    return Daemon(
        name=f"{node.name}.kubelet",
        command=(
            layout.programs / "kubelet",
            f"--kubeconfig={layout.credentials / f'{node.name}.kubeconfig'}",
            f"--config={DISK / 'kubelet.json'}",
            f"--root-dir={DISK / 'kubelet'}",
            f"--cert-dir={DISK / 'kubelet' / 'pki'}",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
            f"--node-labels={GPU_CLASS}={node.gpu_class}",
        ),
        namespaces=namespaces,
        ready=answers(f"http://{node.address}:{_HEALTH_PORT}/healthz"),
    )


def _configuration(layout: Layout, node: Node) -> dict[str, object]:
    own = layout.credentials
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
        "healthzBindAddress": node.address,
        "healthzPort": _HEALTH_PORT,
        "clusterDNS": [CONTROL_ADDRESS],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "podLogsDir": str(DISK / "logs"),
        "resolvConf": str(DISK / "resolv.conf"),
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
