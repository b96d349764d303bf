"""GPUs and the queue of one machine."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.backends.test_queue import Started

from muster.backends.capacity import Line, QueuePlace
from muster.backends.forecast import forecast
from muster.backends.local.capacity import LocalCapacity
from muster.backends.local.machine import GIB, Machine
from muster.backends.local.places import Places
from muster.backends.local.queue import JobQueue, Ticket
from muster.backends.local.room import PRIORITIES
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.volumes.folder import FolderStore

MACHINE = Machine(memory_gib=4, gpus=("0", "1"))
SPEC = JobSpec(
    name="flights.train", image="train", image_digest="b3:" + "0" * 64, roles=(Role(entrypoint="a.b:c"),)
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", cache=tmp_path / "cache")


@pytest.fixture
def capacity(settings: Settings) -> LocalCapacity:
    return LocalCapacity(settings, machine=MACHINE)


def hold(settings: Settings, job_id: str, *, gpus: int, priority: str = "normal") -> Started:
    """Let a job run that holds `gpus` cards, until the answer is closed."""
    started = Started(JobQueue(Places(settings.home), MACHINE))
    started.queue.enter(ticket(job_id, gpus=gpus, priority=priority))
    assert started.admit() == [job_id]
    return started


def ticket(job_id: str, *, gpus: int, priority: str = "normal", submitted: float | None = None) -> Ticket:
    now = submitted or time.time()
    return Ticket(
        job_id=job_id,
        submitted=now,
        deadline=time.time() + 1000,
        memory_gib=1,
        gpus=gpus,
        rank=PRIORITIES[priority],
    )


def test_nothing_is_made_by_looking(capacity: LocalCapacity, settings: Settings) -> None:
    assert capacity.queues().lines == (Line(name="local", waiting=0, running=0),)
    assert capacity.gpus().by_class[0].free == 2
    assert capacity.parts("unknown-1") == ()
    assert not settings.home.exists()


def test_a_machine_without_gpus(settings: Settings) -> None:
    found = LocalCapacity(settings, machine=Machine(memory_gib=4)).gpus()
    assert (found.by_class, found.by_node) == ((), ())


def test_cards_that_jobs_hold(capacity: LocalCapacity, settings: Settings) -> None:
    started = hold(settings, "runs-1", gpus=1)
    (cards,) = capacity.gpus().by_class
    assert (cards.total, cards.used, cards.free) == (2, 1, 1)
    started.close()
    assert capacity.gpus().by_node[0].used == 0


def test_which_cards_each_job_has(capacity: LocalCapacity, settings: Settings) -> None:
    assert capacity.held(["runs-1"]) == {}
    started = hold(settings, "runs-1", gpus=2)
    (held,) = capacity.held(["runs-1", "unknown-1"])["runs-1"]
    assert (held.gpus, held.which) == (2, ("0", "1"))
    assert capacity.held(["another-1"]) == {}
    started.close()


def test_what_waits_with_its_place_and_why(capacity: LocalCapacity, settings: Settings) -> None:
    store = FolderStore(settings.store)
    started = hold(settings, "runs-1", gpus=2)
    store.ledger.create("waits-1", SPEC)
    store.ledger.create("first-1", replace(SPEC, queue="blue"))
    started.queue.enter(ticket("waits-1", gpus=1, submitted=1000.0))
    started.queue.enter(ticket("first-1", gpus=2, priority="high", submitted=2000.0))
    found = capacity.queues()
    assert found.lines == (Line(name="local", waiting=2, running=1),)
    first, second = found.waiting
    assert (first.job_id, first.title, first.place) == (
        "first-1",
        "flights.train",
        QueuePlace(number=1, of=2),
    )
    assert (first.queue, second.queue) == ("blue", "local")  # as the page has it
    assert (first.why, first.since) == ("waits for 2 GPUs: 0 of 2 free", 2000.0)
    assert first.needs == {"memory": GIB, "nvidia.com/gpu": 2.0}
    assert (second.job_id, second.priority, first.priority) == ("waits-1", 0, 1)
    assert second.why == "waits for 1 GPU: 0 of 2 free, kept for first-1; 1 job before it"
    started.close()


def test_the_outlook_has_what_runs_waits_and_is_planned(capacity: LocalCapacity, settings: Settings) -> None:
    store = FolderStore(settings.store)
    started = hold(settings, "runs-1", gpus=2)
    store.ledger.create("runs-1", replace(SPEC, name="flights.features"))
    store.ledger.create("waits-1", SPEC)
    started.queue.enter(ticket("waits-1", gpus=1, priority="high", submitted=1000.0))
    role = Role(entrypoint="a.b:c", replicas=2, resources=Resources(gpus=1, memory_gib=1))
    found = capacity.outlook(
        [replace(SPEC, roles=(role,)), replace(SPEC, roles=(replace(role, replicas=3),))]
    )
    assert found.pools == {"memory": 4 * GIB, "nvidia.com/gpu": 2.0}
    (runs,), (waits,) = found.running, found.waiting
    assert (runs.name, runs.choices) == (
        "flights.features",
        ({"memory": float(GIB), "nvidia.com/gpu": 2.0},),
    )
    assert (waits.name, waits.since, waits.priority) == ("flights.train", 1000.0, 1)
    two, three = found.planned
    assert two.choices == ({"memory": 2.0 * GIB, "nvidia.com/gpu": 2.0},)
    assert three.choices == ({"memory": 3.0 * GIB},)  # with fewer cards than it asks for, it runs on CPUs
    started.close()


@pytest.mark.parametrize(("priority", "starts", "ahead"), [("normal", 0, ()), ("low", 60, ("waits-1",))])
def test_the_forecast_has_what_low_priority_gives_back(
    capacity: LocalCapacity, settings: Settings, priority: str, starts: float, ahead: tuple[str, ...]
) -> None:
    FolderStore(settings.store)
    started = hold(settings, "trial-1", gpus=2, priority="low")
    started.queue.enter(ticket("waits-1", gpus=2, priority="low"))
    role = Role(entrypoint="a.b:c", replicas=2, resources=Resources(gpus=1, memory_gib=1))
    found = capacity.outlook([replace(SPEC, roles=(role,), priority=priority)])
    runs, _ = found.waiting
    assert (runs.name, runs.priority, found.running) == ("trial-1", -1, ())
    assert runs.started is not None
    took = {"trial-1": (60.0,), "waits-1": (0.0,)}
    said = forecast(found.planned, found, took, now=runs.started)[SPEC.name]
    assert said.starts.p50 == pytest.approx(starts, abs=1.0)
    assert said.ahead == ahead
    started.close()


def test_the_outlook_of_a_machine_without_a_store(capacity: LocalCapacity, settings: Settings) -> None:
    found = capacity.outlook([SPEC])
    assert (found.running, found.waiting, len(found.planned)) == ((), (), 1)
    assert not settings.home.exists()
