from __future__ import annotations

import json
import threading
from contextlib import closing
from typing import Any

import pytest
from tests.unit.backends.kubernetes.api_server import Answer, Asked, api_server, status
from tests.unit.backends.kubernetes.recordings import names, recorded
from tests.waiting import GUARD_SECONDS, eventually

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import EVENT, JOB, JOB_SET, POD, WORKLOAD, kind_of
from muster.backends.kubernetes.api.watching import without_managers
from muster.backends.kubernetes.cluster.facts import Cluster, Node
from muster.backends.kubernetes.state.observe import observe
from muster.backends.kubernetes.state.queueing import reckoned_places
from muster.backends.kubernetes.state.seen import JobObjects
from muster.backends.kubernetes.state.sight import Mirror, lean
from muster.backends.kubernetes.state.verdicts import verdict
from muster.core.errors import Unreachable


def document(kind: str, name: str, *, job: str = "", **other: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "ml", "uid": f"uid-{name}", "resourceVersion": "5"}
    if job:
        metadata["labels"] = {"muster.dev/job": job}
    metadata |= other.pop("metadata", {})
    return {"kind": kind, "metadata": metadata, **other}


SETS = (document("JobSet", "one", job="one"), document("JobSet", "two", job="two"))
PODS = tuple(
    document("Pod", f"one-main-0-{index}", job="one", spec={}, status={"phase": phase})
    for index, phase in enumerate(("Failed", "Running"))
)
WORKLOADS = (
    document("Workload", "jobset-one", metadata={"ownerReferences": [{"uid": "uid-one"}]}),
    document("Workload", "stranger", metadata={"ownerReferences": [{"uid": "uid-x"}]}),
)
EVENTS = (
    document("Event", "e1", involvedObject={"kind": "Pod", "uid": "uid-one-main-0-0"}, reason="Failed"),
)


class Scripted:
    """Lists what there is; a watch tells what is set, once, and then nothing more."""

    def __init__(self) -> None:
        self.lists = {"jobsets": SETS, "pods": PODS, "workloads": WORKLOADS, "events": EVENTS}
        self.changes: dict[str, tuple[dict[str, Any], ...]] = {}
        self.too_old: set[str] = set()
        self.go, self.end = threading.Event(), threading.Event()

    def __call__(self, asked: Asked) -> Answer:
        kind = asked.path.rpartition("/")[2]
        if asked.query.get("watch") != "true":
            return Answer(body={"metadata": {"resourceVersion": "7"}, "items": list(self.lists[kind])})
        self.go.wait(GUARD_SECONDS)
        if kind in self.too_old:
            self.too_old.remove(kind)
            return status(410, "Expired", "too old resource version")
        return Answer(lines=self.changes.pop(kind, ()), hold=self.end)


KINDS = (JOB_SET, POD, WORKLOAD, EVENT)


def test_what_there_is_of_a_job() -> None:
    scripted = Scripted()
    with (
        api_server(scripted) as server,
        closing(Mirror(Client(server.api()), namespace="ml", kinds=KINDS)) as mirror,
    ):
        mirror.wait(timeout_seconds=10)
        seen, other = mirror.seen("one"), mirror.seen("two")
        assert {each["metadata"]["name"] for each in mirror.roots()} == {"one", "two"}
        assert mirror.seen("one") is seen, "it is put together once, until something of it changes"
        assert mirror.workloads() is mirror.workloads()
        assert {each["metadata"]["name"] for each in mirror.workloads()} == {"jobset-one", "stranger"}
        assert not mirror.is_deaf
        scripted.go.set()
        scripted.end.set()
    assert seen.root is not None
    assert seen.workload is not None
    assert seen.root["metadata"]["name"] == "one"
    assert seen.workload["metadata"]["name"] == "jobset-one"
    assert [pod["metadata"]["name"] for pod in seen.pods] == ["one-main-0-0", "one-main-0-1"]
    assert [event["metadata"]["name"] for event in seen.events] == ["e1"]
    assert other.root is not None
    assert other.workload is None
    queries = {
        asked.path.rpartition("/")[2]: asked.query for asked in server.asked if "watch" not in asked.query
    }
    assert queries["pods"]["labelSelector"] == "muster.dev/job"
    assert queries["events"]["fieldSelector"] == "type=Warning"
    assert "labelSelector" not in queries["workloads"]


