"""kube-proxy: Services' addresses, in one network namespace."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.cluster.daemons import Daemon, running
from tests.cluster.layout import POD_RANGE, Layout, Node


def proxy(layout: Layout, *, node: Node, name: str, namespaces: Sequence[str]) -> Daemon:
    """Return the kube-proxy of a namespace, its configuration written.

    :param node: the node it takes itself to be on.
    """
    path = layout.root / f"{name}.json"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                "kind": "KubeProxyConfiguration",
                "mode": "iptables",
                "clientConnection": {"kubeconfig": str(layout.credentials / "proxy.kubeconfig")},
                "hostnameOverride": node.name,
                "clusterCIDR": POD_RANGE,
                "healthzBindAddress": "127.0.0.1:10256",
                "metricsBindAddress": "127.0.0.1:10249",
                # the machine's, not the namespace's: it may not write them
                "conntrack": {
                    "maxPerCore": 0,
                    "min": 0,
                    "tcpEstablishedTimeout": "0s",
                    "tcpCloseWaitTimeout": "0s",
                },
            }
        )
    )
    return Daemon(
        name=name,
        command=(layout.programs / "kube-proxy", f"--config={path}"),
        namespaces=tuple(namespaces),
        ready=lambda: bool(running(layout, name)),
    )
