"""Elastic gangs on one machine, with real processes: what they start with, and when they shrink and grow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.contract.one_machine import one_machine
from tests.contract.test_backend import finish
from tests.contract.test_preemption import supervisor
from tests.waiting import eventually

from muster.backends.base import Backend
from muster.backends.local.backend import LocalBackend
from muster.backends.local.places import Places
from muster.core.errors import CannotSchedule
from muster.core.job import JobSpec, Output, Role
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.core.status import JobState
from muster.images.folders import find_image, image_folders, put_image

# Trains until a file tells it to end: rank 0 says each epoch and keeps it; every replica writes who it was.
TRAIN = """
import os, sys, time
from pathlib import Path
saved, ends, made = Path(sys.argv[1], "epoch"), Path(sys.argv[2]), Path(sys.argv[3])
rank, world = os.environ["MUSTER_RANK"], os.environ["MUSTER_WORLD_SIZE"]
epoch = int(saved.read_text()) if saved.exists() else 0
print("begins at", epoch, "as", rank, "of", world, flush=True)
while not ends.exists():
    epoch += 1
    time.sleep(0.3)
    if rank == "0":
        saved.with_suffix(".part").write_text(str(epoch))
        saved.with_suffix(".part").replace(saved)
        print("epoch", epoch, "of", world, flush=True)