def test_what_changes() -> None:
    scripted = Scripted()
    admitted = {**WORKLOADS[0], "status": {"conditions": [{"type": "Admitted", "status": "True"}]}}
    scripted.changes = {"workloads": ({"type": "MODIFIED", "object": admitted},)}
    with (
        api_server(scripted) as server,
        closing(Mirror(Client(server.api()), namespace="ml", kinds=KINDS)) as mirror,
    ):
        mirror.wait(timeout_seconds=10)
        one, two, workloads = mirror.seen("one"), mirror.seen("two"), mirror.workloads()
        scripted.go.set()
        eventually(lambda: mirror.seen("one") is not one)
        assert mirror.seen("two") is two
        assert mirror.workloads() != workloads
        workload = mirror.seen("one").workload
        scripted.end.set()
    assert workload is not None
    assert "status" in workload


def test_one_strange_annotation_blinds_nobody() -> None:
    scripted = Scripted()
    strange = {**PODS[1], "metadata": {**PODS[1]["metadata"], "annotations": {"metadata": "uid"}}}
    scripted.lists["pods"] = (strange,)
    scripted.changes = {"pods": tuple({"type": "MODIFIED", "object": pod} for pod in (strange, PODS[0]))}
    with (
        api_server(scripted) as server,
        closing(Mirror(Client(server.api()), namespace="ml", kinds=KINDS)) as mirror,
    ):
        mirror.wait(timeout_seconds=10)
        assert len(mirror.seen("one").pods) == 1
        scripted.go.set()
        eventually(lambda: len(mirror.seen("one").pods) == 2)
        scripted.end.set()


def test_a_pod_that_ended_badly_is_kept_as_long_as_its_job() -> None:
    scripted = Scripted()
    scripted.changes = {"pods": tuple({"type": "DELETED", "object": pod} for pod in PODS)}
    with (
        api_server(scripted) as server,
        closing(Mirror(Client(server.api()), namespace="ml", kinds=KINDS)) as mirror,
    ):
        mirror.wait(timeout_seconds=10)
        scripted.go.set()
        eventually(lambda: len(mirror.seen("one").pods) == 1)
        assert mirror.seen("one").pods[0]["metadata"]["name"] == "one-main-0-0"
        scripted.lists |= {"jobsets": SETS[1:], "pods": ()}
        scripted.too_old = {"jobsets", "pods"}
        scripted.end.set()
        eventually(lambda: mirror.seen("one").root is None)
        assert mirror.seen("one").pods == ()


@pytest.mark.parametrize("restarts", [True, False], ids=["started again", "put back by its queue"])
def test_of_pods_that_ended_badly_those_of_the_last_two_starts_are_kept(restarts: bool) -> None:
    """A queue that puts a gang back and lets it in again does not count that as a start."""
    scripted = Scripted()
    changes = []
    for start in range(5):
        for index in range(2):
            own = {
                "muster.dev/job": "one",
                "muster.dev/role": "main",
                "batch.kubernetes.io/job-completion-index": str(index),
                "jobset.sigs.k8s.io/restart-attempt": str(start if restarts else 0),
            }
            pod = document(
                "Pod", f"p-{index}-{start}", metadata={"labels": own}, spec={}, status={"phase": "Failed"}
            )
            changes += [{"type": kind, "object": pod} for kind in ("ADDED", "DELETED")]
    last = document("Pod", "last", job="one", spec={}, status={"phase": "Running"})
    scripted.lists["pods"] = ()
    scripted.changes = {"pods": (*changes, {"type": "ADDED", "object": last})}
    with (
        api_server(scripted) as server,
        closing(Mirror(Client(server.api()), namespace="ml", kinds=KINDS)) as mirror,
    ):
        mirror.wait(timeout_seconds=10)
        scripted.go.set()
        eventually(lambda: any(pod["metadata"]["name"] == "last" for pod in mirror.seen("one").pods))
        names = {pod["metadata"]["name"] for pod in mirror.seen("one").pods}
        assert names == {"last", "p-0-3", "p-1-3", "p-0-4", "p-1-4"}
        assert len(mirror.job_of) == len(names) + len(SETS)
        scripted.end.set()


