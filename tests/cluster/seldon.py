"""Seldon Core's part on the test cluster: its definition, and a stand-in for its operator, which is not to be had here.

The stand-in makes of a SeldonDeployment what Seldon's operator makes of one with a single predictor and no
orchestrator (release 1.17.1, ``operator/controllers/seldondeployment_controller.go``), as far as muster sees it: a
Deployment whose labels are the predictor's, a Service whose are not, and the condition ``DeploymentsReady``. Of several
containers the graph names one; the others are in the pods as they are. It is
written down here from reading that, so it shows that muster goes with what was read, and not that Seldon goes with
muster.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from tests.cluster import deploying
from tests.cluster.accounts import NAMESPACE
from tests.cluster.layout import Layout

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import DEPLOYMENT, SELDON_DEPLOYMENT, SERVICE, Document
from muster.backends.kubernetes.cluster.facts import condition
from muster.core.errors import Conflict, NotFound

_LOOK_SECONDS = 0.2
_ID, _APP = "seldon-deployment-id", "seldon-app"
_LONGEST_NAME = 63


@contextmanager
def operator(of: Layout) -> Iterator[None]:
    """Have a stand-in for Seldon's operator for a while."""
    stopping = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(_keep, Client(deploying.administrator(of), patience_seconds=20), stopping)
        try:
            yield
        finally:
            stopping.set()
            running.result()


def _keep(client: Client, stopping: threading.Event) -> None:
    made: set[str] = set()
    while not stopping.wait(_LOOK_SECONDS):
        for found in client.find(SELDON_DEPLOYMENT, namespace=NAMESPACE):
            if found["metadata"].get("deletionTimestamp"):
                continue
            if found["metadata"]["uid"] not in made:
                _make(client, found)
                made.add(found["metadata"]["uid"])
            _report(client, found)


def _make(client: Client, of: Document) -> None:
    for each in (deployment(of), service(of)):
        with suppress(Conflict):  # it is there
            client.create(each)


def _report(client: Client, of: Document) -> None:
    """Say of a SeldonDeployment what its Deployment says of itself."""
    made = client.get(DEPLOYMENT, deployment(of)["metadata"]["name"], namespace=NAMESPACE)
    said = {"status": "Unknown", **(condition(made, "Available") if made else {}), "type": "DeploymentsReady"}
    if condition(of, "DeploymentsReady") == said:
        return
    change = {"status": {"conditions": [said]}}
    with suppress(NotFound):  # it was deleted meanwhile
        client.patch(
            SELDON_DEPLOYMENT, of["metadata"]["name"], change, namespace=NAMESPACE, subresource="status"
        )


def deployment(of: Document) -> Document:
    """Return the Deployment of a SeldonDeployment, by Seldon's name for it."""
    predictor = _predictor(of)
    (component,) = predictor["componentSpecs"]
    labels = {**_identity(of), **predictor["labels"]}
    return {
        "apiVersion": DEPLOYMENT.api_version,
        "kind": DEPLOYMENT.name,
        "metadata": {
            **_owned(of),
            "name": _name(of, predictor, component["spec"]),
            "labels": labels,
        },
        "spec": {
            "replicas": predictor["replicas"],
            "selector": {"matchLabels": _identity(of)},
            "template": {
                "metadata": {"labels": labels, "annotations": predictor["annotations"]},
                "spec": component["spec"],
            },
        },
    }


def service(of: Document) -> Document:
    """Return the Service of a SeldonDeployment's predictor, which has the port of its container."""
    predictor = _predictor(of)
    (component,) = predictor["componentSpecs"]
    graph = predictor["graph"]["name"]
    (container,) = (each for each in component["spec"]["containers"] if each["name"] == graph)
    (port,) = container["ports"]
    number = port["containerPort"]
    return {
        "apiVersion": SERVICE.api_version,
        "kind": SERVICE.name,
        "metadata": {**_owned(of), "name": _identity(of)[_APP], "labels": _identity(of)},
        "spec": {
            "selector": {_APP: _identity(of)[_APP]},
            "ports": [{"name": port["name"], "port": number, "targetPort": number, "protocol": "TCP"}],
        },
    }


def _name(of: Document, predictor: Mapping[str, Any], pod: Document) -> str:
    """Seldon's name for a Deployment: of all its containers, or a hash where that is too long."""
    containers = "-".join(each["name"] for each in pod["containers"])
    name = f"{of['metadata']['name']}-{predictor['name']}-0-{containers}"
    if len(name) <= _LONGEST_NAME:
        return name
    return f"seldon-{hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()}"


def _predictor(of: Document) -> Mapping[str, Any]:
    (predictor,) = of["spec"]["predictors"]
    return dict(predictor)


def _identity(of: Document) -> dict[str, str]:
    """The labels by which Seldon finds what it made."""
    return {_ID: of["metadata"]["name"], _APP: _predictor(of)["annotations"]["seldon.io/svc-name"]}


def _owned(of: Document) -> Document:
    owner = {
        "apiVersion": SELDON_DEPLOYMENT.api_version,
        "kind": SELDON_DEPLOYMENT.name,
        "name": of["metadata"]["name"],
        "uid": of["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {"namespace": NAMESPACE, "ownerReferences": [owner]}
