"""Who may run, in which order, and what a crash gives back."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from muster.backends.local.machine import Machine
from muster.backends.local.places import Places
from muster.backends.local.queue import Claim, JobQueue, Ticket

MACHINE = Machine(memory_gib=10, gpus=("0", "1"))


class Started:
    """Stands for supervisors: holds their claims' locks until they are told to end."""

    def __init__(self, queue: JobQueue) -> None:
        self.queue = queue
        self.claims: dict[str, Claim] = {}
        self.overdue: dict[str, str] = {}
        self.refused: set[str] = set()
        self._handles: dict[str, int] = {}

    def start(self, claim: Claim, handle: int) -> bool:
        if claim.job_id in self.refused:
            return False
        assert claim.job_id not in self.claims
        self.claims[claim.job_id] = claim
        self._handles[claim.job_id] = os.dup(handle)
        return True

    def crash(self, job_id: str) -> None:
        os.close(self._handles.pop(job_id))

    def admit(self) -> list[str]:
        self.queue.admit(self.start, overdue=self.note, wait=True)
        return list(self.claims)

    def note(self, ticket: Ticket, waited_for: str) -> None:
        self.overdue[ticket.job_id] = waited_for

    def close(self) -> None:
        for job_id in list(self._handles):
            self.crash(job_id)


def ticket(
    job_id: str,
    *,
    memory_gib: float = 1,
    gpus: int = 0,
    rank: int = 1,
    wait: float = 1000,
    waited: float = 0.0,
) -> Ticket:
    now = time.time()
    return Ticket(
        job_id=job_id,
        submitted=now - waited,
        deadline=now + wait,
        memory_gib=memory_gib,
        gpus=gpus,
        rank=rank,
    )


@pytest.fixture
def queue(tmp_path: Path) -> JobQueue:
    return JobQueue(Places(tmp_path), MACHINE)


@pytest.fixture
def started(queue: JobQueue) -> Iterator[Started]:
    started = Started(queue)
    yield started
    started.close()


def test_jobs_start_in_the_order_of_their_submission(queue: JobQueue, started: Started) -> None:
    for name in ("c", "a", "b"):
        queue.enter(ticket(name))
    assert started.admit() == ["c", "a", "b"]


def test_a_higher_priority_goes_first(queue: JobQueue, started: Started) -> None:
    queue.enter(ticket("low", rank=2, memory_gib=8))
    queue.enter(ticket("high", rank=0, memory_gib=8))
    assert started.admit() == ["high"]


def test_a_gang_starts_whole_or_not_at_all(queue: JobQueue, started: Started) -> None:
    queue.enter(ticket("one", gpus=1))
    queue.enter(ticket("two", gpus=2))
    assert started.admit() == ["one"]
    assert queue.reasons()["two"] == "waiting for 2 GPUs: 1 of 2 free"


def test_small_jobs_pass_a_big_one_at_first(queue: JobQueue, started: Started) -> None:
    queue.enter(ticket("running", memory_gib=6))
    queue.enter(ticket("big", memory_gib=8))
    queue.enter(ticket("small", memory_gib=1))
    queue.enter(ticket("middle", memory_gib=4))
    assert started.admit() == ["running", "small"]
    assert queue.reasons() == {
        "big": "waiting for 8 GiB of memory: 3 of 10 free",
        "middle": "waiting for 4 GiB of memory: 3 of 10 free; 1 job before it",
    }


def test_what_has_waited_for_five_minutes_is_overtaken_by_nothing_that_delays_it(
    queue: JobQueue, started: Started
) -> None:
    queue.enter(ticket("running", memory_gib=4, gpus=1, waited=400))
    queue.enter(ticket("big", memory_gib=8, waited=301))
    queue.enter(ticket("early", memory_gib=9, waited=299))
    queue.enter(ticket("small", memory_gib=0.5))
    queue.enter(ticket("gang", memory_gib=0.5, gpus=2))
    assert started.admit() == ["running"]
    assert queue.reasons() == {
        "big": "waiting for 8 GiB of memory: 6 of 10 free",
        "early": "waiting for 9 GiB of memory: 6 of 10 free, kept for big; 1 job before it",
        "small": "waiting for 0.5 GiB of memory: 6 of 10 free, kept for big; 2 jobs before it",
        "gang": "waiting for 2 GPUs: 1 of 2 free; 3 jobs before it",
    }
    started.crash("running")
    assert started.admit() == ["running", "big", "small", "gang"]


