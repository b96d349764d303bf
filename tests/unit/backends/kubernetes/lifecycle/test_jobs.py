"""Jobs looked at and ended by several at once: whose they are, and what is read of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.backends.kubernetes.cluster_jobs import Cut, World, at_request, die, world

from muster.backends.base import Backend
from muster.backends.kubernetes.api.kinds import CLUSTER_QUEUE
from muster.core.cancelling import UNKNOWN
from muster.core.job import Role
from muster.core.resources import Resources
from muster.core.status import JobEvent, JobState
from muster.core.verdict import Cause

MIB = 1 << 20
FIRST, SECOND = "ti-1", "ti-2"


async def end_of(backend: Backend, job_id: str) -> JobEvent:
    return [event async for event in backend.watch(job_id)][-1]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world")) as found:
        yield found


def test_one_that_got_no_objects_waits_no_longer_than_any_other(
    there: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = there.job(queue_timeout_seconds=0.001)
    with at_request(monkeypatch, 0, die, after=False) as sent:
        there.backend().submit(job, job_id="whole")
    entered = next(number for number, each in enumerate(sent, 1) if each == "PUT /v1/jobs/whole")
    with at_request(monkeypatch, entered, die, after=True), pytest.raises(Cut):
        there.backend().submit(job, job_id="rootless")
    status = there.backend().status("rootless")
    assert (status.state, status.verdict and status.verdict.cause) == (JobState.FAILED, Cause.QUEUE_TIMEOUT)


def test_one_that_is_adopted_while_its_end_is_prepared_goes_on(
    there: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job_id in ("ended", "adopted"):
        there.backend().submit(there.job(), job_id=job_id, owner=FIRST)
    ledger = there.service.client().ledger

    def adopt() -> None:
        assert ledger.own("adopted", owner=SECOND, expected=FIRST)

    with at_request(monkeypatch, 0, die, after=False) as sent:
        there.backend().cancel("ended", owner=FIRST, wait=False)
    decided = next(number for number, each in enumerate(sent, 1) if each.startswith("PUT "))
    looked = max(number for number, each in enumerate(sent[:decided], 1) if each.startswith("list "))
    with at_request(monkeypatch, looked, adopt, after=True):
        there.backend().cancel("adopted", owner=FIRST, wait=False)
    status = ledger.status("adopted")
    assert (status.state.ended, status.verdict, status.owner) == (False, None, SECOND)


def test_one_that_cannot_be_looked_at_keeps_nobody_from_being_seen(
    there: World, caplog: pytest.LogCaptureFixture
) -> None:
    for job_id in ("odd", "sound"):
        there.backend().submit(there.job(), job_id=job_id)
    (root,) = there.roots("odd")
    labels = {**root["metadata"]["labels"], "jobset.sigs.k8s.io/restart-attempt": "often"}
    there.pod("odd", labels=labels)
    found = there.backend().statuses(["odd", "sound"])
    assert found["sound"].reason != found["odd"].reason
    assert (found["odd"].state, found["odd"].verdict) == (JobState.QUEUED, None)
    assert found["odd"].reason == (
        "it cannot be looked at, by a defect of muster's own (ValueError: invalid literal for int() with base 10: 'often')"
    )
    (said,) = [each for each in caplog.records if each.exc_info]
    assert "odd" in said.getMessage()


def test_why_a_commit_takes_long_is_told(there: World) -> None:
    """The store says so where a disk is in the way, and tries again."""
    there.backend().submit(there.job(), job_id="full")
    ledger = there.service.client().ledger
    committing = replace(ledger.status("full"), state=JobState.COMMITTING)
    ledger.update(committing)
    assert there.backend().status("full").reason == "every replica has sealed"
    ledger.update(replace(committing, reason="is tried again: no space left on the store's claim"))
    assert there.backend().status("full").reason == "is tried again: no space left on the store's claim"


class TestHeld:
    """Gangs that Kueue holds: they have no pods, and it goes on with the flavor after the one that it tried last."""

    CARDS = Resources(memory_gib=0.1, gpus=1, gpu_class=("gpu-a100", "gpu-k80"))
    NOT_ASKED_FOR = "flavor cpu doesn't match node affinity"
    TOO_MANY = (
        "insufficient quota for nvidia.com/gpu in flavor {}, previously considered podsets requests (0) + "
        "current podset request (12) > maximum capacity ({})"
    )

    def hold(self, there: World, job_id: str, *said: str) -> None:
        """Have a gang of twelve that waits for what Kueue says."""
        role = Role(replicas=12, command=("true",), resources=self.CARDS)
        there.backend().submit(there.job(roles=(role,)), job_id=job_id)
        (root,) = there.roots(job_id)
        uid = root["metadata"]["uid"]
        message = f"couldn't assign flavors to pod set main: {', '.join(said)}"
        waits: dict[str, Any] = {
            "type": "QuotaReserved",
            "status": "False",
            "reason": "Pending",
            "message": message,
        }
        there.cluster.put(
            {
                "apiVersion": "kueue.x-k8s.io/v1beta2",
                "kind": "Workload",
                "metadata": {
                    "name": f"jobset-{job_id}",
                    "namespace": root["metadata"]["namespace"],
                    "labels": {"kueue.x-k8s.io/job-uid": uid},
                    "ownerReferences": [{"uid": uid}],
                },
                "spec": {"queueName": "team-a"},
                "status": {"conditions": [waits]},
            }
        )

    @pytest.mark.parametrize("seen", ["followed", "asked for"])
    def test_goes_on_where_a_class_that_was_not_tried_may_do(self, there: World, seen: str) -> None:
        job_id = f"held-{seen.replace(' ', '-')}"
        self.hold(there, job_id, self.TOO_MANY.format("gpu-k80", 4))
        backend = there.backend()
        status = backend.status(job_id) if seen == "asked for" else backend.statuses([job_id])[job_id]
        assert (status.state, status.verdict) == (JobState.QUEUED, None)
        assert there.roots(job_id)

    def test_goes_on_where_its_quota_may_not_be_read(self, there: World) -> None:
        right = ("list", CLUSTER_QUEUE.plural)
        self.hold(there, "held-unknown", self.NOT_ASKED_FOR, self.TOO_MANY.format("gpu-a100", 8))
        there.cluster.forbidden.add(right)
        try:
            status = there.backend().status("held-unknown")
        finally:
            there.cluster.forbidden.remove(right)
        assert (status.state, status.verdict) == (JobState.QUEUED, None)

    def test_ends_where_no_class_can_ever_do(self, there: World) -> None:
        never = [self.TOO_MANY.format(flavor, most) for flavor, most in (("gpu-a100", 8), ("gpu-k80", 4))]
        self.hold(there, "held-for-ever", self.NOT_ASKED_FOR, *never)
        status = there.backend().statuses(["held-for-ever"])["held-for-ever"]
        assert status.verdict is not None
        assert status.verdict.cause is Cause.UNSCHEDULABLE
        assert not there.roots("held-for-ever")

    def test_many_cost_the_cluster_no_more_than_one(self, there: World) -> None:
        jobs = [f"held-{number}" for number in range(5)]
        for job_id in jobs:
            self.hold(there, job_id, self.TOO_MANY.format("gpu-k80", 4))
        backend = there.backend()
        backend.statuses(jobs[:1])
        before = there.questions()
        assert {each.state for each in backend.statuses(jobs).values()} == {JobState.QUEUED}
        assert there.questions() == before, "what the cluster has was looked up a moment ago"


class TestWatch:
    @pytest.mark.parametrize("why", ["away", "forbidden"])
    def test_an_end_is_told_when_nothing_is_left_though_the_cluster_was_away(
        self, there: World, why: str
    ) -> None:
        job_id = f"late-{why}"
        there.backend().submit(there.job(), job_id=job_id)
        ledger = there.service.client().ledger
        ledger.update(replace(ledger.status(job_id), verdict=UNKNOWN))
        ledger.update(replace(ledger.status(job_id), state=JobState.CANCELLED, ended=1.0))

        async def refused_and_then_not() -> JobEvent:
            end = asyncio.create_task(end_of(there.backend(), job_id))
            before = there.questions()
            while there.questions() < before + 3:
                await asyncio.sleep(0.01)
            assert not end.done()
            there.cluster.away = False
            there.cluster.forbidden.clear()
            return await end

        there.cluster.away = why == "away"
        there.cluster.forbidden |= {("delete", "jobsets")} if why == "forbidden" else set()
        told = asyncio.run(asyncio.wait_for(refused_and_then_not(), timeout=60))
        assert told.status is not None
        assert told.status.state is JobState.CANCELLED
        assert not there.roots(job_id)

    def test_an_end_is_told_though_the_cluster_stays_away(
        self, there: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        there.backend().submit(there.job(), job_id="alone")
        ledger = there.service.client().ledger
        ledger.update(replace(ledger.status("alone"), verdict=UNKNOWN))
        ledger.update(replace(ledger.status("alone"), state=JobState.CANCELLED, ended=1.0))
        monkeypatch.setattr("muster.backends.base.PATIENCE_SECONDS", 0.0)
        monkeypatch.setattr(there.cluster, "away", True)
        told = asyncio.run(end_of(there.backend(), "alone"))
        assert told.status is not None
        assert told.status.state is JobState.CANCELLED
        assert "are left to the sweep" in caplog.text

    @pytest.fixture
    def long(self, there: World) -> str:
        """A job that has said 12 MiB."""
        job_id = "long"
        if not there.roots(job_id):
            there.backend().submit(there.job(), job_id=job_id)
            for number in range(4):
                line = f"{number}".encode() * (3 * MIB - 1) + b"\n"
                there.service.client().ledger.append(job_id, line)
        return job_id

    def test_tells_how_a_job_is_before_all_that_it_has_said(self, there: World, long: str) -> None:
        async def until_told() -> list[JobEvent]:
            events = []
            async for event in there.backend().watch(long):
                events.append(event)
                if event.status is not None:
                    break
            return events

        told = asyncio.run(until_told())
        assert told[-1].status is not None
        assert told[-1].status.state is JobState.QUEUED
        assert sum(len(line) for event in told for line in event.lines) <= 4 * MIB

    def test_tells_all_that_was_said_before_its_end(self, there: World, long: str) -> None:
        there.backend().cancel(long)

        async def all_of_it() -> list[JobEvent]:
            return [event async for event in there.backend().watch(long)]

        told = asyncio.run(all_of_it())
        assert [line[:1] for event in told for line in event.lines][:4] == ["0", "1", "2", "3"]
        assert max(sum(map(len, event.lines)) for event in told) <= 4 * MIB
        assert told[-1].status is not None
        assert told[-1].status.state is JobState.CANCELLED
