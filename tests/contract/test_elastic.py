"""Elastic gangs: what they start with, and when they shrink and grow, with real processes and on a real cluster."""

from __future__ import annotations

import os
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.cluster import nodes, queues, reaper
from tests.cluster.backend import connected
from tests.cluster.control_plane import NODE_GRACE_SECONDS
from tests.cluster.layout import Layout, node_called
from tests.contract.forked import forked
from tests.contract.named import Named
from tests.contract.one_machine import one_machine
from tests.contract.test_backend import finish
from tests.contract.test_preemption import supervisor
from tests.ports import free_port
from tests.waiting import GUARD_SECONDS, eventually

from muster.backends.base import Backend
from muster.backends.local.places import Places
from muster.core.data import OutputTarget
from muster.core.errors import CannotSchedule
from muster.core.job import JobSpec, Launcher, Role
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.core.status import JobState, JobStatus
from muster.images.environment import Environments
from muster.images.folders import find_image, image_folders, put_image
from muster.volumes.service.client import ServiceStore

# Trains until a file in its checkpoints tells it to end: rank 0 says each epoch and keeps it; every rank writes its world.
TRAIN = """
import os, sys, time
from pathlib import Path
saved, ends, made = Path(sys.argv[1], "epoch"), Path(sys.argv[1], "ends"), Path(sys.argv[2])
rank, world = os.environ["MUSTER_RANK"], os.environ["MUSTER_WORLD_SIZE"]
epoch = int(saved.read_text()) if saved.exists() else 0
print("begins at", epoch, "as", rank, "of", world, flush=True)
while not ends.exists():
    epoch += 1
    time.sleep(float(sys.argv[3]))
    if rank == "0":
        saved.with_suffix(".part").write_text(str(epoch))
        saved.with_suffix(".part").replace(saved)
        print("epoch", epoch, "of", world, flush=True)
(made / rank).write_text(world)
"""
# Learns with DDP, and a batch of the same rows for any number of ranks. Rank 1 is killed once, at the epoch that says so.
LEARN = """
import os, signal, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
saved, killed, made = Path(sys.argv[1], "state"), Path(sys.argv[1], "killed"), Path(sys.argv[2])
epochs, kill_at, epoch_seconds = int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
x = torch.randn(960, 8)
net = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)))
optimizer, first = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9), 0
if saved.exists():
    state = torch.load(saved)
    net.load_state_dict(state["net"]), optimizer.load_state_dict(state["optimizer"])
    first = state["epochs"]
print("begins at", first, "as", rank, "of", world, flush=True)
rows = TensorDataset(x, x.prod(1, keepdim=True))
sampler = DistributedSampler(rows, seed=1)
for epoch in range(first, epochs):
    if epoch == kill_at and rank == 1 and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    sampler.set_epoch(epoch)
    for ours, targets in DataLoader(rows, batch_size=48 // world, sampler=sampler):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(ours), targets).backward()
        optimizer.step()
    if rank == 0:
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epochs": epoch + 1}
        torch.save(state, saved.with_suffix(".part"))
        saved.with_suffix(".part").replace(saved)
        print("epoch", epoch + 1, "of", world, flush=True)
    time.sleep(epoch_seconds)
if rank == 0:
    with torch.no_grad():
        loss = torch.nn.functional.mse_loss(net.module(x), x.prod(1, keepdim=True)).item()
    (made / "loss").write_text(repr(loss))
"""
HOLD = "import time; print('up', flush=True); time.sleep(600)"
ONE = Resources(memory_gib=1)
FOUR_CARDS = Resources(cpus=0.1, memory_gib=0.25, gpus=4, gpu_class=("gpu-a100",))  # half of a node

Made = Callable[..., JobSpec]
T = TypeVar("T")
QUEUE = "elastic"


