from __future__ import annotations

import errno
from dataclasses import dataclass, field, replace
from typing import Any

from tests.unit.backends.kubernetes.recordings import recorded

from muster.backends.kubernetes.lifecycle.restarts import RestartNotes
from muster.backends.kubernetes.state.seen import JobObjects, SeenPod
from muster.core.errors import StoreError
from muster.core.verdict import Cause

LOST = (
    "[muster] rank lost, rank 0: the worker of replica main-0 ended with exit code 68: gloo: connection closed by "
    "peer; the whole gang starts again from its checkpoint\n"
)


@dataclass
class Lines:
    """A store that keeps lines; what is appended under one name is kept once."""

    kept: dict[str, str] = field(default_factory=dict)
    asked: int = 0
    full: bool = False

    @property
    def ledger(self) -> Lines:
        return self

    def append(self, job_id: str, data: bytes, *, request: str) -> None:
        self.asked += 1
        if self.full:
            raise StoreError("no space left on device") from OSError(errno.ENOSPC, "")
        self.kept.setdefault(request, data.decode())


def seen(*, failed: bool) -> JobObjects:
    """A gang that was started again, with the pods of its first start or before they were seen to fail."""
    whole = recorded("rank-lost").seen
    pods = [pod for pod in whole.pods if failed or SeenPod.of(pod).restart == 1]
    return replace(whole, pods=tuple(pods))


def notes(store: Any) -> RestartNotes:
    return RestartNotes(store)


def test_a_restart_is_told_once_the_pod_that_failed_is_seen() -> None:
    store, job = Lines(), recorded("rank-lost").job
    told = notes(store)
    told.tell(job, "j", seen(failed=False))
    assert not store.kept
    for _ in range(2):
        told.tell(job, "j", seen(failed=True))
    assert list(store.kept.values()) == [LOST]
    assert store.asked == 1


def test_a_full_disk_fails_nothing_that_runs_and_the_restart_is_told_later() -> None:
    store, job = Lines(), recorded("rank-lost").job
    told = notes(store)
    store.full = True
    told.tell(job, "j", seen(failed=True))
    assert not store.kept
    store.full = False
    told.tell(job, "j", seen(failed=True))
    assert list(store.kept.values()) == [LOST]


def test_of_a_gang_that_was_submitted_anew_each_restart_is_told_too() -> None:
    store, job, first = Lines(), recorded("rank-lost").job, seen(failed=True)
    assert first.root is not None
    again = {**first.root, "metadata": {**first.root["metadata"], "uid": "another"}}
    told = notes(store)
    told.tell(job, "j", first)
    told.tell(job, "j", replace(first, root=again))
    assert list(store.kept.values()) == [LOST, LOST]


def test_two_who_see_it_tell_it_once() -> None:
    store, job = Lines(), recorded("rank-lost").job
    for _ in range(2):
        notes(store).tell(job, "j", seen(failed=True))
    assert list(store.kept.values()) == [LOST]


def test_of_a_gang_that_was_started_once_nothing_is_told() -> None:
    store, recording = Lines(), recorded("out-of-memory")
    notes(store).tell(recording.job, "j", recording.seen)
    assert not store.kept


def spinning(free: int, *, counted: int = 0, began: bool = False) -> JobObjects:
    """A gang that was started again so often, whose pods wait for their node."""
    whole = recorded("rank-lost").seen
    assert whole.root is not None
    status = {"restarts": free + counted, "restartsCountTowardsMax": counted}
    pods = [each for each in whole.pods if SeenPod.of(each).restart == 1] if began else []
    for pod in pods:
        pod["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] = str(free + counted)
    return replace(whole, root={**whole.root, "status": status}, pods=tuple(pods))


def test_a_gang_that_the_cluster_starts_again_and_again_without_a_rank_comes_to_its_end() -> None:
    """None of these restarts counts, so that ten within seconds use up none."""
    job, told = recorded("rank-lost").job, notes(Lines())
    assert told.spins(job, "j", spinning(1), now=100.0) is None
    assert told.spins(job, "j", spinning(11), now=120.0) is None  # within seconds: it may come right
    found = told.spins(job, "j", spinning(12), now=161.0)
    assert found is not None
    assert found.cause is Cause.NODE_LOST
    assert found.message.startswith(
        "the cluster started its pods 11 times in 61 s, and 0 of 2 replicas began"
    )


def test_a_gang_of_which_a_part_never_begins_comes_to_its_end_too() -> None:
    """The node of one replica refuses its pod each time, and the other one waits for it."""
    job, told = recorded("rank-lost").job, notes(Lines())
    for number in range(11):
        begun = spinning(number, began=True)
        found = told.spins(job, "j", replace(begun, pods=begun.pods[:1]), now=number * 10.0)
    assert found is not None
    assert "1 of 2 replicas began" in found.message


def test_starts_between_which_ranks_began_are_no_spinning() -> None:
    """A big gang loses many nodes in many hours."""
    job, told = recorded("rank-lost").job, notes(Lines())
    for number in range(1, 40):
        assert told.spins(job, "j", spinning(number), now=number * 1000.0) is None
        assert told.spins(job, "j", spinning(number, began=True), now=number * 1000.0 + 5) is None
    assert told.spins(job, "k", spinning(0, counted=40), now=0.0) is None
    assert told.spins(job, "k", spinning(0, counted=80), now=9999.0) is None  # max_restarts ends that
