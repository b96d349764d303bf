"""kube-proxy: Services' addresses, in one network namespace."""

from __future__ import annotations

from tests.cluster.daemons import Daemon
from tests.cluster.layout import CONTROL_ADDRESS, NODES, POD_RANGE, Layout, Node
from tests.cluster.probes import answers

_HEALTH_PORT = 10256


def proxy(layout: Layout, node: Node | None = None, *, namespaces: tuple[str, ...] = ()) -> Daemon:
    """Return the kube-proxy of a node, or that of the control plane, which needs one to reach Services."""
    health = f"{node.address if node else CONTROL_ADDRESS}:{_HEALTH_PORT}"
    return Daemon(
        name=f"{node.name}.kube-proxy" if node else "kube-proxy",
        command=(
            layout.programs / "kube-proxy",
            f"--kubeconfig={layout.credentials / 'proxy.kubeconfig'}",
            # the control plane is no node, and to kube-proxy one is as good as another
            f"--hostname-override={(node or NODES[0]).name}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={POD_RANGE}",
            f"--healthz-bind-address={health}",
            "--metrics-bind-address=127.0.0.1:10249",
            # these settings are the machine's, not the namespace's: it may not write them
            "--conntrack-max-per-core=0",
            "--conntrack-min=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        ),
        namespaces=namespaces,
        ready=answers(f"http://{health}/livez"),  # /healthz wants the Node to be there
    )
