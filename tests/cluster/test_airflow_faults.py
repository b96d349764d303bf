"""Airflow's worker or triggerer is killed while a gang trains on the cluster: that gang trains on, and once only."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from tests.cluster import author, kubectl, left, store
from tests.cluster.inside import layout
from tests.cluster.layout import Layout
from tests.cluster.training import CODE, MANY
from tests.site import Site
from tests.waiting import eventually, until

from muster.volumes.service.client import ServiceStore

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

SECONDS = 600
# A worker waits that long, and a training lasts for less or for more: who is struck is what waits for it.
INLINE_WAIT_SECONDS = 90
SHORT, LONG = 0.4, 2.4  # seconds of pause after each step
VOLUME = "airflow/model"
DAG = """
    from datetime import datetime, timedelta
    from airflow.sdk import dag
    from muster.airflow import GangOperator, Output, Resources

    @dag(schedule=None, start_date=datetime(2024, 1, 1), params={"part": "none", "pause": 0.4})
    def training():
        GangOperator(
            task_id="train",
            image="train",
            entrypoint="training.train:train",
            replicas=2,
            ranks=2,
            outputs={"model": Output(volume="airflow/model", partition="{{ params.part }}")},
            params={"steps": 50, "pause_seconds": "{{ params.pause }}"},
            resources=Resources(cpus=0.1, memory_gib=1.5, gpus=1, gpu_class=("gpu-a100",)),
            retries=5,
            retry_delay=timedelta(seconds=1),
        )

    training()
"""


@pytest.fixture(scope="module")
def here() -> Layout:
    return layout()


@pytest.fixture(scope="module")
def site(here: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with author.served(here):
        file = author.write_file(here, folder)
        with Site(folder, MUSTER_CLUSTER=str(file)) as site:
            site.write("training", DAG, train=(CODE / "train.py").read_text())
            site.set("muster", inline_wait=INLINE_WAIT_SECONDS)
            site.up(seconds=300)
            yield site


@pytest.fixture(scope="module")
def kept(here: Layout, site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceStore]:
    """The store, asked beside Airflow."""
    cache = tmp_path_factory.mktemp("cache")
    with_rights = ServiceStore(store.URL, token=store.operator_token(here), cache=cache)
    yield with_rights
    with_rights.close()


class Run:
    """One run of the Dag, and its one job."""

    def __init__(self, site: Site, kept: ServiceStore, *, part: str, pause: float = SHORT) -> None:
        self.site, self.kept, self.part = site, kept, part
        self.run_id = site.trigger("training", {"part": part, "pause": pause})

    def jobs(self) -> list[str]:
        ledger = self.kept.ledger
        return [job_id for job_id in ledger.jobs() if ledger.spec(job_id).origin.run_id == self.run_id]

    def trains(self) -> bool:
        """Whether it has done a few steps, as its log says, and has not ended."""
        ledger = self.kept.ledger
        return any(
            b"step=3/" in ledger.read(job_id)[0] and not ledger.status(job_id).state.ended
            for job_id in self.jobs()
        )

    def task(self) -> str:
        return str(self.site.task("training", self.run_id, "train")["state"])

    def ends(self) -> str:
        """See it come to a good end, and return the digest of its only version."""
        state = self.site.wait("training", self.run_id, seconds=SECONDS)
        assert state == "success", self.site.task_log("training", self.run_id, "train")
        (job_id,) = self.jobs()
        lines = self.kept.ledger.read(job_id)[0].decode().splitlines()
        begins = [line for line in lines if "begins at step" in line]
        assert begins == ["[rank 0] begins at step 0"], begins
        assert self.kept.ledger.status(job_id).restarts == 0
        (version,) = [one for one in self.kept.versions(VOLUME) if one.partition == self.part]
        return version.digest


def kill_the_worker(run: Run) -> None:
    """The worker that the task runs in, and the task."""
    assert until(run.trains)
    assert run.task() == "running", "it is struck while Airflow's worker waits for it"
    tasks = run.site.tasks()
    assert tasks
    for pid in (*run.site.workers(), *tasks):
        os.kill(pid, signal.SIGKILL)


def kill_the_triggerer(run: Run) -> None:
    """The triggerer that waits for the task."""
    run.site.wait_task("training", run.run_id, "train", ("deferred",))
    assert until(run.trains)
    pid = eventually(lambda: run.site.component("triggerer"))
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class Fault:
    """What is done to Airflow.

    :param pause: seconds after each step of the training meanwhile.
    :param tries: how many the task has taken at its end.
    """

    strike: Callable[[Run], None]
    pause: float
    tries: int


FAULTS = {
    "worker": Fault(kill_the_worker, pause=SHORT, tries=2),
    "triggerer": Fault(kill_the_triggerer, pause=LONG, tries=1),
}


@pytest.fixture(scope="module")
def undisturbed(site: Site, kept: ServiceStore) -> str:
    """The weights of a run to which nothing happens."""
    return Run(site, kept, part="undisturbed").ends()


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(number, marks=pytest.mark.soak) for number in range(1, MANY + 1))]
)
@pytest.mark.parametrize("name", FAULTS)
def test_what_is_killed_of_airflow_costs_the_gang_nothing(
    name: str, number: int, undisturbed: str, here: Layout, site: Site, kept: ServiceStore
) -> None:
    fault = FAULTS[name]
    run = Run(site, kept, part=f"{name}-{number}", pause=fault.pause)
    fault.strike(run)
    assert run.ends() == undisturbed
    assert site.task("training", run.run_id, "train")["try_number"] == fault.tries
    kubectl.until("nothing is left", lambda: not left.of_anybody(here))
