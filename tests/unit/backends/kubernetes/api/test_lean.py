"""What a mirror keeps of objects is enough: every judgement on what a real cluster showed is the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.backends.kubernetes.recordings import names, recorded

from muster.backends.kubernetes.api.kinds import EVENT, JOB, JOB_SET, POD, kind_of
from muster.backends.kubernetes.api.lean import lean, whole
from muster.backends.kubernetes.cluster.facts import Cluster, Node
from muster.backends.kubernetes.state.observe import observe
from muster.backends.kubernetes.state.queueing import reckoned_places
from muster.backends.kubernetes.state.seen import JobObjects
from muster.backends.kubernetes.state.verdicts import verdict

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
    assert json.loads(json.dumps(bare), object_hook=lean(JOB_SET)) == bare | {"spec": {"replicatedJobs": []}}


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
    containers = {"containers": [{"name": "c", "resources": {}}], "initContainers": []}
    assert found["spec"] == {
        "parallelism": 2,
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": containers},
    }


def test_whole_but_for_who_wrote_it() -> None:
    document = {"metadata": {"name": "a", "managedFields": [{"manager": "kubelet"}]}, "spec": {"a": 1}}
    assert json.loads(json.dumps(document), object_hook=whole) == {
        "metadata": {"name": "a"},
        "spec": {"a": 1},
    }
