"""What the objects of a deployment are called, and the labels by which they are found again."""

from __future__ import annotations

import hashlib

from muster.backends.kubernetes import labels
from muster.core.deployment import DeploymentSpec
from muster.core.names import check_label
from muster.core.wire import dumps_every_field

DEPLOYMENT = f"{labels.PREFIX}deployment"
REVISION = f"{labels.PREFIX}revision"
NOTES = f"{labels.PREFIX}release"  # the annotation of a route that holds what it remembers
SHARES = f"{labels.PREFIX}shares"  # of a route: the shares as muster wrote them, percent by revision
MODEL = f"{labels.PREFIX}model"
SPEC = f"{labels.PREFIX}spec"  # a digest: what a revision was made of
MADE = (
    f"{labels.PREFIX}made"  # of a revision's object: image and command of each container as muster wrote them
)
PAUSED = f"{labels.PREFIX}paused"  # of a route: who wants it left as it is, and why
CLUSTER_LOCAL = {"networking.kserve.io/visibility": "cluster-local"}  # KServe makes no route of its own then

_LONGEST = 63  # a DNS label
_DIGITS = 8


def route_name(deployment: str) -> str:
    """What a deployment's route is called: its name, with a letter before it where it begins with a digit.

    :raises SpecError: it is no name.
    """
    check_label("deployment", deployment)
    return deployment if deployment[0].isalpha() else f"d-{deployment}"


def revision_name(deployment: str, revision: str, *, namespace: str) -> str:
    """What a revision's objects are called, with every platform: ``shop-r7``.

    KServe makes DNS labels of that, ``shop-r7-predictor`` and ``shop-r7-NAMESPACE``; where those would be too
    long, a part of the deployment's name makes room for a digest of it.
    """
    name = f"{route_name(deployment)}-{revision}"
    room = _LONGEST - max(len("-predictor"), len(f"-{namespace}"))
    if len(name) <= room:
        return name
    digest = hashlib.sha256(deployment.encode()).hexdigest()[:_DIGITS]
    stem = route_name(deployment)[: room - len(f"-{digest}-{revision}")].rstrip("-")
    return f"{stem or 'd'}-{digest}-{revision}"


def spec_digest(spec: DeploymentSpec) -> str:
    """Return a word that no other spec has: 16 hex digits of a SHA-256 hash.

    It is made of every field, as the release before made it: objects that are there keep theirs.
    """
    return hashlib.sha256(dumps_every_field(spec).encode()).hexdigest()[:16]


def service_name(revision_object: str) -> str:
    """What a revision's Service is called: as KServe calls it, and Seldon Core is told to."""
    return f"{revision_object}-predictor"


def grpc_service_name(revision_object: str) -> str:
    """What the Service is called by which a Gateway asks a revision over gRPC."""
    return f"{revision_object}-grpc"


def tokens_name(deployment: str) -> str:
    """What the ConfigMap with the digests of a deployment's tokens is called; no revision's ends so."""
    return f"{route_name(deployment)}-tokens"


def of_deployment(deployment: str) -> dict[str, str]:
    """The label of every object of a deployment."""
    return {DEPLOYMENT: deployment}


def of_revision(deployment: str, revision: str) -> dict[str, str]:
    """The labels of every object of a revision, of its pods too."""
    return {DEPLOYMENT: deployment, REVISION: revision}