def test_an_api_server_that_is_away() -> None:
    away, said = status(503, "ServiceUnavailable", "later"), r"the cluster's pods could not be read for 0.2 s"
    with (
        api_server(away) as server,
        closing(Mirror(Client(server.api()), namespace="ml", kinds=(POD,))) as mirror,
        pytest.raises(Unreachable, match=said),
    ):
        mirror.wait(timeout_seconds=0.2)


Document = dict[str, Any]
SMALL = Node(name="small", room={"cpu": 0.01, "memory": 1.0, "pods": 1.0})
CLUSTER = Cluster(namespace="muster-jobs", job_set=True, nodes=(SMALL,))


def read(document: Document) -> Document:
    found: Document = json.loads(json.dumps(document), object_hook=lean(kind_of(document)))
    return found


@pytest.mark.parametrize("later", [0.0, 3600.0])
@pytest.mark.parametrize("name", names())
def test_nothing_that_counts_is_left_out(name: str, later: float) -> None:
    recording = recorded(name)
    kept = JobObjects.of(map(read, recording.documents))
    now = recording.now + later
    assert observe(kept, recording.job) == observe(recording.seen, recording.job)
    for cluster in (None, CLUSTER):
        found = verdict(kept, recording.job, now=now, cluster=cluster)
        assert found == verdict(recording.seen, recording.job, now=now, cluster=cluster)
    assert kept.replicas() == recording.seen.replicas()
    workloads = [[each.workload] if each.workload else [] for each in (kept, recording.seen)]
    assert reckoned_places(workloads[0]) == reckoned_places(workloads[1])


def test_what_is_kept_of_a_waiting_gang_is_small() -> None:
    documents = [each for each in recorded("low-queued").documents if each["kind"] != POD.name]
    assert len(json.dumps([*map(read, documents)])) < len(json.dumps(documents)) / 3


def test_a_gang_that_nothing_is_known_of_but_its_name() -> None:
    bare = {"kind": "JobSet", "metadata": {"name": "a", "uid": "u"}, "spec": {}}
    assert json.loads(json.dumps(bare), object_hook=lean(JOB_SET)) == bare


def test_events_and_what_a_watch_says_of_itself_stay_as_they_are() -> None:
    event = {"kind": "Event", "metadata": {"name": "e", "uid": "u"}, "involvedObject": {"uid": "o"}}
    bookmark = {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": "7"}}}
    assert json.loads(json.dumps(event), object_hook=lean(EVENT)) == event
    assert json.loads(json.dumps(bookmark), object_hook=lean(POD)) == bookmark


@pytest.mark.parametrize("where", ["annotations", "labels"])
@pytest.mark.parametrize("said", ["its-uid-is-7", "", "x"])
def test_what_somebody_calls_metadata_is_none(where: str, said: str) -> None:
    pod = {
        "kind": "Pod",
        "metadata": {"name": "p", "uid": "u", where: {"metadata": said}},
        "spec": {"nodeName": "n"},
    }
    kept = {"metadata": said} if where == "labels" else None
    found = json.loads(json.dumps(pod), object_hook=lean(POD))
    assert (found["metadata"].get(where), found["spec"]) == (kept, {"nodeName": "n"})


def test_a_template_has_metadata_and_is_no_object() -> None:
    noted = {"labels": {"a": "b"}, "annotations": {"metadata": "uid"}}
    template = {"metadata": noted, "spec": {"containers": [{"name": "c", "resources": {}, "image": "i"}]}}
    job = {
        "kind": "Job",
        "metadata": {"name": "j", "uid": "u"},
        "spec": {"parallelism": 2, "template": template},
    }
    found = json.loads(json.dumps(job), object_hook=lean(JOB))
    containers = {"containers": [{"name": "c", "resources": {}}]}
    assert found["spec"] == {
        "parallelism": 2,
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": containers},
    }


def test_whole_but_for_who_wrote_it() -> None:
    document = {"metadata": {"name": "a", "managedFields": [{"manager": "kubelet"}]}, "spec": {"a": 1}}
    assert json.loads(json.dumps(document), object_hook=without_managers) == {
        "metadata": {"name": "a"},
        "spec": {"a": 1},
    }
