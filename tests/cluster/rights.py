"""What each account may do, and everything else that it was seen to be refused.

Each deed is tried by each account, as a request that the API server answers and does not carry out
(``dryRun=All``). As a command it prints the table, inside the cluster::

    python -m tests.cluster exec python -m tests.cluster.rights
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.cluster.accounts import JOB, NAMESPACE, OPERATOR, REAPER, STORE
from tests.cluster.inside import layout
from tests.cluster.layout import Layout
from tests.cluster.scripted import connection

from muster.backends.kubernetes.api import kinds
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import Kind
from muster.backends.kubernetes.api.refusals import ApiRequest
from muster.core.errors import Conflict, Forbidden, NotFound, SpecError

ACCOUNTS = (OPERATOR, REAPER, JOB, STORE)
ELSEWHERE = "kube-system"

_ROLE = Kind(api_version="rbac.authorization.k8s.io/v1", name="Role", plural="roles")
_BINDING = Kind(api_version="rbac.authorization.k8s.io/v1", name="RoleBinding", plural="rolebindings")
_CLUSTER_BINDING = Kind(
    api_version="rbac.authorization.k8s.io/v1",
    name="ClusterRoleBinding",
    plural="clusterrolebindings",
    namespaced=False,
)
_ACCOUNT = Kind(api_version="v1", name="ServiceAccount", plural="serviceaccounts")
_CLUSTER_QUEUE_VIEW = Kind(
    api_version=kinds.QUEUE_VIEW.api_version, name="ClusterQueue", plural="clusterqueues", namespaced=False
)
_VOLUME = Kind(api_version="v1", name="PersistentVolume", plural="persistentvolumes", namespaced=False)
_DEFINITION = Kind(
    api_version="apiextensions.k8s.io/v1",
    name="CustomResourceDefinition",
    plural="customresourcedefinitions",
    namespaced=False,
)


@dataclass(frozen=True)
class Deed:
    """One thing to try.

    :param verb: of a Role; ``deletecollection`` too.
    """

    verb: str
    kind: Kind
    subresource: str = ""
    namespace: str = NAMESPACE

    @property
    def resource(self) -> str:
        """As a Role names it: ``pods/log``."""
        return self.kind.plural + (f"/{self.subresource}" if self.subresource else "")

    def __str__(self) -> str:
        """As in ``delete pods``, with the place where it is not the jobs' own namespace."""
        what = self.kind.resource + (f"/{self.subresource}" if self.subresource else "")
        place = f" in {self.namespace}" if self.kind.namespaced and self.namespace != NAMESPACE else ""
        return f"{self.verb} {what}{place}"


def _on(kind: Kind, *verbs: str, subresource: str = "", namespace: str = NAMESPACE) -> tuple[Deed, ...]:
    return tuple(Deed(verb, kind, subresource, namespace) for verb in verbs)


_READ = ("get", "list", "watch")
# A watch would go on, but for an option that none may have, which is looked at after the right to watch.
_ASKS_ONLY = {"get": {}, "list": {}, "watch": {"watch": "true", "resourceVersionMatch": "Exact"}}
_CHANGE = ("update", "patch")

_JOBS = (*(deed for kind in (kinds.JOB_SET, kinds.JOB) for deed in _on(kind, *_READ, "create", "delete")),)
_GROUPS = _on(kinds.POD_GROUP, *_READ, "create")  # no job's, where Kueue starts gangs whole
_PODS = _on(kinds.POD, *_READ)
_SERVES = (
    *_on(kinds.INFERENCE_SERVICE, "get", "list", "create", "patch", "delete"),
    *_on(kinds.HTTP_ROUTE, "get", "list", "create", "patch", "delete"),
    *_on(kinds.SERVICE, "get", "list", "create"),
    *_on(kinds.CONFIG_MAP, "get", "list", "create", "patch"),
    *_on(kinds.DEPLOYMENT, "list"),
    *_on(kinds.ENDPOINT_SLICE, "list"),
    *_on(kinds.POD, "get", "create", subresource="proxy"),
)

