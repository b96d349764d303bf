"""The two kinds of model servers, KServe's InferenceService and Seldon Core's SeldonDeployment: one object a revision.

KServe's is in Standard mode: a Deployment and a Service of its own, and no route. What Seldon's operator makes of a
SeldonDeployment (v1) is read off its release 1.17.1
(https://github.com/SeldonIO/seldon-core/tree/v1.17.1/operator), not seen: the operator cannot be had for the tests.

Image and command of each container are written down in the object, so that an edit of it is seen and undone: an API server
and its webhooks write other fields in their own way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import GATEWAY, INFERENCE_SERVICE, SELDON_DEPLOYMENT, Document, Kind
from muster.backends.kubernetes.cluster.facts import Cluster
from muster.backends.kubernetes.cluster.feasibility import check_place
from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.server import PORT, WORKERS, Server, pod
from muster.backends.kubernetes.site import ClusterSite, PlatformOwner
from muster.core.deployment import DeploymentSpec
from muster.core.errors import Forbidden, SpecError
from muster.core.text import shortened

CONTAINER = "kserve-container"  # KServe looks for it by this name
_MODE, _SCALING = "serving.kserve.io/deploymentMode", "serving.kserve.io/autoscalerClass"

_NO_ENGINE = "seldon.io/no-engine"  # users' requests come to the server itself, as with KServe
_SERVICE_NAME = "seldon.io/svc-name"
_UTILIZATION_PERCENT = 80  # as KServe scales


@dataclass(frozen=True, kw_only=True)
class ServingPlatform:
    """What is a platform's own; the route, the pods and how they are asked are the same with all of them.

    The Deployment and the pods that it makes carry the labels of the revision, and its Service has the name that
    :func:`~muster.backends.kubernetes.serving.names.service_name` says.

    :param title: what people call it.
    :param servers: the model servers whose code is carried, each of which answers and counts alike; the first is that of a
        deployment that names none.
    :param kind: of the object that it makes a revision of.
    :param manifest: that object.
    :param condition: which of the object's conditions says that its Deployment has the replicas that it needs.
    :param service_port: of its Service.
    :param release: the oldest that was tried, or read.
    """

    title: str
    servers: tuple[str, ...]
    kind: Kind
    manifest: Callable[[Server], Document]
    condition: str
    service_port: int
    release: str


def inference_service(server: Server) -> Document:
    """Return the InferenceService of a revision. No release edits it: KServe may call an edited one ready that is not.

    With a fixed number of replicas there is no autoscaler, and all of them from the first moment.
    """
    spec = server.spec
    scaling = "none" if spec.most_replicas is None else "hpa"
    metadata = {
        "name": server.name,
        "namespace": server.site.namespace,
        "labels": {**server.labels, **names.CLUSTER_LOCAL},
        "annotations": {_MODE: "Standard", _SCALING: scaling, **_notes(spec)},
    }
    predictor = {
        "minReplicas": spec.replicas,
        "maxReplicas": spec.most_replicas or spec.replicas,
        # for what changes a pod without us, an administrator's hand or KServe's next release
        "deploymentStrategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
        },
        **pod(server, container=CONTAINER),
    }
    return noted(INFERENCE_SERVICE.document(metadata, spec={"predictor": predictor}))


def seldon_deployment(server: Server) -> Document:
    """Return the SeldonDeployment of a revision. It is never edited.

    Its predictor's labels are those of its Deployment and pods, but not of its Service, which gets a name of
    ours. A share of less than 100 is refused for a single predictor; which share of the users comes to it
    is for the route to say. A container that the graph does not name, such as that of a model's workers, is in its
    pods as it is here, and in no Service.

    :raises SpecError: the deployment has the name of the workers' container, where there is one, or the policy tells them apart.
    """
    spec = server.spec
    if spec.name == WORKERS and (spec.workers or spec.log):
        raise SpecError(
            f"deployment {spec.name!r}: with Seldon Core its server's container has its name, which is that of the "
            "container of a model's workers: give it another name"
        )
    component = {"spec": pod(server, container=spec.name), **_scaling(server)}
    metadata = {
        "name": server.name,
        "namespace": server.site.namespace,
        "labels": server.labels,
        "annotations": _notes(spec),
    }
    predictor = {
        "name": server.revision,
        "replicas": spec.replicas,
        "traffic": 100,
        "labels": server.labels,
        "annotations": {_NO_ENGINE: "true", _SERVICE_NAME: names.service_name(server.name)},
        "graph": {"name": spec.name, "type": "MODEL", "children": []},
        "componentSpecs": [component],
    }
    return noted(SELDON_DEPLOYMENT.document(metadata, spec={"protocol": "v2", "predictors": [predictor]}))


def _notes(spec: DeploymentSpec) -> dict[str, str]:
    return {names.MODEL: spec.model.address, names.SPEC: names.spec_digest(spec)}


def _scaling(server: Server) -> Document:
    """How many replicas there may be; a fixed number is the predictor's own."""
    spec = server.spec
    if spec.most_replicas is None:
        return {}
    cpu = {
        "type": "Resource",
        "resource": {
            "name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": _UTILIZATION_PERCENT},
        },
    }
    return {"hpaSpec": {"minReplicas": spec.replicas, "maxReplicas": spec.most_replicas, "metricsv2": [cpu]}}


