"""The hub: one look for all, each follower its own lines, and nothing that fails once is lost."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from itertools import chain, count, pairwise
from typing import Any

import pytest
from tests.unit.airflow.attempts.notes import OwnStore
from tests.waiting import eventually

from muster.airflow.attempts import hub as module
from muster.airflow.attempts.hub import Hub, JobNews
from muster.core.errors import NotFound, StoreError
from muster.core.status import JobState, JobStatus


class Machine(OwnStore):
    """A backend in memory: jobs by id, each with a status and a log."""

    def __init__(self) -> None:
        self.known: dict[str, JobStatus] = {}
        self.logs: dict[str, bytes] = {}
        self.looks: list[set[str]] = []
        self.reads: list[str] = []
        self.away = 0
        self.opened = self.closed = 0

    def open(self) -> Any:
        assert self.opened == self.closed, "one at a time"
        self.opened += 1
        return self

    def close(self) -> None:
        self.closed += 1

    def begin(self, job_id: str, log: bytes = b"", *, state: JobState = JobState.RUNNING) -> None:
        self.known[job_id] = JobStatus(job_id=job_id, state=state, submitted=1.0)
        self.logs[job_id] = log

    def end(self, job_id: str, state: JobState = JobState.SUCCEEDED, **changes: Any) -> None:
        self.known[job_id] = replace(self.known[job_id], state=state, **changes)

    def statuses(self, job_ids: Iterable[str]) -> dict[str, JobStatus]:
        self.looks.append(set(job_ids))
        if self.away:
            self.away -= 1
            raise StoreError("the disk is away")
        return {job_id: self.known[job_id] for job_id in self.looks[-1] if job_id in self.known}

    def read(self, job_id: str, *, after: int, limit_bytes: int) -> tuple[bytes, int]:
        self.reads.append(job_id)
        if job_id not in self.logs:
            raise NotFound(job_id)
        data = self.logs[job_id][after : after + limit_bytes]
        return data, after + len(data)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(module, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(module, "STEPS_SECONDS", ((math.inf, 0.01),))
    monkeypatch.setattr(module, "QUEUED_SECONDS", 0.01)
    monkeypatch.setattr(module, "FAILED_SECONDS", 0.01)
    return Machine()


def opened(machine: Machine) -> Hub:
    return Hub(machine.open)


async def follow(hub: Hub, job_id: str, after: int = 0) -> list[JobNews]:
    return [news async for news in hub.follow(job_id, after=after)]


def text(news: list[JobNews]) -> list[str]:
    return [line for each in news for line in each.lines]


def test_two_hundred_jobs_are_one_look(machine: Machine) -> None:
    names = [f"job-{number}" for number in range(200)]

    async def main() -> list[list[JobNews]]:
        hub = opened(machine)
        for name in names:
            machine.begin(name, name.encode() + b" says\n")
            machine.end(name)
        return await asyncio.gather(*(follow(hub, name) for name in names))

    found = asyncio.run(main())
    assert machine.looks == [set(names)]
    assert [text(each) for each in found] == [[f"{name} says"] for name in names]
    assert all(each[-1].last for each in found)


def test_a_backlog_of_many_jobs_is_read_a_part_at_a_time(machine: Machine) -> None:
    """As after the start of a triggerer, to which all lines since the deferrals are new."""
    backlog = b"x" * 1023 + b"\n"
    names = [f"job-{number}" for number in range(100)]
    most: list[int] = []

    async def main() -> None:
        hub = opened(machine)
        async with AsyncExitStack() as stack:
            for name in names:
                machine.begin(name, backlog * 1024)
            looks = [await stack.enter_async_context(aclosing(hub.follow(name))) for name in names]
            news = await asyncio.gather(*(anext(each) for each in looks))
            most.append(sum(len(line) for each in news for line in each.lines))

    asyncio.run(main())
    assert 0 < most[0] <= 16 << 20


def test_lines_go_on_behind_the_cursor_and_come_once(machine: Machine) -> None:
    machine.begin("a", b"one\ntwo\n")

    async def main() -> list[JobNews]:
        hub, found = opened(machine), []  # type: ignore[var-annotated]
        async with aclosing(hub.follow("a", after=4)) as looks:
            async for news in looks:
                found.append(news)
                if len(found) == 1:
                    machine.logs["a"] += b"three\n"
                    machine.end("a")
        return found

    found = asyncio.run(main())
    assert text(found) == ["two", "three"]
    assert found[-1].offset == 14


@pytest.mark.parametrize("known", [True, False])
def test_a_job_whose_supervisor_is_gone_is_the_last_news(machine: Machine, known: bool) -> None:
    machine.begin("a")
    machine.known["a"] = replace(machine.known["a"], alive=False)
    if not known:  # it was deleted, or cannot be read
        del machine.known["a"]
    assert asyncio.run(follow(opened(machine), "a"))[-1].last


def test_a_store_that_is_away_for_a_while_fails_nobody(machine: Machine) -> None:
    machine.begin("a")
    machine.end("a", JobState.FAILED)
    machine.away = 3
    assert asyncio.run(follow(opened(machine), "a"))[-1].last
    assert len(machine.looks) == 4
    assert machine.opened == 4, "each time anew, for its token may have been renewed"


def test_a_store_that_is_away_is_said_once_in_a_line_and_that_it_is_back(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    machine.begin("a")
    machine.end("a", JobState.FAILED)
    machine.away = 20
    asyncio.run(follow(opened(machine), "a"))
    said = [record for record in caplog.records if record.name == module.__name__]
    assert [record.levelname for record in said] == ["WARNING", "INFO"]
    assert "the disk is away" in said[0].getMessage()
    assert not said[0].exc_info
    assert "can be looked at again" in said[1].getMessage()


def test_a_thousand_that_wait_for_room_are_four_questions_and_no_log_is_read(machine: Machine) -> None:
    names = [f"job-{number}" for number in range(1000)]

    async def main() -> None:
        hub = opened(machine)
        for name in names:
            machine.begin(name, b"a warning\n", state=JobState.QUEUED)
        followers = [hub.follow(name) for name in names]
        first = await asyncio.gather(*(anext(each) for each in followers))
        assert text(first) == ["a warning"] * 1000, "what it said before it waited is not lost"
        machine.reads.clear()
        for _ in range(3):
            await asyncio.gather(*(anext(each) for each in followers))
        assert machine.reads == []
        machine.known["job-7"] = replace(machine.known["job-7"], state=JobState.RUNNING)
        machine.logs["job-7"] += b"begins\n"
        assert (await _line(followers[7])) == "begins"
        assert {*machine.reads} == {"job-7"}
        for each in followers:
            await each.aclose()

    asyncio.run(main())
    assert {*names} == {*chain.from_iterable(machine.looks[:4])}
    assert max(map(len, machine.looks)) == 250
    assert eventually(lambda: machine.closed) == machine.opened == 1


def test_a_job_that_runs_comes_before_a_long_queue_which_has_its_turn_all_the_same() -> None:
    def follower(name: str, due: float, state: JobState | None) -> Any:
        made = module.Follower(name, 0)
        made.due, made.state = due, state
        return made

    queue = [follower(f"job-{number}", 10.0, JobState.QUEUED) for number in range(600)]
    waited_long = follower("waited long", 9.0, JobState.QUEUED)
    runs, new = follower("runs", 10.5, JobState.RUNNING), follower("new", 0.0, None)
    later = follower("later", 10.7, JobState.RUNNING)
    found = [each.job_id for each in module.most_urgent({*queue, waited_long, runs, new, later}, 10.6)]
    assert found[:3] == ["new", "waited long", "runs"]
    assert len(found) == 250
    assert "later" not in found


async def _line(looks: AsyncGenerator[JobNews, None]) -> str:
    async for news in looks:
        if news.lines:
            return news.lines[0]
    raise AssertionError("it ended without a line")


def test_those_that_wait_are_looked_at_each_second_together() -> None:
    status = JobStatus(job_id="a", state=JobState.QUEUED, submitted=1.0)
    news, follower = JobNews(status=status, lines=(), offset=0), module.Follower("a", 0)
    follower.note(news, 1000.2)
    assert follower.due == 1001.0


def test_after_a_look_the_hub_rests_for_three_times_as_long(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.thread_time", count(0.0, 0.1).__next__)  # seconds of CPU of each look
    times: list[float] = []
    statuses = machine.statuses

    def timed(job_ids: Iterable[str]) -> dict[str, JobStatus]:
        times.append(time.monotonic())
        return statuses(job_ids)

    monkeypatch.setattr(machine, "statuses", timed)
    machine.begin("a")

    async def main() -> None:
        async with aclosing(opened(machine).follow("a")) as looks:
            for _ in range(3):
                await anext(looks)

    asyncio.run(main())
    assert all(later - earlier >= 0.3 for earlier, later in pairwise(times))


def test_a_job_that_gc_takes_while_it_is_read_keeps_no_other(machine: Machine) -> None:
    machine.begin("a")
    machine.begin("b")
    del machine.logs["a"]
    machine.end("b")

    async def main() -> list[list[JobNews]]:
        hub = opened(machine)
        return await asyncio.gather(follow(hub, "a"), follow(hub, "b"))

    found = asyncio.run(main())
    assert [each[-1].status and each[-1].status.job_id for each in found] == [None, "b"]
    assert machine.opened == 1


def test_the_backend_is_closed_with_the_loop_too(machine: Machine) -> None:
    machine.begin("a")

    async def main() -> None:
        looks = opened(machine).follow("a")
        await anext(looks)  # and the loop ends with the trigger still waiting

    asyncio.run(main())
    assert eventually(lambda: machine.closed) == machine.opened == 1


def test_who_comes_while_it_is_closed_is_looked_after(machine: Machine) -> None:
    machine.begin("a")
    machine.begin("b")
    machine.end("a")
    machine.end("b")

    async def main() -> JobNews:
        hub = opened(machine)
        closing, late = asyncio.Event(), asyncio.Event()
        loop, close = asyncio.get_running_loop(), machine.close

        def slow() -> None:
            loop.call_soon_threadsafe(closing.set)
            asyncio.run_coroutine_threadsafe(late.wait(), loop).result()
            close()

        machine.close = slow  # type: ignore[method-assign]
        await follow(hub, "a")
        await closing.wait()
        coming = asyncio.ensure_future(follow(hub, "b"))
        await asyncio.sleep(0)  # it stands in line
        machine.close = close  # type: ignore[method-assign]
        late.set()
        return (await coming)[-1]

    assert asyncio.run(main()).last


def test_nobody_is_looked_at_when_nobody_follows(machine: Machine) -> None:
    machine.begin("a")
    machine.begin("b")
    machine.end("b")

    async def main() -> int:
        hub = opened(machine)
        async with aclosing(hub.follow("a")) as looks:
            await anext(looks)
        before = len(machine.looks)
        await follow(hub, "b")  # and it begins again for the next
        assert all(look == {"b"} for look in machine.looks[before:])
        return len(machine.looks) - before

    assert asyncio.run(main()) >= 1
