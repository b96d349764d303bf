"""Looks at the objects of deployments: four lists at the same time, however many there are, with all their revisions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import DEPLOYMENT, ENDPOINT_SLICE, POD, Document, Kind
from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.standing import Objects

_SERVICE = "kubernetes.io/service-name"  # Kubernetes labels an EndpointSlice with it


Name = tuple[str, str]
"""A deployment and a revision of it."""


@dataclass(frozen=True)
class Look:
    """What there was of some revisions."""

    revisions: Mapping[Name, Objects]

    def of(self, deployment: str, revision: str) -> Objects:
        """The objects of a revision; none where there are none."""
        return self.revisions.get((deployment, revision), Objects())


def look(client: Client, revisions: Collection[Name], *, kind: Kind, namespace: str) -> Look:
    """Return what there is of revisions now.

    :param kind: what the serving platform makes one of.
    """
    services = {
        names.service_name(names.revision_name(*each, namespace=namespace)): each for each in revisions
    }
    if not services:
        return Look({})
    deployments = sorted({deployment for deployment, _ in revisions})
    ours, theirs = (
        f"{label} in ({','.join(wanted)})"
        for label, wanted in ((names.DEPLOYMENT, deployments), (_SERVICE, services))
    )
    wanted = {ENDPOINT_SLICE: theirs, kind: ours, DEPLOYMENT: ours, POD: ours}
    with ThreadPoolExecutor(len(wanted)) as pool:
        lists = pool.map(lambda each: client.find(each, namespace=namespace, labels=wanted[each]), wanted)
        listed = dict(zip(wanted, lists, strict=True))
    found: dict[Name, dict[Kind, list[Document]]] = {each: {} for each in revisions}
    for each, documents in listed.items():
        for document in documents:
            labels = document["metadata"]["labels"]
            own = (labels.get(names.DEPLOYMENT, ""), labels.get(names.REVISION, ""))
            of = services[labels[_SERVICE]] if each is ENDPOINT_SLICE else own
            if of in found:
                found[of].setdefault(each, []).append(document)
    return Look({name: _objects(kind, kinds) for name, kinds in found.items()})


def _objects(kind: Kind, found: Mapping[Kind, list[Document]]) -> Objects:
    return Objects(
        service=_only(found.get(kind)),
        workload=_only(found.get(DEPLOYMENT)),
        slices=tuple(found.get(ENDPOINT_SLICE, ())),
        pods=tuple(found.get(POD, ())),
    )


def _only(documents: list[Document] | None) -> Document | None:
    """The one that is to stay: a platform makes one of each kind."""
    return next((each for each in documents or () if not each["metadata"].get("deletionTimestamp")), None)