class ElasticContract(Named):
    """Inherit it and give a `backend` with room for four replicas, and `checkpoints`.

    :cvar pace: how much longer everything may take than on one machine.
    :cvar epoch_seconds: how long an epoch takes: a checkpoint is whole once it has stayed as it is for a look.

    What is marked nightly_on("cluster") takes a minute there, and is left out where it has to be quick.
    """

    pace = 1.0
    epoch_seconds = 0.3

    @pytest.fixture
    def backend(self, tmp_path: Path) -> Iterator[Backend]:
        raise NotImplementedError

    def checkpoints(self, backend: Backend, job_id: str) -> Path:
        """The folder of a job's checkpoints, as this process sees it."""
        raise NotImplementedError

    @pytest.fixture
    def training(self, backend: Backend, tmp_path: Path) -> Made:
        """Makes an elastic gang of 2 to 4 replicas, of which each needs a quarter of the room."""
        folders = image_folders(Settings(home=tmp_path, cache=tmp_path))
        image = put_image(backend.store, find_image("python", folders))

        def make(**changes: Any) -> JobSpec:
            words = ("python", "-c", TRAIN, "{checkpoints}", "{outputs.made}", str(self.epoch_seconds))
            role = Role(command=words, replicas=4, least_replicas=2, resources=ONE)
            return JobSpec(
                **{
                    "name": "test.elastic",
                    "image": "python",
                    "image_digest": image,
                    "roles": (role,),
                    "outputs": {"made": OutputTarget(volume=f"a/{self.own('made')}")},
                    **changes,
                }
            )

        return make

    def wait(self, condition: Callable[[], T]) -> T:
        return eventually(condition, seconds=GUARD_SECONDS * self.pace)

    def finish(self, backend: Backend, job_id: str) -> tuple[JobStatus, list[str]]:
        return finish(backend, job_id)

    def end(self, backend: Backend) -> None:
        """Let the gang end, once it has begun."""

        def told() -> bool:
            with suppress(FileNotFoundError):  # another attempt begins just now
                (self.checkpoints(backend, self.own("gang")) / "ends").touch()
                return True
            return False

        self.wait(lambda: backend.store.staging(self.own("gang")))
        self.wait(told)

    @pytest.mark.nightly_on("cluster")  # the next one grows to all
    def test_it_starts_with_all_where_there_is_room(self, backend: Backend, training: Made) -> None:
        backend.submit(training(), job_id=self.own("gang"))
        self.end(backend)
        status, _ = self.finish(backend, self.own("gang"))
        assert status.result is not None
        assert written(backend, status.result.outputs["made"]) == {"0": "4", "1": "4", "2": "4", "3": "4"}
        assert status.restarts == 0

    def test_it_starts_with_what_can_be_had_and_grows_at_a_checkpoint(
        self, backend: Backend, training: Made
    ) -> None:
        backend.submit(other(training(), memory_gib=1.5), job_id=self.own("other"))
        self.wait(lambda: "up" in log_of(backend, self.own("other")))
        backend.submit(training(), job_id=self.own("gang"))
        self.wait(lambda: trains(backend, self.own("gang"), ranks=2))
        backend.cancel(self.own("other"))
        self.wait(lambda: trains(backend, self.own("gang"), ranks=4))
        self.end(backend)
        status, _ = self.finish(backend, self.own("gang"))
        assert status.state is JobState.SUCCEEDED
        assert status.restarts == 0, "a gang that grows has lost nothing"
        assert status.result is not None
        assert written(backend, status.result.outputs["made"]) == {"0": "4", "1": "4", "2": "4", "3": "4"}
        assert sizes(backend, self.own("gang")) == [2, 4]
        assert begun_at(backend, self.own("gang"))[1] >= 1, "it goes on from its checkpoint"
        assert (
            "there is room for more: the gang goes on from its checkpoint with 4 of up to 4 replicas"
            in log_of(backend, self.own("gang"))
        )

    @pytest.mark.nightly_on("cluster")
    def test_it_gives_to_a_job_that_waits_what_it_can_do_without(
        self, backend: Backend, training: Made
    ) -> None:
        backend.submit(training(), job_id=self.own("gang"))
        self.wait(lambda: trains(backend, self.own("gang"), ranks=4))
        backend.submit(other(training(), memory_gib=1), job_id=self.own("other"))
        self.wait(lambda: trains(backend, self.own("gang"), ranks=3))
        self.wait(lambda: "up" in log_of(backend, self.own("other")))
        backend.cancel(self.own("other"))
        self.wait(lambda: trains(backend, self.own("gang"), ranks=4))
        self.end(backend)
        status, _ = self.finish(backend, self.own("gang"))
        assert status.state is JobState.SUCCEEDED
        assert sizes(backend, self.own("gang")) == [4, 3, 4]
        assert begun_at(backend, self.own("gang")) == sorted(begun_at(backend, self.own("gang")))
        assert "the gang goes on from its checkpoint with 3 of up to 4 replicas" in log_of(
            backend, self.own("gang")
        )

    @pytest.mark.nightly
    def test_what_it_has_given_room_outlives_it(self, backend: Backend, training: Made) -> None:
        backend.submit(training(), job_id=self.own("gang"))
        self.wait(lambda: trains(backend, self.own("gang"), ranks=4))
        backend.submit(other(training(), memory_gib=1), job_id=self.own("other"))
        self.wait(lambda: trains(backend, self.own("gang"), ranks=3))
        self.wait(lambda: "up" in log_of(backend, self.own("other")))
        self.end(backend)
        assert self.finish(backend, self.own("gang"))[0].state is JobState.SUCCEEDED
        status = backend.status(self.own("other"))
        assert (status.state, status.alive) == (JobState.RUNNING, True), status

    @pytest.mark.nightly
    def test_one_gang_alone_makes_room_for_a_job_that_waits(self, backend: Backend, training: Made) -> None:
        role = replace(training().roles[0], replicas=2, least_replicas=1)
        names = [self.own("gang"), self.own("second")]
        for name in names:
            outputs = {"made": OutputTarget(volume=f"a/{self.own(name)}")}
            backend.submit(training(roles=(role,), outputs=outputs), job_id=name)
            self.wait(lambda name=name: trains(backend, name, ranks=2))
        backend.submit(other(training(), memory_gib=1), job_id=self.own("other"))
        self.wait(lambda: {trains(backend, name, ranks=1) for name in names} == {True, False})
        self.wait(lambda: "up" in log_of(backend, self.own("other")))
        epochs_before = [epochs(backend, name) for name in names]
        self.wait(
            lambda: all(
                epochs(backend, name) >= before + 2 for name, before in zip(names, epochs_before, strict=True)
            )
        )
        assert sorted(sizes(backend, name) for name in names) == [[2], [2, 1]]

    @pytest.mark.nightly_on("cluster")
    def test_it_never_has_fewer_than_its_least_number(self, backend: Backend, training: Made) -> None:
        backend.submit(training(), job_id=self.own("gang"))
        self.wait(lambda: trains(backend, self.own("gang"), ranks=4))
        backend.submit(other(training(), memory_gib=2), job_id=self.own("fits"))
        self.wait(lambda: trains(backend, self.own("gang"), ranks=2))
        self.wait(lambda: "up" in log_of(backend, self.own("fits")))
        backend.submit(other(training(), memory_gib=3), job_id=self.own("big"))
        self.wait(lambda: backend.status(self.own("big")).state is JobState.QUEUED)
        backend.cancel(self.own("fits"))
        trained = epochs(backend, self.own("gang"))
        self.wait(lambda: epochs(backend, self.own("gang")) >= trained + 3)
        assert backend.status(self.own("big")).state is JobState.QUEUED
        self.end(backend)
        assert self.finish(backend, self.own("gang"))[0].state is JobState.SUCCEEDED
        assert sizes(backend, self.own("gang")) == [4, 2], (
            "room is kept for the job that waits, not grown into"
        )

    @pytest.mark.soak
    def test_gangs_that_are_disturbed_learn_what_undisturbed_ones_of_the_same_sizes_learn(
        self, backend: Backend, training: Made, tmp_path: Path, record_property: Callable[[str, object], None]
    ) -> None:
        settings = Settings.load()
        folder = find_image("train", image_folders(settings))
        image = put_image(backend.store, folder)
        python = Environments(settings.cache).ensure("train", folder, image, print)
        for number in range(1, 11):
            dice, job_id, beside = (
                random.Random(number),
                self.own(f"gang-{number}"),
                self.own(f"beside-{number}"),
            )
            kill_at = dice.randrange(2, 6)
            words = ("python", "-c", LEARN, "{checkpoints}", "{outputs.made}", "12", str(kill_at))
            role = replace(training().roles[0], command=(*words, str(self.epoch_seconds)))
            job = training(image="train", image_digest=image, roles=(role,), launcher=Launcher.TORCHRUN)
            backend.submit(job, job_id=job_id)
            first = dice.randrange(1, 4)
            self.wait(lambda job_id=job_id, first=first: epochs(backend, job_id) >= first)
            backend.submit(other(training(), memory_gib=dice.choice((1, 2))), job_id=beside)
            self.wait(lambda job_id=job_id: len(sizes(backend, job_id)) >= 2)
            later = epochs(backend, job_id) + dice.randrange(1, 4)
            self.wait(lambda job_id=job_id, later=later: epochs(backend, job_id) >= later)
            backend.cancel(beside, wait=False)  # a gang that is not looked at changes nothing meanwhile
            self.wait(lambda job_id=job_id: epochs(backend, job_id) == 12)
            status, _ = self.finish(backend, job_id)
            assert status.result is not None, status.verdict
            loss = float(written(backend, status.result.outputs["made"])["loss"])
            worlds = dict(re.findall(r"epoch (\d+) of (\d+)", log_of(backend, job_id)))
            alone = undisturbed(python, tmp_path / job_id, [int(worlds[str(n)]) for n in range(1, 13)])
            found = (kill_at, sizes(backend, job_id), status.restarts, loss, alone)
            record_property(job_id, found)
            print(job_id, "killed at, sizes, restarts, loss, loss of an undisturbed one:", *found)
            assert status.restarts <= 1, f"a change of size is no restart:\n{log_of(backend, job_id)}"
            assert loss == pytest.approx(alone, abs=1e-7)

    def test_what_a_job_of_higher_priority_takes_it_goes_on_without(
        self, backend: Backend, training: Made
    ) -> None:
        backend.submit(training(priority="normal"), job_id=self.own("gang"))
        self.wait(lambda: trains(backend, self.own("gang"), ranks=4))
        backend.submit(other(training(), memory_gib=2, priority="high"), job_id=self.own("other"))
        self.wait(lambda: trains(backend, self.own("gang"), ranks=2))
        self.wait(lambda: "up" in log_of(backend, self.own("other")))
        self.end(backend)
        assert self.finish(backend, self.own("gang"))[0].state is JobState.SUCCEEDED
        assert begun_at(backend, self.own("gang")) == sorted(begun_at(backend, self.own("gang")))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.slow
