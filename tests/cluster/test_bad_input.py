"""What must not be is refused by the real cluster and the real store service, and nothing of it is left."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from tests.cluster import kubectl, left, store
from tests.cluster.accounts import NAMESPACE
from tests.cluster.backend import SITE, backend, connected
from tests.cluster.clearing import MADE
from tests.cluster.inside import layout
from tests.cluster.layout import Layout

from muster.backends.base import Backend
from muster.core.errors import MusterError, NotFound, SpecError
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources
from muster.core.shipped import shipped
from muster.core.verdict import Cause
from muster.images.folders import find_image, put_image

pytestmark = [pytest.mark.cluster, pytest.mark.smoke]

REACHES = {"spec": {"volumes": [{"name": "all", "persistentVolumeClaim": {"claimName": SITE.claim}}]}}


@pytest.fixture(scope="module")
def here() -> Layout:
    return layout()


@pytest.fixture(scope="module")
def there(here: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    with backend(here, tmp_path_factory.mktemp("bad")) as made:
        yield made


@pytest.fixture
def job_id(here: Layout) -> Iterator[str]:
    """A name of the test's own; nothing is called so afterwards."""
    name = f"bad-{secrets.token_hex(3)}"
    yield name
    assert left.objects(here, [name]) == []


def spec(there: Backend, **changes: object) -> JobSpec:
    role = Role(replicas=2, command=("true",), resources=Resources(cpus=0.1, memory_gib=0.125))
    image = put_image(there.store, find_image("python", [shipped("images")]))
    return replace(JobSpec(name="bad.job", image="python", image_digest=image, roles=(role,)), **changes)


def test_an_override_that_reaches_for_the_store(there: Backend, job_id: str) -> None:
    with pytest.raises(SpecError, match=r"claim muster-store is the store's"):
        there.submit(spec(there, pod_override=REACHES), job_id=job_id)
    with pytest.raises(NotFound):
        there.status(job_id)


def test_a_claim_that_is_not_shared(here: Layout, there: Backend, tmp_path: Path, job_id: str) -> None:
    alone = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "alone", "namespace": NAMESPACE, "labels": {MADE: "yes"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    kubectl.apply(here, [alone])
    elsewhere = connected(here, tmp_path, site=replace(SITE, claim="alone"))
    try:
        with pytest.raises(MusterError, match=r"alone.*ReadWriteMany"):
            elsewhere.submit(spec(there), job_id=job_id)
        with pytest.raises(NotFound):
            there.status(job_id)
    finally:
        elsewhere.close()
        kubectl.delete(here, [alone])


@pytest.mark.parametrize(
    ("of", "attempt", "codes"),
    [("{}", 1, (404, 200, 401)), ("{}", 2, (401, 409, 401)), ("{}-other", 1, (401, 401, 401))],
    ids=["its own", "another attempt's", "another job's"],
)
def test_a_token_counts_for_its_own_attempt_alone(
    of: str, attempt: int, codes: tuple[int, int, int], here: Layout, there: Backend, job_id: str
) -> None:
    """Of the bundle, which is not there yet; of lines; and of what is an operator's."""
    there.store.ledger.create(job_id, spec(there))
    assert there.store.stage(job_id).attempt == 1
    token = store.job_token(here, of.format(job_id), attempt=attempt)
    query = {"attempt": 1, "role": "main", "index": 0, "pod": "pod-0-0"}
    said = f"/v1/jobs/{job_id}/attempts/1/replicas/main/0/lines"
    with httpx.Client(
        base_url=store.URL, headers={"Authorization": f"Bearer {token}"}, trust_env=False
    ) as pod:
        bundle = pod.get(f"/v1/jobs/{job_id}/bundle", params=query)
        lines = pod.post(said, params={"offset": 0}, content=b"line\n")
        volumes = pod.get("/v1/volumes")
    found = bundle.status_code, lines.status_code, volumes.status_code
    assert found == codes, (bundle.text, lines.text, volumes.text)
    told = b"line\n" if 200 in codes else b""
    assert there.store.ledger.read(job_id) == (told, len(told))
    there.cancel(job_id)


def test_a_gang_larger_than_its_namespace_allows(here: Layout, there: Backend, job_id: str) -> None:
    """Kueue lets it in, for it does not count what namespaces allow: some of its pods would wait for ever."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "two-pods", "namespace": NAMESPACE, "labels": {MADE: "yes"}},
        "spec": {"hard": {"pods": "2"}},
    }
    kubectl.apply(here, [quota])
    try:
        role = Role(replicas=3, command=("true",), resources=Resources(cpus=0.1, memory_gib=0.125))
        there.submit(spec(there, roles=(role,)), job_id=job_id)
        kubectl.until("it has ended", lambda: there.status(job_id).state.ended)
        found = there.status(job_id).verdict
        assert found is not None
        assert (found.cause, found.message) == (
            Cause.UNSCHEDULABLE,
            "its namespace can never hold it: its 3 pods ask for 3 pods, and ResourceQuota two-pods allows 2 pods",
        )
        kubectl.until("nothing is left of it", lambda: not left.objects(here, [job_id]))
    finally:
        kubectl.delete(here, [quota])