MAY: Mapping[str, frozenset[Deed]] = {
    OPERATOR: frozenset(
        (
            *_JOBS,
            *_PODS,
            *_on(kinds.EVENT, *_READ),
            *_on(kinds.SECRET, "create"),
            *_on(kinds.CLAIM, "get"),
            *_on(kinds.WORKLOAD, *_READ),
            *_on(kinds.LOCAL_QUEUE, *_READ),
            *_on(kinds.QUEUE_VIEW, "get", subresource="pendingworkloads"),
            *_SERVES,
            *_on(kinds.NODE, "list"),
            *_on(kinds.CLUSTER_QUEUE, "list"),
            *_on(kinds.RESOURCE_FLAVOR, "list"),
            *_on(kinds.COHORT, "list"),
            *_on(kinds.WORKLOAD_PRIORITY_CLASS, "list"),
        )
    ),
    REAPER: frozenset(
        (
            *_on(kinds.POD, "list", "watch", "delete"),
            *_on(kinds.POD, "patch", subresource="status"),
            *_on(kinds.NODE, "get"),
        )
    ),
    JOB: frozenset(),
    STORE: frozenset(),
}

DEEDS: tuple[Deed, ...] = (
    *_JOBS,
    *_GROUPS,
    *(deed for kind in (kinds.JOB_SET, kinds.JOB, kinds.POD_GROUP) for deed in _on(kind, *_CHANGE)),
    *_on(kinds.POD_GROUP, "delete"),
    *_on(kinds.JOB, "patch", subresource="status"),
    *_on(kinds.JOB_SET, "deletecollection"),
    *_on(kinds.JOB, "create", namespace=ELSEWHERE),
    *_PODS,
    *_on(kinds.POD, "create", *_CHANGE, "delete", "deletecollection"),
    *_on(kinds.POD, "patch", subresource="status"),
    *_on(kinds.POD, "get", subresource="log"),
    *_on(kinds.POD, "create", subresource="exec"),
    *_on(kinds.POD, "create", subresource="attach"),
    *_on(kinds.POD, "create", subresource="portforward"),
    *_on(kinds.POD, "create", subresource="eviction"),
    *_on(kinds.POD, "patch", subresource="ephemeralcontainers"),
    *_on(kinds.POD, "list", "delete", namespace=ELSEWHERE),
    *_on(kinds.EVENT, *_READ, "create"),
    *_on(kinds.SECRET, *_READ, "create", *_CHANGE, "delete", "deletecollection"),
    *_on(kinds.SECRET, *_READ, "create", "delete", namespace=ELSEWHERE),
    *_on(kinds.CONFIG_MAP, *_READ, "create", *_CHANGE, "delete"),
    *_on(kinds.SERVICE, *_READ, "create", "delete"),
    *_on(kinds.DEPLOYMENT, *_READ, "create", *_CHANGE, "delete"),
    *_on(kinds.INFERENCE_SERVICE, *_READ, "create", *_CHANGE, "delete", "deletecollection"),
    *_on(kinds.HTTP_ROUTE, *_READ, "create", *_CHANGE, "delete", "deletecollection"),
    *_on(kinds.HTTP_ROUTE, "get", "create", namespace=ELSEWHERE),
    *_on(kinds.ENDPOINT_SLICE, *_READ, "create", "delete"),
    *_on(kinds.POD, "get", "create", "delete", subresource="proxy"),
    *_on(kinds.POD, "get", subresource="proxy", namespace=ELSEWHERE),
    *_on(kinds.GATEWAY, *_READ, *_CHANGE),
    *_on(kinds.CLAIM, *_READ, "create", *_CHANGE, "delete"),
    *_on(_VOLUME, *_READ, "create", "delete"),
    *_on(_ACCOUNT, *_READ, "create"),
    *_on(_ACCOUNT, "create", subresource="token"),
    *_on(_ROLE, *_READ, "create", *_CHANGE),
    *_on(_BINDING, *_READ, "create"),
    *_on(_CLUSTER_BINDING, *_READ, "create"),
    *_on(kinds.WORKLOAD, *_READ, "create", *_CHANGE, "delete"),
    *_on(kinds.LOCAL_QUEUE, *_READ, "create", *_CHANGE, "delete"),
    *_on(kinds.QUEUE_VIEW, "get", subresource="pendingworkloads"),
    *_on(kinds.CLUSTER_QUEUE, *_READ, *_CHANGE, "delete"),
    *_on(_CLUSTER_QUEUE_VIEW, "get", subresource="pendingworkloads"),
    *_on(kinds.RESOURCE_FLAVOR, *_READ, *_CHANGE),
    *_on(kinds.TOPOLOGY, *_READ, *_CHANGE),
    *_on(kinds.COHORT, *_READ, *_CHANGE),
    *_on(kinds.WORKLOAD_PRIORITY_CLASS, *_READ, "create", *_CHANGE),
    *_on(kinds.NODE, *_READ, *_CHANGE, "delete"),
    *_on(kinds.NODE, "get", subresource="proxy"),
    *_on(kinds.NAMESPACE, *_READ, "create", *_CHANGE, "delete"),
    *_on(_DEFINITION, *_READ, "create", "delete"),
)

