"""When a gang held its resources, from what a real cluster showed of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import pytest
from tests.unit.backends.kubernetes.recordings import Document, Recording, recorded

from muster.backends.kubernetes.state.observe import tallied
from muster.core.tally import Allotment, Tally

NOTHING = Tally(user="ada")


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def admitted(workload: Document, time: str, status: str = "True") -> None:
    for each in workload["status"]["conditions"]:
        if each["type"] == "Admitted":
            each.update(status=status, lastTransitionTime=time)


@pytest.fixture
def running() -> Recording:
    return recorded("well-running")


ADMITTED = at("2026-11-21T19:54:53Z")


def look(recording: Recording, before: Tally = NOTHING) -> Tally:
    return tallied(before, recording.seen, recording.job)


def test_from_kueues_admission(running: Recording) -> None:
    found = look(running)
    gpus = sum(role.replicas * role.resources.gpus for role in running.job.roles)
    assert found == Tally(user="ada", times=(Allotment(since=ADMITTED, replicas=2, gpus=gpus),))
    assert look(running, found) == found


def test_to_its_eviction_and_again_from_the_next_admission(running: Recording) -> None:
    first = look(running)
    evicted = running.changed("Workload", lambda each: admitted(each, "2026-11-21T19:56:00Z", "False"))
    waits = look(evicted, first)
    assert [each.until for each in waits.times] == [at("2026-11-21T19:56:00Z")]
    assert look(evicted, waits) == waits
    back = running.changed("Workload", lambda each: admitted(each, "2026-11-21T19:59:00Z"))
    again = look(back, waits)
    assert [(each.since, each.until) for each in again.times] == [
        (ADMITTED, at("2026-11-21T19:56:00Z")),
        (at("2026-11-21T19:59:00Z"), None),
    ]
    assert look(back, again) == again


def test_an_eviction_that_nobody_saw_is_in_the_workloads_other_conditions(running: Recording) -> None:
    def readmitted(workload: Document) -> None:
        admitted(workload, "2026-11-21T19:59:00Z")
        workload["status"]["conditions"].append(
            {"type": "Requeued", "status": "True", "lastTransitionTime": "2026-11-21T19:56:30Z"}
        )

    found = look(running.changed("Workload", readmitted), look(running))
    assert [each.until for each in found.times] == [at("2026-11-21T19:56:30Z"), None]


def test_to_the_workloads_end(running: Recording) -> None:
    ended = running.changed(
        "Workload",
        lambda each: each["status"]["conditions"].append(
            {"type": "Finished", "status": "True", "lastTransitionTime": "2026-11-21T20:00:00Z"}
        ),
    )
    assert [each.until for each in look(ended).times] == [at("2026-11-21T20:00:00Z")]


def test_a_preempted_one_that_was_never_seen_before_held_nothing_that_is_known() -> None:
    assert look(recorded("low-queued")) == NOTHING


def test_another_size_is_another_workload(running: Recording) -> None:
    first = replace(look(running), times=(Allotment(since=ADMITTED - 600, replicas=4),))

    def made(workload: Document) -> None:
        workload["metadata"]["creationTimestamp"] = "2026-11-21T19:54:50Z"

    found = look(running.changed("Workload", made), first)
    assert [(each.since, each.until, each.replicas) for each in found.times] == [
        (ADMITTED - 600, at("2026-11-21T19:54:50Z"), 4),
        (ADMITTED, None, 2),
    ]
    # between two sizes the JobSet is new, and the Workload may still be that of the one before
    stale = running.changed("Workload", lambda each: each["metadata"]["ownerReferences"][0].update(uid="x"))
    assert look(stale, first) == first


def test_without_kueue_from_the_pods_schedule(running: Recording) -> None:
    alone = running.without("Workload")
    placed = [pod.placed_at for pod in alone.seen.replicas()]
    found = look(alone)
    assert [(each.since, each.until, each.replicas) for each in found.times] == [(min(placed), None, 2)]
    assert look(alone, found) == found
    half = alone.changed("Pod", lambda pod: pod["spec"].pop("nodeName"), index=0)
    assert look(half) == NOTHING
