"""The objects of some revisions and routes, as files in golden/: what a person reviews when they change.

Each kind is there whole once, the others by what differs from it (:mod:`tests.golden`).
``python -m tests.unit.backends.kubernetes.serving.golden`` writes them anew; look at ``git diff`` then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests import golden
from tests.unit.backends.kubernetes import golden as of_jobs
from tests.unit.backends.kubernetes.golden import DIGEST

from muster.backends.kubernetes.api.kinds import Document, owned_by
from muster.backends.kubernetes.serving.kinds import inference_service, seldon_deployment
from muster.backends.kubernetes.serving.route import Route, write_route
from muster.backends.kubernetes.serving.server import Server, code, grpc_service
from muster.backends.kubernetes.site import ClusterSite, PlatformOwner
from muster.backends.releases.book import BookEntry
from muster.core.data import Pinned
from muster.core.deployment import (
    Batch,
    DeploymentSpec,
    Release,
    RequestLog,
    Revision,
    RevisionState,
    SmokeRequest,
    Workers,
)
from muster.core.resources import Resources

FOLDER = Path(__file__).with_name("golden")
NOW = 1_795_000_000.0
SITE = replace(
    of_jobs.SITE,
    gpu_environment={},
    serving=PlatformOwner.KSERVE,
    gateway="gateways/public",
    serving_url="https://{name}.models.example.com",
)
ANYWHERE = replace(SITE, gateway="", serving_url="", user=None, folder="", image_pull_secrets=())
CLASSES = ("gpu-a100", "gpu-k80")


def spec(number: int = 7, **changes: Any) -> DeploymentSpec:
    """A deployment of one version, as plain as can be but for `changes`, by the server that KServe runs by default."""
    fields = {
        "name": "flights",
        "model": Pinned(address=f"volume://flights/model@{number}", digest=DIGEST),
        "image": "kserve",
        "image_digest": DIGEST,
        "server": "kserve",
        "resources": Resources(cpus=0.5, memory_gib=1),
    }
    return DeploymentSpec(**{**fields, **changes})


OWN = {"image": "serve", "server": "serve"}  # what Seldon Core runs by default
SCALED = spec(8, replicas=2, most_replicas=10, load_timeout_seconds=600.0)
WRAPPED = replace(SCALED, image="seldon", server="seldon")
ON_CARDS = spec(9, resources=Resources(cpus=4, memory_gib=16, gpus=1, gpu_class=("a100", "k80")))
WITH_WORKERS = spec(
    10,
    resources=Resources(cpus=2, memory_gib=4),
    workers=Workers(
        image="tables", image_digest=DIGEST, count=2, batch=Batch(most=64, wait_ms=5), trusted=("pickle",)
    ),
)
LOGGED = replace(
    WITH_WORKERS, log=RequestLog(share=0.1, leave_out=("comment",), hashed=("user",)), tokens=True
)
SMOKED = spec(8, smoke=(SmokeRequest(name="one", inputs={"hour": (13,)}, expect={"p": {"min": 0}}),))
ROUTE = Route(
    name="flights",
    shares={"r1": 80, "r2": 20},
    version="4711",
    made=3,
    writes=5,
    moved=NOW,
    live=(BookEntry(name="r2", spec=SMOKED, since=NOW), BookEntry(name="r1", spec=spec(), since=NOW - 60)),
    over=(
        Revision(
            name="r3",
            model=spec(9).model,
            state=RevisionState.REFUSED,
            since=NOW,
            reason="r3 answered 500",
        ),
    ),
    release=Release(revision="r2", champion="r1", by="manual/flights/deploy", since=NOW),
)


OVER_GRPC = replace(
    ROUTE,
    live=(
        BookEntry(name="r2", spec=spec(8, grpc=True), since=NOW),
        BookEntry(name="r1", spec=spec(grpc=True), since=NOW - 60),
    ),
)


def server(of: DeploymentSpec, revision: str, site: ClusterSite = SITE) -> Server:
    return Server(spec=of, revision=revision, site=site, gpu_classes=CLASSES)


def owner_of(made: Server) -> Document:
    owner = inference_service(made)
    return {**owner, "metadata": {**owner["metadata"], "uid": "uid-1"}}


def _with_code(made: Server) -> Document:
    document = owned_by(code(made), owner_of(made))
    (name,) = document["binaryData"]
    return {**document, "binaryData": {name: "THE SERVERS' CODE"}}


def examples() -> Mapping[str, Document]:
    """Every example by the name of its file."""
    return {
        "fixed": inference_service(server(spec(), "r1")),
        "scaled": inference_service(server(SCALED, "r2", ANYWHERE)),
        "on-cards": inference_service(server(ON_CARDS, "r3")),
        "workers": inference_service(server(WITH_WORKERS, "r4")),
        "logged": inference_service(server(LOGGED, "r4")),
        "seldon-logged": seldon_deployment(server(spec(log=RequestLog(), **OWN), "r1")),
        "over-grpc": inference_service(server(spec(grpc=True), "r1")),
        "grpc-service": owned_by(grpc_service(server(spec(grpc=True), "r1")), owner_of(server(spec(), "r1"))),
        "code": _with_code(server(spec(), "r1")),
        "seldon": seldon_deployment(server(spec(**OWN), "r1")),
        "seldon-scaled": seldon_deployment(server(WRAPPED, "r2", ANYWHERE)),
        "seldon-workers": seldon_deployment(server(replace(WITH_WORKERS, **OWN), "r4")),
        "route": write_route(ROUTE, SITE),
        "seldon-route": write_route(ROUTE, replace(SITE, serving=PlatformOwner.SELDON)),
        "grpc-route": write_route(OVER_GRPC, SITE),
        "whole-grpc-route": write_route(replace(OVER_GRPC, shares={"r1": 100}), ANYWHERE),
        "whole-route": write_route(replace(ROUTE, shares={"r1": 100}), ANYWHERE),
    }


LIKE = {
    "scaled": "fixed",
    "on-cards": "fixed",
    "workers": "fixed",
    "logged": "workers",
    "over-grpc": "fixed",
    "grpc-route": "route",
    "whole-grpc-route": "whole-route",
    "seldon-logged": "seldon",
    "seldon-scaled": "seldon",
    "seldon-workers": "seldon",
    "seldon-route": "route",
}


def written() -> dict[str, str]:
    """Every file by its name: an example whole, or by what differs from the one that it is like."""
    texts = {name: golden.text(document) for name, document in examples().items()}
    return golden.files(texts, like=LIKE)


if __name__ == "__main__":
    golden.write(FOLDER, written())
