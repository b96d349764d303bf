"""The kinds of objects that muster makes or reads, and where the API serves them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote

from muster.core.errors import SpecError

Document: TypeAlias = dict[str, Any]
"""An object of the Kubernetes API, or a part of one, as JSON: what the API server's own schema types, and checks.

A whole object has ``apiVersion``, ``kind`` and ``metadata``; :func:`kind_of` refuses one that muster does not know.
"""

Read = Callable[[Document], Document]
"""Is given every JSON object of an answer, the innermost first; what it returns takes that one's place."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of object.

    :param plural: its name in addresses and roles, as in ``kubectl get jobsets``.
    """

    api_version: str
    name: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """The API group, as a Role's ``apiGroups`` names it; empty for the core."""
        return self.api_version.rpartition("/")[0]

    @property
    def resource(self) -> str:
        """What kubectl and messages of the API server call it: ``jobsets.jobset.x-k8s.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, *, namespace: str | None = None, name: str | None = None, subresource: str = "") -> str:
        """Return where it is served; every part is quoted, so that no name can lead elsewhere."""
        parts = ["apis" if self.group else "api", *self.api_version.split("/")]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name is not None:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/" + "/".join(parts)

    def document(self, metadata: Document, **rest: Any) -> Document:
        """Return an object of this kind."""
        return {"apiVersion": self.api_version, "kind": self.name, "metadata": metadata, **rest}


POD = Kind(api_version="v1", name="Pod", plural="pods")
SECRET = Kind(api_version="v1", name="Secret", plural="secrets")
CLAIM = Kind(api_version="v1", name="PersistentVolumeClaim", plural="persistentvolumeclaims")
EVENT = Kind(api_version="v1", name="Event", plural="events")
NAMESPACE = Kind(api_version="v1", name="Namespace", plural="namespaces", namespaced=False)
NODE = Kind(api_version="v1", name="Node", plural="nodes", namespaced=False)
JOB = Kind(api_version="batch/v1", name="Job", plural="jobs")
JOB_SET = Kind(api_version="jobset.x-k8s.io/v1alpha2", name="JobSet", plural="jobsets")
POD_GROUP = Kind(api_version="scheduling.k8s.io/v1beta1", name="PodGroup", plural="podgroups")
_KUEUE = "kueue.x-k8s.io/v1beta2"
WORKLOAD = Kind(api_version=_KUEUE, name="Workload", plural="workloads")
LOCAL_QUEUE = Kind(api_version=_KUEUE, name="LocalQueue", plural="localqueues")
CLUSTER_QUEUE = Kind(api_version=_KUEUE, name="ClusterQueue", plural="clusterqueues", namespaced=False)
COHORT = Kind(api_version=_KUEUE, name="Cohort", plural="cohorts", namespaced=False)
RESOURCE_FLAVOR = Kind(api_version=_KUEUE, name="ResourceFlavor", plural="resourceflavors", namespaced=False)
TOPOLOGY = Kind(api_version=_KUEUE, name="Topology", plural="topologies", namespaced=False)
WORKLOAD_PRIORITY_CLASS = Kind(
    api_version=_KUEUE, name="WorkloadPriorityClass", plural="workloadpriorityclasses", namespaced=False
)
# What Kueue does for Workloads, the scheduler does for pods where there is no Kueue.
PRIORITY_CLASS = Kind(
    api_version="scheduling.k8s.io/v1", name="PriorityClass", plural="priorityclasses", namespaced=False
)
# What Kueue's visibility server says of a queue: served, never stored.
QUEUE_VIEW = Kind(api_version="visibility.kueue.x-k8s.io/v1beta2", name="LocalQueue", plural="localqueues")
SERVICE = Kind(api_version="v1", name="Service", plural="services")
CONFIG_MAP = Kind(api_version="v1", name="ConfigMap", plural="configmaps")
DEPLOYMENT = Kind(api_version="apps/v1", name="Deployment", plural="deployments")
ENDPOINT_SLICE = Kind(api_version="discovery.k8s.io/v1", name="EndpointSlice", plural="endpointslices")
_GATEWAY = "gateway.networking.k8s.io/v1"
GATEWAY = Kind(api_version=_GATEWAY, name="Gateway", plural="gateways")
HTTP_ROUTE = Kind(api_version=_GATEWAY, name="HTTPRoute", plural="httproutes")
INFERENCE_SERVICE = Kind(
    api_version="serving.kserve.io/v1beta1", name="InferenceService", plural="inferenceservices"
)
SELDON_DEPLOYMENT = Kind(
    api_version="machinelearning.seldon.io/v1", name="SeldonDeployment", plural="seldondeployments"
)
ACCESS_REVIEW = Kind(
    api_version="authorization.k8s.io/v1",
    name="SelfSubjectAccessReview",
    plural="selfsubjectaccessreviews",
    namespaced=False,
)

_KINDS = {(kind.api_version, kind.name): kind for kind in vars().copy().values() if isinstance(kind, Kind)}


def kind_of(document: Mapping[str, Any]) -> Kind:
    """Return the kind of a document. :raises SpecError: muster neither makes nor reads such objects."""
    api_version, name = document.get("apiVersion"), document.get("kind")
    kind = _KINDS.get((str(api_version), str(name)))
    if kind is None:
        raise SpecError(f"muster knows no {name!r:.60} of {api_version!r:.60}: add it to kinds.py")
    return kind


def owned_by(document: Document, owner: Document) -> Document:
    """Return a document that goes when `owner`, as the API returned it, goes."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }
    return {**document, "metadata": {**document["metadata"], "ownerReferences": [reference]}}