class TestElasticOnThisMachine(ElasticContract):
    @pytest.fixture
    def places(self, tmp_path: Path) -> Places:
        return Places(tmp_path / "home")

    @pytest.fixture
    def backend(self, places: Places, cache: Path) -> Iterator[Backend]:
        yield from one_machine(places, cache, memory_gib=4)

    def checkpoints(self, backend: Backend, job_id: str) -> Path:
        staging = backend.store.staging(job_id)
        assert staging is not None
        return staging.checkpoints

    def test_it_waits_whole_where_its_least_number_does_not_fit(
        self, backend: Backend, training: Made
    ) -> None:
        backend.submit(other(training(), memory_gib=2.5), job_id=self.own("other"))
        backend.submit(training(), job_id=self.own("gang"))
        assert backend.status(self.own("gang")).reason.startswith("waiting for 2 GiB of memory")
        backend.cancel(self.own("other"))
        self.end(backend)
        assert self.finish(backend, self.own("gang"))[0].state is JobState.SUCCEEDED

    def test_a_job_of_low_priority_takes_nothing_from_it(self, backend: Backend, training: Made) -> None:
        backend.submit(training(), job_id=self.own("gang"))
        self.wait(lambda: trains(backend, self.own("gang"), ranks=4))
        backend.submit(
            other(training(), memory_gib=1, priority="low", code="print('up')"), job_id=self.own("trial")
        )
        self.wait(lambda: backend.status(self.own("trial")).reason.startswith("waiting for 1 GiB"))
        self.end(backend)
        assert self.finish(backend, self.own("gang"))[0].state is JobState.SUCCEEDED
        assert self.finish(backend, self.own("trial"))[0].state is JobState.SUCCEEDED
        assert sizes(backend, self.own("gang")) == [4]

    def test_one_of_low_priority_gives_all_back(self, backend: Backend, training: Made) -> None:
        backend.submit(training(priority="low"), job_id=self.own("gang"))
        self.wait(lambda: trains(backend, self.own("gang"), ranks=4))
        backend.submit(other(training(), memory_gib=3, code="print('up')"), job_id=self.own("big"))
        assert self.finish(backend, self.own("big"))[0].state is JobState.SUCCEEDED
        self.wait(lambda: len(sizes(backend, self.own("gang"))) >= 2)
        self.end(backend)
        assert self.finish(backend, self.own("gang"))[0].state is JobState.SUCCEEDED
        assert begun_at(backend, self.own("gang"))[-1] >= 1

    def test_one_whose_supervisor_is_killed_goes_on(
        self, backend: Backend, training: Made, places: Places
    ) -> None:
        job = training()
        backend.submit(job, job_id=self.own("gang"))
        self.wait(lambda: trains(backend, self.own("gang"), ranks=4))
        supervisor(places, self.own("gang")).kill()
        self.wait(lambda: not backend.status(self.own("gang")).alive)
        self.end(backend)
        backend.submit(job, job_id=self.own("gang"))
        status, _ = self.finish(backend, self.own("gang"))
        assert status.state is JobState.SUCCEEDED
        assert sizes(backend, self.own("gang")) == [4, 4]

    def test_less_memory_than_its_least_number_needs_is_refused(
        self, backend: Backend, training: Made
    ) -> None:
        role = replace(training().roles[0], resources=Resources(memory_gib=3))
        with pytest.raises(CannotSchedule, match="asks for 6 GiB"):
            backend.runner.check(training(roles=(role,)))


