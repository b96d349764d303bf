"""Deployments on the test cluster, with the rights and the store that Airflow's worker would have."""

from __future__ import annotations

import http.client
import json
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.cluster import backend, kubectl, serving, store
from tests.cluster.accounts import NAMESPACE
from tests.cluster.layout import Layout
from tests.cluster.scripted import connection
from tests.waiting import eventually

from muster.backends.kubernetes.api.access import Access, connect
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import SELDON_DEPLOYMENT
from muster.backends.kubernetes.cluster.discovery import serves
from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.platform import ClusterPlatform
from muster.backends.kubernetes.site import ClusterSite, PlatformOwner
from muster.backends.releases.deployments import Deployments
from muster.core.wire import plain
from muster.volumes.service.client import ServiceStore
from muster.volumes.service.spools import ServiceSpools

SITE = replace(
    backend.SITE,
    serving=PlatformOwner.KSERVE,
    gateway=serving.GATEWAY,
    serving_url=serving.GATEWAY_URL,
    gateway_seconds=serving.GATEWAY_SECONDS,
    gateway_metrics=serving.GATEWAY_METRICS,
    drain_seconds=2,
)
_MANIFESTS = Path(__file__).with_name("manifests")
_OURS = (f"--namespace={NAMESPACE}", f"--selector={names.DEPLOYMENT}", "--ignore-not-found", "--output=name")
KINDS = "httproutes,inferenceservices,configmaps,deployments,replicasets,services,endpointslices,pods,hpa"


@dataclass(frozen=True)
class Served:
    """The deployments of one store, which is empty at first.

    :param site: where its store lies on the claim.
    """

    of: Layout
    site: ClusterSite
    store: ServiceStore
    client: Client

    def deployments(self, **changes: Any) -> Deployments:
        """Connect, as one more of us would. :param changes: of the site."""
        platform = ClusterPlatform(
            self.client,
            site=replace(self.site, **changes),
            store=lambda: self.store,
            open_spool=ServiceSpools(self.store.connection).open,
        )
        return Deployments(platform, lambda: self.store)

    def written(self) -> dict[str, object]:
        """Where they are, as a person writes it down beside what the cluster is otherwise."""
        gateway = ("gateway", "serving_url", "gateway_seconds", "gateway_metrics")
        names = ("folder", "serving", *gateway, "drain_seconds")
        return plain({name: getattr(self.site, name) for name in names})  # type: ignore[no-any-return]


@contextmanager
def served(of: Layout, folder: Path) -> Iterator[Served]:
    """Have KServe, the Gateway and a store service, and leave no deployment. :param folder: for what is kept here."""
    serving.up(of)
    place = f"store-{secrets.token_hex(4)}"
    store.deploy(of, folder=place)
    found = connected(of, folder, store_folder=place)
    try:
        yield found
    finally:
        deployments = found.deployments()
        for name in deployments.names():
            deployments.retire(name)
        found.store.close()
    eventually(lambda: left(of) == "")


def connected(of: Layout, folder: Path, *, store_folder: str) -> Served:
    """Connect to what is there, as one more of us would. :param store_folder: of the claim."""
    return Served(
        of=of,
        site=replace(SITE, folder=store_folder),
        store=ServiceStore(store.URL, token=store.operator_token(of), cache=folder / "cache"),
        client=Client(connection(of), patience_seconds=20),
    )


def left(of: Layout) -> str:
    """What there is on the cluster of any deployment."""
    return kubectl.run(of, "get", KINDS, *_OURS).strip()


def pods(of: Layout, deployment: str, revision: str) -> list[dict[str, Any]]:
    """The pods of a revision."""
    wanted = f"--selector={names.DEPLOYMENT}={deployment},{names.REVISION}={revision}"
    found: list[dict[str, Any]] = kubectl.get(of, "pods", f"--namespace={NAMESPACE}", wanted)["items"]
    return found


def selected(of: Layout, deployment: str) -> str:
    """The revision whose pods alone are behind a deployment's Service."""
    wanted = f"--selector=kubernetes.io/service-name={names.route_name(deployment)}"
    slices = kubectl.get(of, "endpointslices", f"--namespace={NAMESPACE}", wanted)["items"]
    found = {each["targetRef"]["name"] for one in slices for each in one.get("endpoints") or ()}
    pods = kubectl.get(of, "pods", f"--namespace={NAMESPACE}")["items"]
    revisions = {
        pod["metadata"]["labels"][names.REVISION] for pod in pods if pod["metadata"]["name"] in found
    }
    return "".join(revisions) if len(revisions) == 1 else ""


def take_back(of: Layout) -> None:
    """Take away what tests that were killed have given for a while."""
    for name in ("services", "seldon"):
        _gone(of, _MANIFESTS / f"{name}.yaml")


@contextmanager
def may_write_services(of: Layout) -> Iterator[None]:
    """Give the operator what it needs where a Service is the route."""
    with _there(of, _MANIFESTS / "services.yaml"):
        yield


@contextmanager
def seldon_defined(of: Layout) -> Iterator[None]:
    """Have the API server know SeldonDeployments, and the operator write them; nothing acts on them."""
    client = Client(administrator(of), patience_seconds=20)
    with _there(of, _MANIFESTS / "seldon.yaml"):
        words = ("wait", f"crd/{SELDON_DEPLOYMENT.resource}", "--for=condition=Established")
        kubectl.until("SeldonDeployments are known", lambda: bool(kubectl.ask(of, *words, "--timeout=5s")))
        kubectl.until("they are told", lambda: serves(client.served(), SELDON_DEPLOYMENT))
        yield


@contextmanager
def _there(of: Layout, manifest: Path) -> Iterator[None]:
    kubectl.run(of, "apply", "--server-side", f"--filename={manifest}")
    try:
        yield
    finally:
        _gone(of, manifest)


def _gone(of: Layout, manifest: Path) -> None:
    kubectl.run(of, "delete", "--ignore-not-found", "--wait", f"--filename={manifest}")


def administrator(of: Layout) -> Access:
    """The right to everything."""
    return connect(kubeconfig=of.kubeconfig)


def infer(name: str, x: float, *, seconds: float = 10, host: str = "localhost") -> tuple[str, float]:
    """Return the revision that answers a user through the Gateway, and its answer. :raises OSError: none does."""
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [x]}]})
    with closing(http.client.HTTPConnection("127.0.0.1", serving.PORT, timeout=seconds)) as asked:
        asked.request("POST", f"/v2/models/{name}/infer", body, {"Host": host})
        answer = asked.getresponse()
        text = answer.read()
    if answer.status != http.HTTPStatus.OK:
        raise ConnectionError(f"HTTP {answer.status}: {text[:200]!r}")
    found = json.loads(text)
    return found["model_version"], found["outputs"][0]["data"][0]
