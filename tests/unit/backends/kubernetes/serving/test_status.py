"""How a revision stands, from its objects as a cluster gives them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from tests.unit.backends.kubernetes.serving.golden import NOW, spec

from muster.backends.kubernetes.serving.kinds import KSERVE, SELDON, ServingPlatform
from muster.backends.kubernetes.serving.status import RevisionObjects, revision_status
from muster.backends.releases.book import BookEntry
from muster.core.deployment import Revision, RevisionState

Document = dict[str, Any]
LIVE = BookEntry(name="r1", spec=spec(replicas=2), since=NOW)


def objects(**changes: Any) -> RevisionObjects:
    """Two replicas that answer, but for `changes`."""
    whole: dict[str, Any] = {
        "service": service(),
        "workload": workload(),
        "slices": (endpoints("a", "b"),),
        "pods": (pod("a"), pod("b")),
    }
    return RevisionObjects(**{**whole, **changes})


def service(ready: str = "True", message: str = "", *, kind: str = "PredictorReady") -> Document:
    return {
        "metadata": {},
        "status": {"conditions": [{"type": kind, "status": ready, "message": message}]},
    }


def workload(*, generation: int = 1, conditions: tuple[Document, ...] = (), **status: int) -> Document:
    numbers = {"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2, "observedGeneration": 1}
    return {
        "metadata": {"generation": generation},
        "spec": {"replicas": 2},
        "status": {**numbers, **status, "conditions": list(conditions)},
    }


def endpoints(*pods: str, ready: bool = True) -> Document:
    return {
        "endpoints": [
            {"addresses": ["10.0.0.1"], "targetRef": {"name": name}, "conditions": {"ready": ready}}
            for name in pods
        ]
    }


def pod(
    name: str, *, deleted: bool = False, conditions: tuple[Document, ...] = (), **container: Any
) -> Document:
    metadata = {"name": name, **({"deletionTimestamp": "2026-11-22T04:00:00Z"} if deleted else {})}
    status = {"containerStatuses": [{"ready": True, "restartCount": 0, **container}]}
    return {"metadata": metadata, "status": {**status, "conditions": list(conditions)}}


def ended(**how: Any) -> Document:
    return {"ready": False, "restartCount": 3, "lastState": {"terminated": {"exitCode": 1, **how}}}


def seen(
    of: RevisionObjects,
    *,
    percent: int | None = None,
    after_seconds: float = 1,
    platform: ServingPlatform = KSERVE,
    taken_back: bool = False,
) -> Revision:
    now = NOW + after_seconds
    return revision_status(
        LIVE, of, platform=platform, percent=percent, since=NOW, now=now, taken_back=taken_back
    )


def test_it_is_ready_where_all_of_it_says_so() -> None:
    found = seen(objects())
    assert (found.state, found.ready, found.wanted, found.reason) == (RevisionState.READY, 2, 2, "")


@pytest.mark.parametrize(
    "behind",
    [
        {"service": service("False")},
        {"workload": workload(generation=2)},
        {"workload": workload(updatedReplicas=1)},
        {"workload": workload(replicas=3)},
        {"workload": workload(availableReplicas=1)},
        {"slices": (endpoints("a"),)},
        {"slices": (endpoints("a"), endpoints("b", ready=False))},
        {"slices": ()},
        {"service": None},
        {"workload": None},
    ],
)
def test_it_is_not_where_anything_is_behind(behind: Document) -> None:
    found = seen(objects(**behind))
    assert found.state is RevisionState.STARTING
    assert found.ready < 2
    assert found.reason


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        (
            (pod("a", **ended(message="warm\nflights: no model.onnx\n")),),
            "a: it ended with exit code 1: flights: no model.onnx",
        ),
        ((pod("a", **ended(reason="OOMKilled")),), "a: it needed more memory than it is given"),
    ],
)
def test_one_that_ends_by_itself_will_not_do(pods: tuple[Document, ...], words: str) -> None:
    found = seen(objects(pods=pods, workload=workload(availableReplicas=0), slices=()))
    assert (found.state, found.restarts) == (RevisionState.FAILED, 3)
    assert found.reason == f"it ended 3 times before it had any traffic: {words}"


def test_one_that_ended_and_came_back_will_not_do_either() -> None:
    found = seen(
        objects(pods=(pod("a", restartCount=1, lastState={"terminated": {"exitCode": 137}}), pod("b")))
    )
    assert (found.state, found.ready) == (RevisionState.FAILED, 2)
    assert found.reason == "it ended 1 time before it had any traffic: a: it ended with exit code 137"


def test_one_that_has_or_had_traffic_is_not_judged_by_that() -> None:
    once = objects(pods=(pod("a", restartCount=1), pod("b")))
    assert seen(once, percent=0, after_seconds=9999).state is RevisionState.READY
    assert seen(once, percent=0).kept
    serving = seen(objects(slices=(), pods=(pod("a", **ended()),)), percent=80)
    assert (serving.state, serving.ready, serving.restarts) == (RevisionState.SERVING, 0, 3)
    assert "exit code 1" in serving.reason


def test_one_that_is_taken_back_says_how_it_ended_and_nothing_of_when() -> None:
    ends = objects(pods=(pod("a", **ended(reason="OOMKilled")),), slices=())
    found = seen(ends, taken_back=True, after_seconds=9999)
    assert (found.state, found.restarts) == (RevisionState.STARTING, 3)
    assert found.reason == "a: it needed more memory than it is given"


@pytest.mark.parametrize(
    "behind",
    [
        {"service": service("False")},
        {"workload": workload(generation=2)},
        {"workload": workload(replicas=3)},
        {"workload": workload(availableReplicas=1)},
    ],
)
def test_one_that_serves_is_not_doubted_while_it_is_scaled_or_a_pod_is_replaced(behind: Document) -> None:
    found = seen(objects(**behind), percent=20)
    assert (found.state, found.ready, found.reason) == (RevisionState.SERVING, 2, "")


def test_one_that_takes_longer_than_it_may_will_not_do() -> None:
    slow = objects(workload=workload(availableReplicas=0), slices=())
    assert seen(slow, after_seconds=119).state is RevisionState.STARTING
    found = seen(slow, after_seconds=121)
    assert (found.state, found.reason) == (
        RevisionState.FAILED,
        "0 of 2 replicas are ready after 120 s: its replicas start",
    )


def test_one_whose_pod_was_moved_has_its_time_again() -> None:
    moved = pod("a", ready=False)
    moved["metadata"]["creationTimestamp"] = datetime.fromtimestamp(NOW + 100, timezone.utc).isoformat()
    found = objects(workload=workload(availableReplicas=1), slices=(endpoints("b"),), pods=(moved, pod("b")))
    assert seen(found, after_seconds=121).state is RevisionState.STARTING
    assert seen(found, after_seconds=221).state is RevisionState.FAILED


def test_one_that_is_kept_waits_for_its_pods_as_long_as_it_takes() -> None:
    away = objects(slices=(endpoints("a"),))
    assert seen(away, percent=0, after_seconds=9999).state is RevisionState.STARTING


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"service": None}, "its InferenceService is not there"),
        ({"workload": None, "service": service("Unknown", "")}, "is its controller running?"),
        ({"workload": None, "service": service("False", "no such volume")}, "no such volume"),
        (
            {
                "workload": workload(
                    availableReplicas=0,
                    conditions=(
                        {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: compute"},
                    ),
                )
            },
            "its pods cannot be made: exceeded quota: compute",
        ),
        (
            {
                "pods": (
                    pod(
                        "a", ready=False, state={"waiting": {"reason": "ImagePullBackOff", "message": "no x"}}
                    ),
                )
            },
            "a: its image cannot be pulled: no x",
        ),
        (
            {
                "pods": (
                    pod(
                        "a",
                        conditions=(
                            {"type": "PodScheduled", "status": "False", "message": "0/4 nodes are available"},
                        ),
                    ),
                )
            },
            "a: no node for it: 0/4 nodes are available",
        ),
    ],
)
def test_what_it_waits_for_is_told(changes: Document, words: str) -> None:
    assert words in seen(objects(**{"slices": (), **changes})).reason


def test_with_seldon_it_is_seldons_object_that_says_so() -> None:
    said = service(kind="DeploymentsReady")
    assert seen(objects(service=said), platform=SELDON).state is RevisionState.READY
    assert seen(objects(), platform=SELDON).state is RevisionState.STARTING
    assert seen(objects(service=said), platform=KSERVE).state is RevisionState.STARTING


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (None, "its SeldonDeployment is not there"),
        ({"metadata": {}}, "Seldon Core has made nothing of it yet: is its controller running?"),
        ({"metadata": {}, "status": {"state": "Failed", "description": "no container"}}, "no container"),
    ],
)
def test_what_one_of_seldons_waits_for_is_told(said: Document | None, words: str) -> None:
    waiting = objects(service=said, workload=None, slices=(), pods=())
    assert words in seen(waiting, platform=SELDON).reason


def test_pods_on_their_way_out_do_not_count() -> None:
    leaving = pod("old", deleted=True, **ended())
    assert seen(objects(pods=(leaving, pod("a"), pod("b")))).restarts == 0