@pytest.mark.slow
class TestElasticOnForks(ElasticContract):
    """The small complete place, ``tests/contract/forked.py``."""

    @pytest.fixture
    def backend(self, tmp_path: Path, cache: Path) -> Iterator[Backend]:
        yield from forked(tmp_path / "home", cache, memory_gib=4)

    def checkpoints(self, backend: Backend, job_id: str) -> Path:
        staging = backend.store.staging(job_id)
        assert staging is not None
        return staging.checkpoints


@pytest.mark.cluster
class TestElasticOnCluster(ElasticContract):
    pace = 2.0
    epoch_seconds = 1.5

    @pytest.fixture
    def backend(self, here: Layout, tmp_path: Path) -> Iterator[Backend]:
        self.here = here
        with queues.backend_in(QUEUE, here, tmp_path, unique=self.unique) as backend:
            yield backend

    def checkpoints(self, backend: Backend, job_id: str) -> Path:
        staging = backend.store.staging(job_id)
        assert staging is not None
        return self.here.claim / staging.checkpoints.relative_to("/claim")

    def test_it_keeps_its_place_where_the_next_in_line_would_take_it(
        self, backend: Backend, training: Made
    ) -> None:
        """Between two sizes it has no place in the queue, and what waits longest is let in first."""
        backend.submit(training(), job_id=self.own("gang"))
        self.wait(lambda: trains(backend, self.own("gang"), ranks=4))
        before = sizes(backend, self.own("gang"))
        for name, memory_gib in (("big", 3), ("fits", 2)):
            backend.submit(other(training(), memory_gib=memory_gib), job_id=self.own(name))
            self.wait(lambda name=name: backend.status(self.own(name)).state is JobState.QUEUED)
        trained = epochs(backend, self.own("gang"))
        self.wait(lambda: epochs(backend, self.own("gang")) >= trained + 3)
        self.end(backend)
        self.finish(backend, self.own("gang"))
        assert sizes(backend, self.own("gang")) == before

    @pytest.mark.nightly  # unit/volumes/service/test_regrouping.py
    def test_it_goes_on_as_it_was_where_who_had_it_stop_is_gone(
        self, backend: Backend, training: Made
    ) -> None:
        """As a process that is killed before it begins the other size; from then on none looks at the gang."""
        gang, store = self.own("gang"), backend.store
        assert isinstance(store, ServiceStore)
        backend.submit(training(), job_id=gang)
        self.wait(lambda: trains(backend, gang, ranks=4))
        attempt, _ = store.attempt(gang)
        assert not store.stop(gang, attempt=attempt)
        self.wait(lambda: log_of(backend, gang).count("as 0 of 4") == 2)
        self.end(backend)
        status, log = self.finish(backend, gang)
        assert status.state is JobState.SUCCEEDED
        assert status.restarts == 0, log
        assert not any("starts again" in line for line in log)
        assert begun_at(backend, gang)[1] >= 1, "it goes on from its checkpoint"

    @pytest.mark.soak
    def test_it_goes_on_without_a_lost_node_and_takes_it_when_it_is_back(
        self,
        backend: Backend,
        training: Made,
        here: Layout,
        tmp_path: Path,
        record_property: Callable[[str, object], None],
    ) -> None:
        node = node_called("a100-1")
        role = replace(training().roles[0], resources=FOUR_CARDS)
        reaper.deploy(here)
        with closing(connected(here, tmp_path / "whole")) as whole:  # in the queue that has all cards
            whole.submit(training(roles=(role,)), job_id=self.own("gang"))
            self.wait(lambda: trains(whole, self.own("gang"), ranks=4))
            lost = time.monotonic()
            nodes.power_off(here, node)
            try:
                self.wait(lambda: trains(whole, self.own("gang"), ranks=2))
                fewer = time.monotonic()
            finally:
                nodes.power_on(here, node)
            back = time.monotonic()
            self.wait(lambda: trains(whole, self.own("gang"), ranks=4))
            record_property(
                "an elastic gang on two nodes, of which one is lost and comes back",
                f"trains with 2 of 4 replicas {fewer - lost:.1f} s after the loss (a node is given up after "
                f"{NODE_GRACE_SECONDS:g} s), with 4 again {time.monotonic() - back:.1f} s after it is back; "
                f"starts at {begun_at(whole, self.own('gang'))} of {sizes(whole, self.own('gang'))}",
            )
            self.end(whole)
            status, _ = self.finish(whole, self.own("gang"))
        assert status.state is JobState.SUCCEEDED
        assert begun_at(backend, self.own("gang")) == sorted(begun_at(backend, self.own("gang")))