KSERVE = ServingPlatform(
    title="KServe",
    servers=("kserve", "serve", "seldon"),
    kind=INFERENCE_SERVICE,
    manifest=inference_service,
    condition="PredictorReady",
    service_port=80,
    release="0.20",
)
SELDON = ServingPlatform(
    title="Seldon Core",
    servers=("serve", "kserve", "seldon"),
    kind=SELDON_DEPLOYMENT,
    manifest=seldon_deployment,
    condition="DeploymentsReady",
    service_port=PORT,  # without an orchestrator its Service has the container's own
    release="1.17",
)
_PLATFORMS = {PlatformOwner.KSERVE: KSERVE, PlatformOwner.SELDON: SELDON}


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
        return ()  # this account may not list nodes: only the labels of GPU feature discovery tell of cards
    workers = [node for node in cluster.nodes if not node.control_plane]
    without = {node.gpu_class for node in workers if not node.has_cards}
    if workers and not without:
        return None
    return tuple(sorted({node.gpu_class for node in workers if node.gpu_class} - without))


_HELD = ("image", "command")
_MOST_CHARACTERS = 120


def noted(document: Document) -> Document:
    """Return an object with what it is made with in an annotation."""
    made = {each["name"]: {field: each[field] for field in _HELD} for each in _containers(document)}
    text = json.dumps(made, sort_keys=True, separators=(",", ":"))
    metadata = document["metadata"]
    annotations = {**metadata.get("annotations", {}), names.MADE: text}
    return {**document, "metadata": {**metadata, "annotations": annotations}}


def edited(document: Document) -> str:
    """Return the first field that differs from what muster wrote; empty where none does, or an earlier release made it."""
    made = _read(document)
    found = {each.get("name"): each for each in _containers(document)}
    for name, fields in made.items():
        for field, value in fields.items():
            if name in found and found[name].get(field) != value:
                shown = (json.dumps(each) for each in (found[name].get(field), value))
                return f"{field} of {name} is {' and not '.join(shortened(each, _MOST_CHARACTERS) for each in shown)}"
    return ""


def restored(document: Document) -> Document:
    """Return an object as it is to be written again, without what the API server keeps of it: as it was made."""
    again: Document = {
        field: deepcopy(document[field]) for field in ("apiVersion", "kind", "metadata", "spec")
    }
    for field in again["metadata"].keys() - {"name", "namespace", "labels", "annotations"}:
        del again["metadata"][field]
    made = _read(document)
    for each in _containers(again):
        each.update(made.get(str(each.get("name")), {}))
    return again


def _read(document: Document) -> dict[str, Document]:
    """What is written down; nothing where that was spoiled."""
    try:
        found = json.loads((document["metadata"].get("annotations") or {}).get(names.MADE) or "{}")
        return {str(name): {field: each[field] for field in _HELD} for name, each in found.items()}
    except (ValueError, AttributeError, TypeError, KeyError):
        return {}


def _containers(document: Document) -> Iterator[Document]:
    """The containers of KServe's object, or of Seldon's."""
    spec = document.get("spec") or {}
    for predictor in [spec.get("predictor") or {}, *(spec.get("predictors") or ())]:
        for part in (predictor, *(each.get("spec") or {} for each in predictor.get("componentSpecs") or ())):
            yield from part.get("containers") or ()
