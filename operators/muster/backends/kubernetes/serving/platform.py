"""Whether a cluster can serve models as its site says, and which of its nodes are not for that."""

from __future__ import annotations

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import GATEWAY
from muster.backends.kubernetes.cluster.facts import Cluster
from muster.backends.kubernetes.cluster.feasibility import check_place
from muster.backends.kubernetes.site import ClusterSite
from muster.core.errors import Forbidden, SpecError


def check_platform(client: Client, site: ClusterSite, cluster: Cluster) -> None:
    """Refuse a cluster that lacks what serving needs, naming what to install.

    :raises SpecError: KServe, the Gateway API, the Gateway, or the claim is missing.
    """
    check_place(cluster, claim=site.claim)
    if not cluster.kserve:
        raise SpecError(
            "this cluster serves no InferenceService (serving.kserve.io/v1beta1): install KServe 0.15 or newer, "
            "or take `serving` out of where the cluster is written down, to serve on this machine"
        )
    if not site.gateway:
        return
    if not cluster.gateway_api:
        raise SpecError(
            f"Gateway {site.gateway} is named, and this cluster serves no HTTPRoute (gateway.networking.k8s.io/v1): "
            "install the Gateway API with a Gateway, or name none: then a release moves all traffic at once"
        )
    namespace, _, name = site.gateway.partition("/")
    try:
        found = client.get(GATEWAY, name, namespace=namespace)
    except Forbidden:
        return  # whether the route is taken up is looked at anyway, when there is one
    if found is None:
        raise SpecError(f"namespace {namespace} has no Gateway {name}: name one that is there as gateway=")


def card_classes(cluster: Cluster) -> tuple[str, ...]:
    """Return the GPU classes of nodes with cards, to be kept off; none where there are no other nodes."""
    nodes = cluster.nodes or ()
    if all(node.has_cards for node in nodes):
        return ()
    without = {node.gpu_class for node in nodes if not node.has_cards}
    return tuple(sorted({node.gpu_class for node in nodes if node.gpu_class} - without))
