"""Jobs looked at and ended by several at once: whose they are, and what is read of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.unit.backends.kubernetes.cluster_jobs import Cut, World, at_request, die, world

from muster.backends.kubernetes.backend import KubernetesBackend
from muster.backends.kubernetes.lifecycle.jobs import CANCELLED
from muster.core.status import JobEvent, JobState
from muster.core.verdict import Cause

MIB = 1 << 20
FIRST, SECOND = "ti-1", "ti-2"


async def end_of(backend: KubernetesBackend, job_id: str) -> JobEvent:
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


class TestWatch:
    @pytest.mark.parametrize("why", ["away", "forbidden"])
    def test_an_end_is_told_when_nothing_is_left_though_the_cluster_was_away(
        self, there: World, why: str
    ) -> None:
        job_id = f"late-{why}"
        there.backend().submit(there.job(), job_id=job_id)
        ledger = there.service.client().ledger
        ledger.update(replace(ledger.status(job_id), verdict=CANCELLED))
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
        ledger.update(replace(ledger.status("alone"), verdict=CANCELLED))
        ledger.update(replace(ledger.status("alone"), state=JobState.CANCELLED, ended=1.0))
        monkeypatch.setattr("muster.backends.kubernetes.lifecycle.jobs.PATIENCE_SECONDS", 0.0)
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
