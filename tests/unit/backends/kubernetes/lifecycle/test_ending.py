"""How jobs end without success: one verdict, the last of their lines, and nothing left, also where a process is killed."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.unit.backends.kubernetes.cluster_jobs import Cut, World, at_request, die, world
from tests.unit.backends.kubernetes.recordings import recorded

from muster.backends.base import Backend
from muster.backends.kubernetes.api.kinds import JOB_SET
from muster.backends.kubernetes.cluster.discovery import QUICK_SECONDS
from muster.backends.kubernetes.lifecycle.ending import RestartNotes
from muster.backends.kubernetes.runner import UNSEALED
from muster.backends.kubernetes.state.seen import JobObjects, SeenPod
from muster.core.cancelling import UNKNOWN
from muster.core.errors import Forbidden, StoreError, Unavailable
from muster.core.origin import Origin
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause, ExitCode
from muster.volumes.service.tokens import TokenKind, operator_token

LONG_AGO = "2026-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world")) as found:
        yield found


@pytest.fixture
def backend(there: World) -> Iterator[Backend]:
    yield there.backend()
    there.cluster.away, there.cluster.collects = False, True
    there.cluster.forbidden.clear()


def fail(there: World, job_id: str, *, code: ExitCode = ExitCode.USER_ERROR) -> None:
    """Let the cluster say that a job has failed."""
    (root,) = there.roots(job_id)
    message = f"Container base for pod ml/{job_id}-main-0-1 failed with exit code {code.value} matching FailJob rule"
    failed = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": message}
    there.cluster.put({**root, "status": {"conditions": [failed]}})


def check_ended(there: World, job_id: str, cause: Cause) -> JobStatus:
    """It has ended for that cause, its log ends with that, once, and nothing of it is left."""
    status = there.backend().status(job_id)
    assert status.verdict is not None
    assert status.verdict.cause is cause
    assert status.state is (JobState.CANCELLED if cause is Cause.CANCELLED else JobState.FAILED)
    assert status.ended is not None
    lines = there.service.client().ledger.read(job_id)[0].decode().splitlines()
    assert lines[-4:] == status.verdict.render(job_id=job_id).splitlines()
    assert lines.count(lines[-1]) == 1
    assert not there.roots(job_id)
    return status


def test_a_failure_is_recorded_once_by_all_who_see_it(there: World, backend: Backend) -> None:
    backend.submit(there.job(), job_id="wrong")
    fail(there, "wrong")
    threads = [threading.Thread(target=there.backend().status, args=("wrong",)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check_ended(there, "wrong", Cause.USER_ERROR)


def test_a_verdict_names_the_next_step_of_the_task_that_asked(there: World, backend: Backend) -> None:
    asked = Origin(instance="i", dag_id="loop", run_id="muster__1", task_id="train")
    backend.submit(there.job(origin=asked), job_id="full")
    fail(there, "full", code=ExitCode.SEAL_FAILED)
    verdict = check_ended(there, "full", Cause.COMMIT_FAILED).verdict
    assert verdict is not None
    assert verdict.advice.endswith("then `muster run loop --resume`")


def test_of_two_reasons_the_first_that_is_written_down_counts(there: World, backend: Backend) -> None:
    backend.submit(there.job(), job_id="both")
    ledger = there.service.client().ledger
    status = ledger.status("both")
    ledger.update(replace(status, verdict=UNKNOWN))
    ledger.update(replace(status, verdict=UNSEALED))
    ledger.update(replace(status, state=JobState.FAILED, ended=status.submitted, verdict=UNSEALED))
    check_ended(there, "both", Cause.CANCELLED)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(1, 12))
def test_a_cancel_that_is_killed_is_gone_on_with(
    there: World, backend: Backend, monkeypatch: pytest.MonkeyPatch, step: int, after: bool
) -> None:
    job_id = f"stop-{step}-{after:d}"
    backend.submit(there.job(), job_id=job_id)
    cancelled = False
    with at_request(monkeypatch, step, die, after=after) as sent:
        try:
            backend.cancel(job_id, wait=False)
            cancelled = True
        except Cut:
            pass
    status = there.backend("second").status(job_id)
    if not cancelled and not any("PUT" in each for each in sent[: step - (not after)]):
        assert status.verdict is None, "it was not written down yet, as if the cancel had not come"
        there.backend("second").cancel(job_id)
    check_ended(there, job_id, Cause.CANCELLED)


def test_the_page_s_own_token_is_enough_to_cancel(there: World, backend: Backend) -> None:
    page = operator_token(there.service.keys, lifetime_seconds=3600, kind=TokenKind.PAGE)
    backend.submit(there.job(), job_id="clicked")
    there.backend("page", token=page).cancel("clicked", wait=False)
    check_ended(there, "clicked", Cause.CANCELLED)


def test_it_has_ended_only_when_no_pod_runs(there: World, backend: Backend) -> None:
    backend.submit(there.job(), job_id="slow")
    pod = there.pod("slow")
    there.cluster.put({**pod, "metadata": {**pod["metadata"], "ownerReferences": []}})  # it takes its time
    backend.cancel("slow", wait=False)
    assert not there.roots("slow")
    status = backend.status("slow")
    assert (status.state.ended, status.alive) == (False, True)
    assert status.reason == "is being ended (cancelled)"
    there.cluster.put({**pod, "status": {"phase": "Failed"}})
    check_ended(there, "slow", Cause.CANCELLED)


def test_a_pod_that_nobody_will_hear_of_again_is_not_waited_for(there: World, backend: Backend) -> None:
    backend.submit(there.job(), job_id="unheard")
    there.pod("unheard", deletionTimestamp=LONG_AGO, ownerReferences=[])
    backend.cancel("unheard")
    check_ended(there, "unheard", Cause.CANCELLED)


def test_a_job_whose_objects_somebody_deleted_while_it_ran(there: World, backend: Backend) -> None:
    backend.submit(there.job(), job_id="vanishes")
    assert there.ask_for_bundle("vanishes").status_code == 200
    there.cluster.remove(there.roots("vanishes")[0], JOB_SET)
    status = check_ended(there, "vanishes", Cause.BACKEND_ERROR)
    assert status.verdict is not None
    assert "vanishes was deleted" in status.verdict.message


def test_a_job_that_waited_too_long(there: World, backend: Backend) -> None:
    backend.submit(there.job(queue_timeout_seconds=0.001), job_id="late")
    check_ended(there, "late", Cause.QUEUE_TIMEOUT)


def test_a_cluster_that_is_away_ends_nothing_and_fails_nobody(there: World, backend: Backend) -> None:
    backend.submit(there.job(), job_id="away")
    there.cluster.away = True
    status = backend.status("away")
    assert (status.state, status.alive) == (JobState.QUEUED, True)
    assert "nothing can be seen of it now" in status.reason
    backend.cancel("away", wait=False)
    assert backend.status("away").verdict is not None
    there.cluster.away = False
    check_ended(there, "away", Cause.CANCELLED)


def test_a_cluster_that_has_just_started_ends_nothing_and_fails_nobody(
    there: World, backend: Backend
) -> None:
    backend.submit(there.job(), job_id="starts")
    there.cluster.starts = True
    status = backend.status("starts")
    assert (status.state, status.alive) == (JobState.QUEUED, True)
    assert "nothing can be seen of it now" in status.reason
    there.cluster.starts = False
    backend.cancel("starts")
    check_ended(there, "starts", Cause.CANCELLED)


def test_rights_that_are_missing_are_named(there: World, backend: Backend) -> None:
    backend.submit(there.job(), job_id="kept")
    there.cluster.forbidden.add(("delete", "jobsets"))
    with pytest.raises(Forbidden, match='verbs: \\["delete"\\]'):
        backend.cancel("kept")
    there.cluster.forbidden.clear()
    check_ended(there, "kept", Cause.CANCELLED)


def test_whoever_may_not_watch_is_told_before_the_first_watch(there: World, backend: Backend) -> None:
    backend.submit(there.job(), job_id="unwatched")
    there.cluster.forbidden.add(("watch", "pods"))
    with pytest.raises(Forbidden, match=r"may not follow jobs in namespace muster-jobs: .*pods.*watch"):
        backend.statuses(["unwatched"])


def test_pods_that_ended_well_without_a_seal(there: World, backend: Backend) -> None:
    backend.submit(there.job(), job_id="unsealed")
    (root,) = there.roots("unsealed")
    completed = {"type": "Completed", "status": "True", "lastTransitionTime": LONG_AGO}
    there.cluster.put({**root, "status": {"conditions": [completed]}})
    status = check_ended(there, "unsealed", Cause.BACKEND_ERROR)
    assert status.verdict is not None
    assert "the store has no seal" in status.verdict.message


class TestSweep:
    def test_takes_away_what_jobs_that_have_ended_left(self, there: World, backend: Backend) -> None:
        for job_id in ("swept", "fails", "waits"):
            backend.submit(there.job(), job_id=job_id)
        status = there.service.client().ledger.status("swept")
        there.service.client().ledger.update(_succeeded(status))
        fail(there, "fails")
        stranger = there.cluster.put({**there.roots("waits")[0], "metadata": _stranger()})
        threads = [threading.Thread(target=there.backend().sweep) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not there.roots("swept")
        check_ended(there, "fails", Cause.USER_ERROR)
        assert len(there.roots("waits")) == 1
        assert there.cluster.objects["jobsets", "stranger"]["metadata"] == stranger["metadata"]
        assert backend.sweep() == ()

    def test_a_root_goes_last_and_is_swept_once(self, there: World, backend: Backend) -> None:
        """One that went first would have its Jobs made anew by a controller that has not heard of it."""
        backend.submit(there.job(), job_id="goes")
        ledger = there.service.client().ledger
        ledger.update(_succeeded(ledger.status("goes")))
        there.cluster.collects = False
        assert there.backend().sweep() == ("goes",)
        assert "deletionTimestamp" in there.roots("goes")[0]["metadata"]
        assert there.backend().sweep() == ()
        there.cluster.collect()
        assert not there.roots("goes")

    def test_a_round_ends_where_the_cluster_goes_away_and_the_next_goes_on(
        self, there: World, backend: Backend
    ) -> None:
        """A hub has one thread for all of its tasks."""
        ids = [f"left-{number}" for number in range(3)]
        ledger = there.service.client().ledger
        for job_id in ids:
            backend.submit(there.job(), job_id=job_id)
            ledger.update(_succeeded(ledger.status(job_id)))
        there.cluster.unanswered.add(("delete", JOB_SET.plural))
        there.slept.clear()
        asked = len(there.server.asked)
        try:
            assert there.backend().sweep() == ()
        finally:
            there.cluster.unanswered.clear()
        assert len({each.path for each in there.server.asked[asked:] if each.method == "DELETE"}) == 1
        assert sum(there.slept) <= 2 * QUICK_SECONDS
        assert set(ids) <= {*there.backend().sweep()}
        assert not any(map(there.roots, ids))


class TestMany:
    def test_twenty_cost_the_cluster_no_more_than_one(self, there: World, backend: Backend) -> None:
        ids = [f"many-{number}" for number in range(20)]
        for job_id in ids:
            backend.submit(there.job(), job_id=job_id)
        assert backend.statuses(ids[:1])[ids[0]].state is JobState.QUEUED
        asked = there.questions()
        found = backend.statuses([*ids, "unknown"])
        assert {name: status.state for name, status in found.items()} == dict.fromkeys(ids, JobState.QUEUED)
        assert backend.sweep() == ()
        assert there.questions() == asked


def _succeeded(status: JobStatus) -> JobStatus:
    return replace(status, state=JobState.SUCCEEDED, ended=status.submitted)


def _stranger() -> dict[str, Any]:
    return {"name": "stranger", "namespace": "muster-jobs", "labels": {"muster.dev/job": "of-another-store"}}


LOST = (
    "[muster] rank lost, rank 0: the worker of replica main-0 ended with exit code 68: gloo: connection closed by "
    "peer; the whole gang starts again from its checkpoint\n"
)


@dataclass
class Lines:
    """A store that keeps lines; what is appended under one name is kept once."""

    kept: dict[str, str] = field(default_factory=dict)
    asked: int = 0
    refused: StoreError | None = None

    @property
    def ledger(self) -> Lines:
        return self

    def append(self, job_id: str, data: bytes, *, request: str) -> None:
        self.asked += 1
        if self.refused is not None:
            raise self.refused
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


FULL = StoreError("no space left on device")
FULL.__cause__ = OSError(errno.ENOSPC, "")


@pytest.mark.parametrize(
    "refused", [FULL, StoreError("this token only reads"), Unavailable("no answer")], ids=str
)
def test_a_line_that_is_not_taken_fails_nothing_that_runs_and_is_told_later(refused: StoreError) -> None:
    store, job = Lines(), recorded("rank-lost").job
    told = notes(store)
    store.refused = refused
    told.tell(job, "j", seen(failed=True))
    assert not store.kept
    store.refused = None
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
    assert told.spins(job, spinning(1), now=100.0) is None
    assert told.spins(job, spinning(11), now=120.0) is None  # within seconds: it may come right
    found = told.spins(job, spinning(12), now=161.0)
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
        found = told.spins(job, replace(begun, pods=begun.pods[:1]), now=number * 10.0)
    assert found is not None
    assert "1 of 2 replicas began" in found.message


def test_starts_between_which_ranks_began_are_no_spinning() -> None:
    """A big gang loses many nodes in many hours."""
    job, told = recorded("rank-lost").job, notes(Lines())
    for number in range(1, 40):
        assert told.spins(job, spinning(number), now=number * 1000.0) is None
        assert told.spins(job, spinning(number, began=True), now=number * 1000.0 + 5) is None
    other = notes(Lines())
    assert other.spins(job, spinning(0, counted=40), now=0.0) is None
    assert other.spins(job, spinning(0, counted=80), now=9999.0) is None  # max_restarts ends that
