"""Every reviewed manifest is one that the API server and its webhooks take, Pod Security included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.cluster import kubectl
from tests.cluster.clearing import MADE
from tests.cluster.inside import NAMESPACE, layout
from tests.cluster.scripted import connection
from tests.unit.backends.kubernetes.golden import EXAMPLES, SITE

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import POD, Document
from muster.backends.kubernetes.manifests.gangs import Documents
from muster.core.errors import BackendError, Forbidden, SpecError

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def admin() -> Client:
    from muster.backends.kubernetes.api.access import connect

    return Client(connect(kubeconfig=layout().kubeconfig))


@pytest.fixture(scope="module", autouse=True)
def priority() -> Iterator[None]:
    """Without Kueue a job's priority is a PriorityClass: the one that an example names, else ``normal``."""
    documents = [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name, "labels": {MADE: "yes"}},
            "value": value,
        }
        for name, value in (("normal", 500), ("high", 1000))
    ]
    kubectl.apply(layout(), documents)
    yield
    kubectl.delete(layout(), documents)


def made(name: str) -> Documents:
    return replace(EXAMPLES[name], site=replace(SITE, namespace=NAMESPACE), queue=_queue(name)).documents()


def _queue(name: str) -> str | None:
    return "team-a" if EXAMPLES[name].queue else None


def _pods(owner: Document) -> Iterator[Document]:
    for each in owner["spec"].get("replicatedJobs") or [{"template": owner}]:
        template = each["template"]["spec"]["template"]
        metadata = {**template["metadata"], "namespace": NAMESPACE, "name": "dry"}
        yield {
            "apiVersion": POD.api_version,
            "kind": POD.name,
            "metadata": metadata,
            "spec": template["spec"],
        }


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_operator_may_make_all_that_a_job_needs(name: str) -> None:
    operator = Client(connection(layout()))
    documents = made(name)
    for document in (documents.owner, *documents.owned):
        if (
            document["kind"] == "PodGroup"
        ):  # here Kueue starts gangs whole, and the chart gives no right to make them
            with pytest.raises(Forbidden, match="podgroups"):
                operator.create(document, dry_run=True)
            continue
        answer = operator.create(document, dry_run=True)
        assert answer["metadata"]["name"] == document["metadata"]["name"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_pod_security_admits_every_pod(name: str, admin: Client) -> None:
    for pod in _pods(made(name).owner):
        assert admin.create(pod, dry_run=True)["spec"]["containers"][0]["name"] == "base"


def test_pod_security_is_on_guard(admin: Client) -> None:
    (pod,) = _pods(made("single").owner)
    pod["spec"]["securityContext"]["runAsNonRoot"] = False
    with pytest.raises((BackendError, SpecError), match="runAsNonRoot"):
        admin.create(pod, dry_run=True)
