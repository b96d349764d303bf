"""kube-proxy: Services' addresses, in one network namespace."""

from __future__ import annotations

import json

from tests.cluster.daemons import Daemon
from tests.cluster.layout import CONTROL_ADDRESS, NODES, POD_RANGE, Layout, Node
from tests.cluster.probes import answers

_HEALTH_PORT = 10256


def prepare(layout: Layout, node: Node | None = None) -> None:
    """Write the configuration of a node's kube-proxy, or of the control plane's.

    It ends when this file changes.
    """
    document = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clientConnection": {"kubeconfig": str(layout.credentials / "proxy.kubeconfig")},
        # the control plane is no node, and to kube-proxy one is as good as another
        "hostnameOverride": (node or NODES[0]).name,
        "clusterCIDR": POD_RANGE,
        "healthzBindAddress": f"{_address(node)}:{_HEALTH_PORT}",
        "metricsBindAddress": "127.0.0.1:10249",
        # the machine's, not the namespace's: it may not write them
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }
    path = layout.root / f"{_name(node)}.json"
    path.write_text(json.dumps(document))


def proxy(layout: Layout, node: Node | None = None, *, namespaces: tuple[str, ...] = ()) -> Daemon:
    """Return the kube-proxy of a node, or the control plane's."""
    name = _name(node)
    return Daemon(
        name=name,
        command=(layout.programs / "kube-proxy", f"--config={layout.root / f'{name}.json'}"),
        namespaces=namespaces,
        ready=answers(f"http://{_address(node)}:{_HEALTH_PORT}/livez"),  # /healthz wants the Node to be there
    )


def _name(node: Node | None) -> str:
    return f"{node.name}.kube-proxy" if node else "kube-proxy"


def _address(node: Node | None) -> str:
    return node.address if node else CONTROL_ADDRESS
