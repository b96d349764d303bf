"""Which pod is a rank's, and what is said of a right that is missing; streams themselves are the test cluster's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.backends.kubernetes.api_server import Answer, Asked, api_server, status
from tests.unit.backends.kubernetes.fake_cluster import NAMESPACE

from muster.backends.kubernetes import labels
from muster.backends.kubernetes.cluster_file import ClusterSettings
from muster.backends.kubernetes.place import ClusterPlace, NamedCluster
from muster.backends.kubernetes.sessions import open_session
from muster.backends.kubernetes.site import ClusterSite
from muster.core.errors import Forbidden, NotFound
from muster.core.job import JobSpec, Role
from muster.core.settings import Settings

# Ranks 0 and 1 are one pod's, 2 to 5 of two pods of the other role.
JOB = JobSpec(
    name="flights.train",
    image="train",
    image_digest="b3:" + "0" * 64,
    roles=(
        Role(name="head", command=("true",), ranks=2),
        Role(name="main", command=("true",), replicas=2, ranks=2),
    ),
)


def pod(role: str, index: int, *, running: bool = True, **metadata: str) -> dict[str, Any]:
    labelled = {labels.JOB: "train-1", labels.ROLE: role, labels.INDEX: str(index)}
    state = (
        {"running": {"startedAt": "2026-11-30T10:00:00Z"}} if running else {"waiting": {"reason": "Creating"}}
    )
    return {
        "metadata": {
            "name": f"train-1-{role}-0-{index}",
            "namespace": NAMESPACE,
            "labels": labelled,
            **metadata,
        },
        "spec": {"nodeName": "cpu-0"},
        "status": {"phase": "Running", "containerStatuses": [{"name": labels.MAIN, "state": state}]},
    }


def answers(*pods: dict[str, Any], lacks: str = "") -> Callable[[Asked], Answer]:
    """An API server with these pods, whose caller lacks a right: a verb and what it is about."""

    def answer(asked: Asked) -> Answer:
        verb = {"GET": "get", "POST": "create"}[asked.method]
        what = asked.path.rpartition("/")[2]
        if what == "pods":
            assert asked.query["labelSelector"] == f"{labels.JOB}=train-1"
            return Answer(body={"metadata": {"resourceVersion": "1"}, "items": list(pods)})
        if lacks == f"{verb} pods/{what}":
            said = f'pods is forbidden: User "ann" cannot {verb} resource "pods/{what}" in API group "" in the namespace'
            return status(403, "Forbidden", said)
        return status(400, "BadRequest", "Upgrade request required")

    return answer


@pytest.fixture
def reach(tmp_path: Path) -> Any:
    def find(answer: Callable[[Asked], Answer], rank: int, *, port: int = 0) -> str:
        with api_server() as server:
            server.answers[:] = [answer]
            site = ClusterSite(namespace=NAMESPACE, claim="c", store_url="http://127.0.0.1:9", images={})
            written, access = ClusterSettings(site=site, token="t", store_url=site.store_url), server.near()
            place = ClusterPlace(
                lambda: NamedCluster(written, lambda: access),
                settings=Settings(home=tmp_path, cache=tmp_path),
                serve_here=lambda _: pytest.fail("nothing is served"),
                resolve=lambda name: name,
                patience_seconds=0.0,
            )
            return open_session(place, JOB, "train-1", rank, [] if port else ["true"], port).where

    return find


@pytest.mark.parametrize(
    ("rank", "name"), [(0, "head-0-0"), (1, "head-0-0"), (2, "main-0-0"), (3, "main-0-0"), (5, "main-0-1")]
)
def test_a_rank_is_in_the_pod_of_its_role_and_index(reach: Any, rank: int, name: str) -> None:
    there = answers(pod("main", 1), pod("head", 0), pod("main", 0))
    assert reach(there, rank) == f"pod train-1-{name}"
    assert reach(there, rank, port=8000) == f"pod train-1-{name}"


@pytest.mark.parametrize(
    "pods",
    [
        (),
        (pod("head", 0, running=False),),
        (pod("head", 0, deletionTimestamp="2026-11-30T10:00:00Z"),),
        (pod("main", 0),),
    ],
)
def test_a_pod_that_does_not_run_is_not_reached(reach: Any, pods: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(NotFound, match="rank 1 of job train-1 does not run now"):
        reach(answers(*pods), 1)


@pytest.mark.parametrize("verb", ["get", "create"])
@pytest.mark.parametrize(("port", "what"), [(0, "exec"), (8000, "portforward")])
def test_a_missing_right_is_named_with_who_lacks_it(reach: Any, verb: str, port: int, what: str) -> None:
    with pytest.raises(Forbidden) as refused:
        reach(answers(pod("head", 0), lacks=f"{verb} pods/{what}"), 0, port=port)
    assert (
        f'ann may not {verb} pods/{what} in namespace {NAMESPACE}: give it a Role with apiGroups: [""]'
        in str(refused.value)
    )
    assert "operator.exec=true" in str(refused.value)
    other = answers(pod("head", 0), lacks="create pods/exec" if port else "create pods/portforward")
    assert reach(other, 0, port=port) == "pod train-1-head-0-0"
