"""Looks at the objects of a deployment: four lists, however many revisions it has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import DEPLOYMENT, ENDPOINT_SLICE, POD, Document, Kind
from muster.backends.kubernetes.labels import selector
from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.standing import Objects

_SERVICE = "kubernetes.io/service-name"  # Kubernetes labels an EndpointSlice with it


@dataclass(frozen=True)
class Look:
    """What there was of a deployment, by revision."""

    revisions: Mapping[str, Objects]

    def of(self, revision: str) -> Objects:
        """The objects of a revision; none where there are none."""
        return self.revisions.get(revision, Objects())


def look(client: Client, deployment: str, revisions: Collection[str], *, kind: Kind, namespace: str) -> Look:
    """Return what there is of a deployment now.

    :param revisions: those that are looked at.
    :param kind: what the serving platform makes one of.
    """
    services = {
        names.service_name(names.revision_name(deployment, revision, namespace=namespace)): revision
        for revision in revisions
    }
    if not services:
        return Look({})
    wanted = selector(names.of_deployment(deployment))
    slices = client.find(ENDPOINT_SLICE, namespace=namespace, labels=f"{_SERVICE} in ({','.join(services)})")
    found: dict[str, dict[Kind, list[Document]]] = {revision: {} for revision in revisions}
    for document in slices:
        revision = services[document["metadata"]["labels"][_SERVICE]]
        found[revision].setdefault(ENDPOINT_SLICE, []).append(document)
    for each in (kind, DEPLOYMENT, POD):
        for document in client.find(each, namespace=namespace, labels=wanted):
            of = found.get(document["metadata"]["labels"].get(names.REVISION))
            if of is not None:
                of.setdefault(each, []).append(document)
    return Look({revision: _objects(kind, kinds) for revision, kinds in found.items()})


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
