"""The hub: one look for all, each follower its own lines, and nothing that fails once is lost."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from muster.airflow.attempts import hub as module
from muster.airflow.attempts.hub import Hub, News
from muster.core.errors import StoreError
from muster.core.status import JobState, JobStatus


class Machine:
    """A backend in memory: jobs by id, each with a status and a log."""

    def __init__(self) -> None:
        self.known: dict[str, JobStatus] = {}
        self.logs: dict[str, bytes] = {}
        self.looks: list[set[str]] = []
        self.away = 0

    @property
    def store(self) -> Any:
        return self

    @property
    def ledger(self) -> Any:
        return self

    def begin(self, job_id: str, log: bytes = b"") -> None:
        self.known[job_id] = JobStatus(job_id=job_id, state=JobState.RUNNING, submitted=1.0)
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
        data = self.logs[job_id][after : after + limit_bytes]
        return data, after + len(data)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(module, "_TICK_SECONDS", 0.01)
    monkeypatch.setattr(module, "_STEPS_SECONDS", ((math.inf, 0.01),))
    return Machine()


async def follow(hub: Hub, job_id: str, after: str | None = None) -> list[News]:
    return [news async for news in hub.follow(job_id, after=after)]


def text(news: list[News]) -> list[str]:
    return [line for each in news for line in each.lines]


def test_two_hundred_jobs_are_one_look(machine: Machine) -> None:
    names = [f"job-{number}" for number in range(200)]

    async def main() -> list[list[News]]:
        hub = Hub(machine)  # type: ignore[arg-type]
        for name in names:
            machine.begin(name, name.encode() + b" says\n")
            machine.end(name)
        return await asyncio.gather(*(follow(hub, name) for name in names))

    found = asyncio.run(main())
    assert machine.looks == [set(names)]
    assert [text(each) for each in found] == [[f"{name} says"] for name in names]
    assert all(each[-1].last for each in found)


def test_lines_go_on_behind_the_cursor_and_come_once(machine: Machine) -> None:
    machine.begin("a", b"one\ntwo\n")

    async def main() -> list[News]:
        hub, found = Hub(machine), []  # type: ignore[arg-type, var-annotated]
        async with aclosing(hub.follow("a", after="4")) as looks:
            async for news in looks:
                found.append(news)
                if len(found) == 1:
                    machine.logs["a"] += b"three\n"
                    machine.end("a")
        return found

    found = asyncio.run(main())
    assert text(found) == ["two", "three"]
    assert found[-1].cursor == "14"


@pytest.mark.parametrize("known", [True, False])
def test_a_job_whose_supervisor_is_gone_is_the_last_news(machine: Machine, known: bool) -> None:
    machine.begin("a")
    machine.known["a"] = replace(machine.known["a"], alive=False)
    if not known:  # it was deleted, or cannot be read
        del machine.known["a"]
    assert asyncio.run(follow(Hub(machine), "a"))[-1].last  # type: ignore[arg-type]


def test_a_store_that_is_away_for_a_while_fails_nobody(machine: Machine) -> None:
    machine.begin("a")
    machine.end("a", JobState.FAILED)
    machine.away = 3
    assert asyncio.run(follow(Hub(machine), "a"))[-1].last  # type: ignore[arg-type]
    assert len(machine.looks) == 4


def test_nobody_is_looked_at_when_nobody_follows(machine: Machine) -> None:
    machine.begin("a")
    machine.begin("b")
    machine.end("b")

    async def main() -> int:
        hub = Hub(machine)  # type: ignore[arg-type]
        async with aclosing(hub.follow("a")) as looks:
            await anext(looks)
        before = len(machine.looks)
        await follow(hub, "b")  # and it begins again for the next
        assert all(look == {"b"} for look in machine.looks[before:])
        return len(machine.looks) - before

    assert asyncio.run(main()) >= 1
