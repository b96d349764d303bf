"""Looks at the objects of a deployment: four lists, however many revisions it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import (
    DEPLOYMENT,
    ENDPOINT_SLICE,
    INFERENCE_SERVICE,
    POD,
    Document,
    Kind,
)
from muster.backends.kubernetes.labels import selector
from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.standing import Objects

_KINDS: Mapping[str, Kind] = {
    "service": INFERENCE_SERVICE,
    "workload": DEPLOYMENT,
    "slices": ENDPOINT_SLICE,
    "pods": POD,
}


@dataclass(frozen=True)
class Look:
    """What there was of a deployment, by revision."""

    revisions: Mapping[str, Objects]

    def of(self, revision: str) -> Objects:
        """The objects of a revision; none where there are none."""
        return self.revisions.get(revision, Objects())


def look(client: Client, deployment: str, *, namespace: str) -> Look:
    """Return what there is of a deployment now."""
    wanted = selector(names.of_deployment(deployment))
    found: dict[str, dict[str, list[Document]]] = {}
    for place, kind in _KINDS.items():
        for document in client.find(kind, namespace=namespace, labels=wanted):
            revision = document["metadata"]["labels"].get(names.REVISION)
            if revision is not None:
                found.setdefault(revision, {}).setdefault(place, []).append(document)
    return Look({revision: _objects(kinds) for revision, kinds in found.items()})


def _objects(found: Mapping[str, list[Document]]) -> Objects:
    return Objects(
        service=_only(found.get("service")),
        workload=_only(found.get("workload")),
        slices=tuple(found.get("slices", ())),
        pods=tuple(found.get("pods", ())),
    )


def _only(documents: list[Document] | None) -> Document | None:
    """The one that is to stay: KServe makes one of each kind."""
    return next((each for each in documents or () if not each["metadata"].get("deletionTimestamp")), None)
