"""Who gives room back to whom on one machine, in which order, and for whom it is kept then."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.backends.test_queue import MACHINE, Started, ticket

from muster.backends.local.places import Places
from muster.backends.local.queue import Claim, JobQueue
from muster.backends.local.room import PRIORITIES
from muster.core.wire import dumps, loads

HIGH, NORMAL, LOW = PRIORITIES["high"], PRIORITIES["normal"], PRIORITIES["low"]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


@pytest.fixture
def queue(places: Places) -> JobQueue:
    return JobQueue(places, MACHINE)


class Supervisors(Started):
    """Stands for supervisors that can be asked to give their room back."""

    def __init__(self, queue: JobQueue, places: Places) -> None:
        super().__init__(queue)
        self.places = places

    def run(self, *jobs: str, memory_gib: float = 1, gpus: int = 1, rank: int = LOW) -> None:
        """Have jobs run, the one named last the youngest."""
        for age, job_id in enumerate(reversed(jobs)):
            self.queue.enter(ticket(job_id, memory_gib=memory_gib, gpus=gpus, rank=rank))
            self.admit()
            assert job_id in self.claims
            self.places.job(job_id).root.mkdir(parents=True)
            since = time.time() - age
            os.utime(self.places.claims / f"{job_id}.json", (since, since))

    def asked(self) -> set[str]:
        return {job_id for job_id in self.claims if self.places.job(job_id).gives_back().exists()}

    def waits_again(self, job_id: str, *, gpus: int = 1, cancelled: bool = False) -> bool:
        again = ticket(job_id, gpus=gpus, rank=LOW, waited=1000)
        waits = self.queue.wait_again(again, self._handles[job_id], unless=lambda: cancelled)
        if waits:
            del self._handles[job_id], self.claims[job_id]
        return waits


@pytest.fixture
def started(queue: JobQueue, places: Places) -> Iterator[Supervisors]:
    started = Supervisors(queue, places)
    yield started
    started.close()


@pytest.mark.parametrize("rank", [HIGH, NORMAL])
def test_a_job_of_low_priority_gives_its_room_to_one_that_waits(
    queue: JobQueue, started: Supervisors, places: Places, rank: int
) -> None:
    started.run("low")
    queue.enter(ticket("gang", gpus=2, rank=rank))
    started.admit()
    assert started.asked() == {"low"}
    assert places.job("low").for_whom() == "gang waits for 2 GPUs"
    assert queue.reasons()["gang"] == (
        "waiting for 2 GPUs: 1 of 2 free; jobs of low priority give theirs back"
    )
    assert started.waits_again("low")
    assert started.admit() == ["gang"]
    assert queue.waits("low")
    started.crash("gang")
    assert started.admit() == ["gang", "low"]
    assert started.asked() == set()


@pytest.mark.parametrize(("runs", "waits"), [(LOW, LOW), (NORMAL, HIGH), (NORMAL, NORMAL), (HIGH, HIGH)])
def test_equals_and_jobs_of_normal_priority_are_never_interrupted(
    queue: JobQueue, started: Supervisors, runs: int, waits: int
) -> None:
    started.run("runs", rank=runs)
    queue.enter(ticket("waits", gpus=2, rank=waits))
    assert started.admit() == ["runs"]
    assert started.asked() == set()


def test_nobody_is_interrupted_for_what_would_not_fit_then_either(
    queue: JobQueue, started: Supervisors
) -> None:
    started.run("normal", rank=NORMAL)
    started.run("low")
    queue.enter(ticket("gang", gpus=2))
    started.admit()
    assert started.asked() == set()
    started.crash("normal")
    started.admit()
    assert started.asked() == {"low"}


def test_nobody_is_interrupted_for_what_has_room(queue: JobQueue, started: Supervisors) -> None:
    started.run("low")
    queue.enter(ticket("one", gpus=1))
    assert started.admit() == ["low", "one"]
    assert started.asked() == set()


def test_the_youngest_give_way_and_no_more_than_must(queue: JobQueue, started: Supervisors) -> None:
    started.run("oldest", "middle", "youngest", memory_gib=2, gpus=0)
    queue.enter(ticket("big", memory_gib=7))
    started.admit()
    assert started.asked() == {"youngest", "middle"}


def test_who_has_nothing_of_what_is_short_is_spared(queue: JobQueue, started: Supervisors) -> None:
    started.run("cards", gpus=2)
    started.run("memory", gpus=0, memory_gib=2)
    queue.enter(ticket("gang", gpus=1))
    started.admit()
    assert started.asked() == {"cards"}


def test_a_job_that_fits_as_soon_as_what_is_coming_has_come_interrupts_nobody_more(
    queue: JobQueue, started: Supervisors
) -> None:
    started.run("older", "younger", gpus=1)
    queue.enter(ticket("one", gpus=1))
    for _ in range(3):
        started.admit()
    assert started.asked() == {"younger"}
    queue.enter(ticket("two", gpus=1))
    started.admit()
    assert started.asked() == {"younger", "older"}


def test_small_jobs_take_nothing_of_what_is_given_back(queue: JobQueue, started: Supervisors) -> None:
    """Else each would be interrupted in its turn, and the gang would wait for ever."""
    started.run("one", "two")
    queue.enter(ticket("gang", gpus=2))
    queue.enter(ticket("small", gpus=1, rank=LOW, waited=5000))
    started.admit()
    assert started.asked() == {"one", "two"}
    assert started.waits_again("one")
    assert started.admit() == ["two"]
    assert "kept for gang" in queue.reasons()["small"]
    assert started.waits_again("two")
    assert started.admit() == ["gang"]


def test_a_process_that_could_not_start_the_job_interrupts_nobody(
    queue: JobQueue, started: Supervisors
) -> None:
    started.run("low", gpus=2)
    queue.enter(ticket("secretive", gpus=2))
    queue.admit(started.start, overdue=started.note, wait=True, able=lambda _: False)
    assert started.asked() == set()


def test_a_process_that_could_not_start_the_job_keeps_for_it_what_others_asked_for(
    queue: JobQueue, started: Supervisors
) -> None:
    started.run("one", "two")
    queue.enter(ticket("secretive", gpus=2))
    queue.enter(ticket("small", gpus=1, rank=LOW))
    started.admit()
    started.refused = {"secretive"}
    for job_id in ("one", "two"):
        assert started.waits_again(job_id)
        queue.admit(started.start, overdue=started.note, wait=True, able=lambda _: False)
        assert "small" not in started.claims
    started.refused.clear()
    assert started.admit() == ["secretive"]


def test_a_job_that_waited_too_long_interrupts_nobody(queue: JobQueue, started: Supervisors) -> None:
    started.run("low", gpus=2)
    queue.enter(ticket("late", gpus=2, wait=-1))
    started.admit()
    assert list(started.overdue) == ["late"]
    assert started.asked() == set()


def test_a_lost_job_that_was_asked_starts_anew_without_being_asked(
    queue: JobQueue, started: Supervisors
) -> None:
    started.run("low", gpus=2)
    queue.enter(ticket("gang", gpus=2))
    started.admit()
    started.crash("low")
    del started.claims["low"]
    assert started.admit() == ["gang"]
    started.crash("gang")
    queue.enter(ticket("low", gpus=2, rank=LOW))
    assert started.admit() == ["gang", "low"]
    assert started.asked() == set()


def test_a_cancelled_job_does_not_wait_again(queue: JobQueue, started: Supervisors) -> None:
    started.run("low")
    assert not started.waits_again("low", cancelled=True)
    assert queue.holds("low")
    assert not queue.waits("low")


def test_a_kill_between_ticket_and_claim_leaves_a_job_that_waits(
    queue: JobQueue, started: Supervisors, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    started.run("low")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            started.waits_again("low")
    started.crash("low")
    del started.claims["low"]
    assert queue.waits("low")
    assert started.admit() == ["low"]


def test_a_claim_of_normal_priority_is_written_as_the_release_before_reads_it() -> None:
    claim = Claim(job_id="a", memory_gib=1, gpus=(), port=1)
    assert "rank" not in dumps(claim)
    assert loads(Claim, dumps(claim)).rank == NORMAL


def test_who_waits_again_keeps_its_deadline_when_it_is_submitted_again(
    queue: JobQueue, started: Supervisors
) -> None:
    started.run("low", gpus=2)
    queue.enter(ticket("gang", gpus=2))
    assert started.waits_again("low", gpus=2)
    (waits,) = [each for each in queue.tickets() if each.job_id == "low"]
    queue.enter(ticket("low", gpus=2, rank=LOW, wait=-1))
    assert waits in queue.tickets()