@pytest.fixture(scope="module")
def here() -> Iterator[Layout]:
    """A cluster with the store service, and with a queue in which four replicas have room."""
    with queues.with_room(QUEUE, memory_gib=4) as of:
        yield of


def other(job: JobSpec, *, memory_gib: float, code: str = HOLD, **changes: Any) -> JobSpec:
    """A job of one replica beside the gang."""
    role = Role(command=("python", "-c", code), resources=Resources(memory_gib=memory_gib))
    return replace(job, name="test.other", roles=(role,), outputs={}, **changes)


def log_of(backend: Backend, job_id: str) -> str:
    return backend.store.ledger.read(job_id)[0].decode()


def undisturbed(python: Path, folder: Path, worlds: Sequence[int]) -> float:
    """Learn with torchrun alone; return the loss.

    :param worlds: the ranks of each epoch; where they change, the next start goes on from the checkpoint.
    """
    made, trained = folder / "made", 0
    made.mkdir(parents=True)
    (folder / "learn.py").write_text(LEARN)
    for world, stretch in groupby(worlds):
        trained += len(list(stretch))
        torchrun = ("-m", "torch.distributed.run", f"--nproc-per-node={world}", "--master-addr=127.0.0.1")
        words = (f"--master-port={free_port()}", folder / "learn.py", folder, made, str(trained), "-1", "0")
        ran = subprocess.run(
            [python, *torchrun, *words],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
    return float((made / "loss").read_text())


def sizes(backend: Backend, job_id: str) -> list[int]:
    """The ranks of each start of a gang; see :func:`trains` for why its status is asked for."""
    backend.statuses([job_id])
    return [int(size) for size in re.findall(r"as 0 of (\d+)", log_of(backend, job_id))]


def trains(backend: Backend, job_id: str, *, ranks: int) -> bool:
    """Whether the last epoch was trained with so many ranks; on a cluster, a gang shrinks and grows when it is looked at."""
    backend.statuses([job_id])
    epochs = re.findall(r"epoch \d+ of (\d+)", log_of(backend, job_id))
    return bool(epochs) and int(epochs[-1]) == ranks


def epochs(backend: Backend, job_id: str) -> int:
    """How many epochs a gang has trained; see :func:`trains` for why its status is asked for."""
    backend.statuses([job_id])
    found = re.findall(r"epoch (\d+) of", log_of(backend, job_id))
    return max(map(int, found), default=0)


def begun_at(backend: Backend, job_id: str) -> list[int]:
    """The epoch from which each start went on."""
    return [int(epoch) for epoch in re.findall(r"begins at (\d+) as 0 ", log_of(backend, job_id))]


def written(backend: Backend, outputs: Sequence[str]) -> dict[str, str]:
    (address,) = outputs
    return {path.name: path.read_text() for path in backend.store.path(address).iterdir()}