_NAME = "missing"  # no object has that name: the request itself is refused


def may(client: Client, deed: Deed) -> bool:
    """Try a deed: whether the API server would have done it, had there been what it is about.

    :raises MusterError: neither was found out: the API server is away, or does not know who asks.
    """
    namespace = deed.namespace if deed.kind.namespaced else None
    collection = deed.verb in ("list", "watch", "deletecollection") or (
        deed.verb == "create" and not deed.subresource
    )
    path = deed.kind.path(
        namespace=namespace, name=None if collection else _NAME, subresource=deed.subresource
    )
    verb = "delete" if deed.verb == "deletecollection" else deed.verb
    query = _ASKS_ONLY.get(deed.verb, {"dryRun": "All"})
    body = None if deed.verb in _READ else _body(deed, namespace)
    try:
        client.ask(
            ApiRequest(verb=verb, kind=deed.kind, name=_NAME, namespace=namespace),
            path=path,
            query=query,
            body=body,
            content_type="application/merge-patch+json" if deed.verb == "patch" else "application/json",
        )
    except Forbidden as error:
        if f" may not {deed.verb} {deed.kind.plural}" not in str(error):
            raise
        return False
    except (NotFound, Conflict, SpecError):  # it may, and there is no such thing, or none such can be
        return True
    return True


def tried(of: Layout, account: str) -> dict[Deed, bool]:
    """Try everything as one account."""
    client = Client(connection(of, account), patience_seconds=10)
    return {deed: may(client, deed) for deed in DEEDS}


def table(found: Mapping[str, Mapping[Deed, bool]]) -> str:
    """Write what was tried as a table, an account a column."""
    width = max(len(str(deed)) for deed in DEEDS)
    lines = [" ".join(["".ljust(width), *(account.rjust(16) for account in found)])]
    for deed in DEEDS:
        cells = ["may" if each[deed] else "refused" for each in found.values()]
        lines.append(" ".join([str(deed).ljust(width), *(cell.rjust(16) for cell in cells)]))
    return "\n".join(lines)


def _body(deed: Deed, namespace: str | None) -> dict[str, object]:
    if deed.verb in ("delete", "deletecollection"):
        return {"dryRun": ["All"]}
    place = {"namespace": namespace} if namespace else {}
    return {
        "apiVersion": deed.kind.api_version,
        "kind": deed.kind.name,
        "metadata": {"name": _NAME, **place},
    }


if __name__ == "__main__":
    print(table({account: tried(layout(), account) for account in ACCOUNTS}))