(made / rank).write_text(world)
"""
HOLD = "import time; print('up', flush=True); time.sleep(600)"
ONE = Resources(memory_gib=1)

Made = Callable[..., JobSpec]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "home")


@pytest.fixture
def backend(places: Places, cache: Path) -> Iterator[LocalBackend]:
    yield from one_machine(places, cache, memory_gib=4)


@pytest.fixture
def ends(tmp_path: Path) -> Path:
    """A file that is there once the training is to end."""
    return tmp_path / "ends"


@pytest.fixture
def training(backend: LocalBackend, tmp_path: Path, cache: Path, ends: Path) -> Made:
    """Makes an elastic gang of 2 to 4 replicas, of which each needs a quarter of the machine."""
    image = put_image(
        backend.store, find_image("python", image_folders(Settings(home=tmp_path, cache=cache)))
    )

    def make(**changes: Any) -> JobSpec:
        words = ("python", "-c", TRAIN, "{checkpoints}", str(ends), "{outputs.made}")
        role = Role(command=words, replicas=4, least_replicas=2, resources=ONE)
        return JobSpec(
            **{
                "name": "test.elastic",
                "image": "python",
                "image_digest": image,
                "roles": (role,),
                "outputs": {"made": Output(volume="a/made")},
                **changes,
            }
        )

    return make


def other(job: JobSpec, *, memory_gib: float, code: str = HOLD, **changes: Any) -> JobSpec:
    """A job of one replica beside the gang."""
    role = Role(command=("python", "-c", code), resources=Resources(memory_gib=memory_gib))
    return replace(job, name="test.other", roles=(role,), outputs={}, **changes)


def log_of(backend: Backend, job_id: str) -> str:
    return backend.store.ledger.read(job_id)[0].decode()


def sizes(backend: Backend, job_id: str) -> list[int]:
    """The ranks of each start of a gang."""
    return [int(size) for size in re.findall(r"as 0 of (\d+)", log_of(backend, job_id))]


def trains(backend: Backend, job_id: str, *, ranks: int) -> bool:
    """Whether the last epoch was trained with so many ranks."""
    epochs = re.findall(r"epoch \d+ of (\d+)", log_of(backend, job_id))
    return bool(epochs) and int(epochs[-1]) == ranks


def begun_at(backend: Backend, job_id: str) -> list[int]:
    """The epoch from which each start went on."""
    return [int(epoch) for epoch in re.findall(r"begins at (\d+) as 0 ", log_of(backend, job_id))]


def written(backend: Backend, outputs: Sequence[str]) -> dict[str, str]:
    (address,) = outputs
    return {path.name: path.read_text() for path in backend.store.path(address).iterdir()}


def test_it_starts_with_all_where_there_is_room(backend: Backend, training: Made, ends: Path) -> None:
    ends.touch()
    backend.submit(training(), job_id="gang")
    status, _ = finish(backend, "gang")
    assert status.result is not None
    assert written(backend, status.result.outputs["made"]) == {"0": "4", "1": "4", "2": "4", "3": "4"}
    assert status.restarts == 0


def test_it_starts_with_what_can_be_had_and_grows_at_a_checkpoint(
    backend: Backend, training: Made, ends: Path
) -> None:
    backend.submit(other(training(), memory_gib=1.5), job_id="other")
    eventually(lambda: "up" in log_of(backend, "other"))
    backend.submit(training(), job_id="gang")
    eventually(lambda: trains(backend, "gang", ranks=2))
    assert "2 of up to 4 replicas" in backend.status("gang").reason
    backend.cancel("other")
    eventually(lambda: trains(backend, "gang", ranks=4))
    ends.touch()
    status, _ = finish(backend, "gang")
    assert status.state is JobState.SUCCEEDED
    assert status.restarts == 0, "a gang that grows has lost nothing"
    assert status.result is not None
    assert written(backend, status.result.outputs["made"]) == {"0": "4", "1": "4", "2": "4", "3": "4"}
    assert sizes(backend, "gang") == [2, 4]
    assert begun_at(backend, "gang")[1] >= 1, "it goes on from its checkpoint"
    assert (
        "there is room for more: the gang goes on from its checkpoint with 4 of up to 4 replicas"
        in log_of(backend, "gang")
    )


def test_it_gives_to_a_job_that_waits_what_it_can_do_without(
    backend: Backend, training: Made, ends: Path
) -> None:
    backend.submit(training(), job_id="gang")
    eventually(lambda: trains(backend, "gang", ranks=4))
    backend.submit(other(training(), memory_gib=1), job_id="other")
    eventually(lambda: "up" in log_of(backend, "other"))
    eventually(lambda: trains(backend, "gang", ranks=3))
    backend.cancel("other")
    eventually(lambda: trains(backend, "gang", ranks=4))
    ends.touch()
    status, _ = finish(backend, "gang")
    assert status.state is JobState.SUCCEEDED
    assert sizes(backend, "gang") == [4, 3, 4]
    assert begun_at(backend, "gang") == sorted(begun_at(backend, "gang"))
    assert (
        "other waits for 1 GiB of memory: the gang goes on from its checkpoint with 3 of up to 4"
        in log_of(backend, "gang")
    )


def test_it_never_has_fewer_than_its_least_number(backend: Backend, training: Made, ends: Path) -> None:
    backend.submit(training(), job_id="gang")
    eventually(lambda: trains(backend, "gang", ranks=4))
    backend.submit(other(training(), memory_gib=3), job_id="big")
    assert backend.status("big").state is JobState.QUEUED
    assert backend.status("big").reason.startswith("waiting for 3 GiB of memory: 0 of 4 free")
    backend.submit(other(training(), memory_gib=2, code="print('up')"), job_id="fits")
    finish(backend, "fits")
    eventually(lambda: trains(backend, "gang", ranks=2))
    assert backend.status("big").state is JobState.QUEUED
    ends.touch()
    assert finish(backend, "gang")[0].state is JobState.SUCCEEDED
    assert sizes(backend, "gang") == [4, 2], "room is kept for the job that waits, not grown into"


def test_it_waits_whole_where_its_least_number_does_not_fit(
    backend: Backend, training: Made, ends: Path
) -> None:
    backend.submit(other(training(), memory_gib=2.5), job_id="other")
    backend.submit(training(), job_id="gang")
    assert backend.status("gang").reason.startswith("waiting for 2 GiB of memory")
    ends.touch()
    backend.cancel("other")
    assert finish(backend, "gang")[0].state is JobState.SUCCEEDED


def test_a_job_of_low_priority_takes_nothing_from_it(backend: Backend, training: Made, ends: Path) -> None:
    backend.submit(training(), job_id="gang")
    eventually(lambda: trains(backend, "gang", ranks=4))
    backend.submit(other(training(), memory_gib=1, priority="low", code="print('up')"), job_id="trial")
    eventually(lambda: backend.status("trial").reason.startswith("waiting for 1 GiB"))
    ends.touch()
    assert finish(backend, "gang")[0].state is JobState.SUCCEEDED
    assert finish(backend, "trial")[0].state is JobState.SUCCEEDED
    assert sizes(backend, "gang") == [4]


def test_one_of_low_priority_gives_all_back(backend: Backend, training: Made, ends: Path) -> None:
    backend.submit(training(priority="low"), job_id="gang")
    eventually(lambda: trains(backend, "gang", ranks=4))
    backend.submit(other(training(), memory_gib=3, code="print('up')"), job_id="big")
    assert finish(backend, "big")[0].state is JobState.SUCCEEDED
    eventually(lambda: len(sizes(backend, "gang")) >= 2)
    ends.touch()
    assert finish(backend, "gang")[0].state is JobState.SUCCEEDED
    assert begun_at(backend, "gang")[-1] >= 1


def test_one_whose_supervisor_is_killed_goes_on(
    backend: Backend, training: Made, ends: Path, places: Places
) -> None:
    job = training()
    backend.submit(job, job_id="gang")
    eventually(lambda: trains(backend, "gang", ranks=4))
    supervisor(places, "gang").kill()
    eventually(lambda: not backend.status("gang").alive)
    ends.touch()
    backend.submit(job, job_id="gang")
    status, _ = finish(backend, "gang")
    assert status.state is JobState.SUCCEEDED
    assert sizes(backend, "gang") == [4, 4]


def test_less_memory_than_its_least_number_needs_is_refused(backend: Backend, training: Made) -> None:
    role = replace(training().roles[0], resources=Resources(memory_gib=3))
    with pytest.raises(CannotSchedule, match="asks for 6 GiB"):
        backend.check(training(roles=(role,)))