def test_what_delays_nobody_runs_beside_what_waits(queue: JobQueue, started: Started) -> None:
    queue.enter(ticket("running", gpus=2))
    queue.enter(ticket("gang", gpus=2))
    queue.enter(ticket("etl", memory_gib=2))
    assert started.admit() == ["running", "etl"]


def test_every_gang_has_cards_and_a_port_of_its_own(queue: JobQueue, started: Started) -> None:
    for name in ("a", "b"):
        queue.enter(ticket(name, gpus=1))
    started.admit()
    assert {claim.gpus for claim in started.claims.values()} == {("0",), ("1",)}
    assert len({claim.port for claim in started.claims.values()}) == 2


def test_a_crash_gives_everything_back(queue: JobQueue, started: Started) -> None:
    queue.enter(ticket("a", gpus=2, memory_gib=10))
    queue.enter(ticket("b", gpus=2, memory_gib=10))
    assert started.admit() == ["a"]
    assert queue.holds("a")
    started.crash("a")
    assert not queue.holds("a")
    assert started.admit() == ["a", "b"]


def test_whoever_cannot_start_a_job_leaves_it_its_place(queue: JobQueue, started: Started) -> None:
    started.refused.add("secretive")
    queue.enter(ticket("secretive", memory_gib=8))
    queue.enter(ticket("later", memory_gib=8))
    assert started.admit() == []
    assert queue.waits("secretive")
    assert not queue.holds("secretive")
    started.refused.clear()
    assert started.admit() == ["secretive"]


def test_a_job_that_waited_too_long_is_ended_with_what_it_waited_for(
    queue: JobQueue, started: Started
) -> None:
    queue.enter(ticket("running", memory_gib=10))
    started.admit()
    queue.enter(ticket("late", memory_gib=4, wait=-1))
    started.admit()
    assert started.overdue == {"late": "waiting for 4 GiB of memory: 0 of 10 free"}
    assert not queue.waits("late")


def test_a_job_that_can_start_is_never_too_late(queue: JobQueue, started: Started) -> None:
    queue.enter(ticket("late", wait=-1))
    assert started.admit() == ["late"]
    assert started.overdue == {}


def test_a_job_enters_once(queue: JobQueue, started: Started) -> None:
    queue.enter(ticket("a"))
    started.admit()
    queue.enter(ticket("a"))
    assert not queue.waits("a")
    assert started.admit() == ["a"]


def test_a_withdrawn_job_never_starts(queue: JobQueue, started: Started) -> None:
    done: list[str] = []
    queue.enter(ticket("a"))
    assert queue.withdraw("a", lambda: done.append("a"))
    assert done == ["a"]
    assert started.admit() == []
    assert not queue.withdraw("a", lambda: done.append("again"))


def test_a_lost_job_is_seized_by_one(queue: JobQueue) -> None:
    with queue.seize("a") as mine:
        assert mine
        with queue.seize("a") as theirs:
            assert not theirs
    assert not queue.holds("a")


def test_many_who_admit_at_once_start_each_job_once(queue: JobQueue, started: Started) -> None:
    for number in range(40):
        queue.enter(ticket(f"job-{number}", memory_gib=0.1))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: started.admit(), range(8)))
    assert len(started.claims) == 40


def test_a_job_whose_secrets_nobody_has_waits_no_longer_than_it_may(
    queue: JobQueue, started: Started
) -> None:
    started.refused = {"a"}
    queue.enter(ticket("a", wait=-1))
    queue.enter(ticket("b", memory_gib=MACHINE.memory_gib))
    assert started.admit() == ["b"]
    assert started.overdue == {"a": "waiting for a process that has its secrets"}
    assert not queue.waits("a")


def test_a_ticket_that_a_power_cut_emptied_stops_nobody(
    queue: JobQueue, started: Started, tmp_path: Path
) -> None:
    queue.enter(ticket("a"))
    queue.enter(ticket("b"))
    (Places(tmp_path).tickets / "a.json").write_text("")
    assert started.admit() == ["b"]
    assert not queue.waits("a")
