"""Which pods are given up, which are waited for, and what the API server is asked for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.backends.kubernetes.api_server import Answer, ApiServer, Asked, api_server, status
from tests.waiting import GUARD_SECONDS, eventually

from muster.backends.kubernetes import reaper
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.reaper import Reaper, failed, lost

NOW = 1_798_761_600.0  # 2027-01-01T00:00:00Z


def at(seconds: float) -> str:
    """A time of the API, so many seconds after now."""
    return datetime.fromtimestamp(NOW + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(ends: float | None = 25, *, node: str = "n1", ours: bool = True, **status: Any) -> dict[str, Any]:
    """A pod of ours. :param ends: when its grace is over; None where it was not deleted."""
    metadata: dict[str, Any] = {
        "name": "tr1-main-0-0-abcde",
        "uid": "u1",
        "resourceVersion": "7",
        "labels": {"muster.dev/job": "tr1"} if ours else {"app": "web"},
    }
    if ends is not None:
        metadata |= {"deletionTimestamp": at(ends), "deletionGracePeriodSeconds": 35}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": "Running", **status},
    }


def node(ready: str = "Unknown", *, since: float = -60) -> dict[str, Any]:
    conditions = [
        {"type": "MemoryPressure", "status": "Unknown", "lastTransitionTime": at(-3600)},
        {"type": "Ready", "status": ready, "lastTransitionTime": at(since)},
    ]
    return {"metadata": {"name": "n1"}, "status": {"conditions": conditions}}


SILENT = node()

GIVEN_UP: dict[str, tuple[Any, Any, str]] = {
    "no word of the node": (pod(), SILENT, "node n1 has been lost for 60 s"),
    "no word, and a grace of days": (pod(200_000), SILENT, "node n1 has been lost for 60 s"),
    "just long enough": (pod(), node(since=-10), "node n1 has been lost for 10 s"),
    "the node is gone": (pod(), None, "node n1 is gone"),
    "it has ended, and was not taken away": (pod(phase="Failed"), SILENT, "node n1 has been lost for 60 s"),
    "the node says it is not ready, long after the grace": (
        pod(-10),
        node("False"),
        "node n1 has not been ready for 60 s, and should have ended it 10 s ago",
    ),
}

WAITED_FOR: dict[str, tuple[Any, Any]] = {
    "it was not deleted": (pod(None), SILENT),
    "it was not deleted, and the node is gone": (pod(None), None),
    "on a healthy node, within its grace": (pod(), node("True")),
    "on a healthy node, long after its grace": (pod(-86_400), node("True")),
    "the node may answer in a moment": (pod(), node(since=-9)),
    "the node's clock is ahead": (pod(), node(since=30)),
    "not ready, and its kubelet may be ending it": (pod(-9), node("False")),
    "not ready, within the grace": (pod(), node("False")),
    "the node says nothing of itself": (pod(), {"metadata": {"name": "n1"}, "status": {}}),
    "it was on no node": (pod(node=""), None),
    "not muster's": (pod(ours=False), SILENT),
}


@pytest.mark.parametrize("case", GIVEN_UP)
def test_given_up(case: str) -> None:
    pod, node, why = GIVEN_UP[case]
    assert lost(pod, node, now=NOW) == why


@pytest.mark.parametrize("case", WAITED_FOR)
def test_waited_for(case: str) -> None:
    pod, node = WAITED_FOR[case]
    assert lost(pod, node, now=NOW) == ""


class TestFailed:
    def test_it_is_disrupted(self) -> None:
        ready = {"type": "Ready", "status": "False"}
        before = {"type": "DisruptionTarget", "status": "False"}
        assert failed(pod(conditions=[before, ready]), "node n1 is gone", now=NOW) == {
            "metadata": {"resourceVersion": "7"},
            "status": {
                "phase": "Failed",
                "reason": "NodeLost",
                "message": "node n1 is gone",
                "conditions": [
                    ready,
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "NodeLost",
                        "message": "node n1 is gone",
                        "lastTransitionTime": "2027-01-01T00:00:00Z",
                    },
                ],
            },
        }

    def test_why_it_was_disrupted_stays(self) -> None:
        conditions = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]
        assert failed(pod(conditions=conditions), "gone", now=NOW)["status"]["conditions"] == conditions


class Cluster:
    """Answers as an API server with one pod and one node would."""

    def __init__(self, pod: dict[str, Any] | None, node: dict[str, Any] | None) -> None:
        self.pod, self.node, self.end = pod, node, threading.Event()
        self.refusal: Answer | None = None

    def __call__(self, asked: Asked) -> Answer:
        if asked.query.get("watch"):
            return Answer(hold=self.end)
        if asked.path.endswith("/nodes/n1"):
            return Answer(body=self.node) if self.node else status(404, "NotFound", "no node n1", name="n1")
        if asked.method == "GET":
            return Answer(body={"metadata": {"resourceVersion": "9"}, "items": [self.pod]})
        refusal, self.refusal = self.refusal, None
        return refusal or Answer(body=self.pod)


@contextmanager
def reaping(cluster: Cluster) -> Iterator[ApiServer]:
    with api_server(cluster) as server:
        one = Reaper(Client(server.api()), namespace="ml", clock=lambda: NOW)
        thread = threading.Thread(target=one.run)
        thread.start()
        try:
            yield server
        finally:
            one.close()
            cluster.end.set()
            thread.join(GUARD_SECONDS)
            assert not thread.is_alive()


@pytest.fixture(autouse=True)
def rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "ROUND_SECONDS", 0.01)


def did(server: ApiServer) -> list[str]:
    return [f"{asked.method} {asked.path}" for asked in server.asked if asked.method != "GET"]


def ask(server: ApiServer, what: str) -> Callable[[], bool]:
    return lambda: any(what in f"{asked.method} {asked.path}" for asked in server.asked)


PATH = "/api/v1/namespaces/ml/pods/tr1-main-0-0-abcde"


def test_a_pod_is_marked_and_deleted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"), reaping(Cluster(pod(), SILENT)) as server:
        eventually(ask(server, "DELETE"))
        eventually(lambda: bool(caplog.messages))
    assert did(server)[:2] == [f"PATCH {PATH}/status", f"DELETE {PATH}"]
    patch, delete = [asked.body for asked in server.asked if asked.method != "GET"][:2]
    assert (patch["metadata"]["resourceVersion"], patch["status"]["phase"]) == ("7", "Failed")
    assert (delete["gracePeriodSeconds"], delete["preconditions"]) == (0, {"uid": "u1"})
    said = "freed pod tr1-main-0-0-abcde of job tr1: node n1 has been lost for 60 s"
    assert caplog.messages[0] == said


def test_a_pod_that_has_ended_is_only_deleted() -> None:
    with reaping(Cluster(pod(phase="Failed"), None)) as server:
        eventually(ask(server, "DELETE"))
    assert set(did(server)) == {f"DELETE {PATH}"}


def test_a_pod_that_somebody_deleted_without_grace_is_only_marked() -> None:
    document = pod()
    document["metadata"]["deletionGracePeriodSeconds"] = 0
    with reaping(Cluster(document, SILENT)) as server:
        eventually(ask(server, "PATCH"))
    assert set(did(server)) == {f"PATCH {PATH}/status"}


def test_what_waits_for_its_job_alone_is_left() -> None:
    document = pod(phase="Failed")
    document["metadata"]["deletionGracePeriodSeconds"] = 0
    with reaping(Cluster(document, SILENT)) as server:
        eventually(lambda: sum(asked.path.endswith("/nodes/n1") for asked in server.asked) > 3)
    assert did(server) == []


def test_a_healthy_node_is_asked_for_and_its_pod_left() -> None:
    with reaping(Cluster(pod(), node("True"))) as server:
        eventually(lambda: sum(asked.path.endswith("/nodes/n1") for asked in server.asked) > 3)
    assert did(server) == []


def test_nodes_are_not_asked_for_where_nothing_ends() -> None:
    with reaping(Cluster(pod(None), SILENT)) as server:
        eventually(lambda: any(asked.query.get("watch") for asked in server.asked))
    assert not ask(server, "/nodes/")()


@pytest.mark.parametrize(
    "refusal",
    [
        status(409, "Conflict", "the object has been modified"),
        status(404, "NotFound", "no such pod", name="tr1-main-0-0-abcde"),
        status(403, "Forbidden", "not allowed"),
        status(503, "ServiceUnavailable", "starting"),
        Answer(0),
    ],
    ids=["changed", "gone", "forbidden", "starting", "away"],
)
def test_the_next_round_tries_again(refusal: Answer, caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(pod(), SILENT)
    cluster.refusal = refusal
    with caplog.at_level("INFO"), reaping(cluster) as server:
        eventually(ask(server, "DELETE"))
    assert did(server)[:3] == [f"PATCH {PATH}/status", f"PATCH {PATH}/status", f"DELETE {PATH}"]
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == (0 if refusal.code in (404, 409) else 1)
