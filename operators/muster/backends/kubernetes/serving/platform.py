"""Who makes a revision's pods, each by one object a revision; whether a cluster has what its site names; its nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import GATEWAY, INFERENCE_SERVICE, SELDON_DEPLOYMENT, Document, Kind
from muster.backends.kubernetes.cluster.facts import Cluster
from muster.backends.kubernetes.cluster.feasibility import check_place
from muster.backends.kubernetes.serving.inference_service import inference_service
from muster.backends.kubernetes.serving.seldon_deployment import seldon_deployment
from muster.backends.kubernetes.serving.server import PORT, Server
from muster.backends.kubernetes.site import ClusterSite, Platform
from muster.core.errors import Forbidden, SpecError


@dataclass(frozen=True, kw_only=True)
class ServingPlatform:
    """What is a platform's own; the route, the pods and how they are asked are the same with all of them.

    The Deployment and the pods that it makes carry the labels of the revision, and its Service has the name that
    :func:`~muster.backends.kubernetes.serving.names.service_name` says.

    :param title: what people call it.
    :param kind: of the object that it makes a revision of.
    :param manifest: that object.
    :param condition: which of the object's conditions says that its Deployment has the replicas that it needs.
    :param service_port: of its Service.
    :param release: the oldest that was tried, or read.
    """

    title: str
    kind: Kind
    manifest: Callable[[Server], Document]
    condition: str
    service_port: int
    release: str


KSERVE = ServingPlatform(
    title="KServe",
    kind=INFERENCE_SERVICE,
    manifest=inference_service,
    condition="PredictorReady",
    service_port=80,
    release="0.20",
)
SELDON = ServingPlatform(
    title="Seldon Core",
    kind=SELDON_DEPLOYMENT,
    manifest=seldon_deployment,
    condition="DeploymentsReady",
    service_port=PORT,  # without an orchestrator its Service has the container's own
    release="1.17",
)
_PLATFORMS = {Platform.KSERVE: KSERVE, Platform.SELDON: SELDON}


def platform_of(site: ClusterSite) -> ServingPlatform:
    """Return the platform that a site names. :raises SpecError: it names none."""
    if site.serving is None:
        raise SpecError(f"nothing says who serves in namespace {site.namespace}: set serving")
    return _PLATFORMS[site.serving]


def check_platform(client: Client, site: ClusterSite, cluster: Cluster) -> None:
    """Refuse a cluster that lacks what serving needs, naming what to install.

    :raises SpecError: the platform, the Gateway API, the Gateway, or the claim is missing.
    """
    check_place(cluster, claim=site.claim)
    platform = platform_of(site)
    if platform.kind not in cluster.serving:
        raise SpecError(
            f"this cluster serves no {platform.kind.name} ({platform.kind.api_version}): install {platform.title} "
            f"{platform.release} or newer, or take `serving` out of where the cluster is written down, to serve on "
            "this machine"
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


def card_classes(cluster: Cluster) -> tuple[str, ...] | None:
    """Return the GPU classes of nodes with cards, to be kept off; None where no pod finds any other node."""
    if cluster.nodes is None:
        return ()  # nobody may look: what GPU feature discovery says of a node is all there is to go by
    workers = [node for node in cluster.nodes if not node.control_plane]
    without = {node.gpu_class for node in workers if not node.has_cards}
    if workers and not without:
        return None
    return tuple(sorted({node.gpu_class for node in workers if node.gpu_class} - without))
