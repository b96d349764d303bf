"""What jobs held on one machine, with real processes: what the supervisor gave them, no more and no less."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.one_machine import one_machine
from tests.contract.test_backend import finish
from tests.contract.test_preemption import supervisor
from tests.waiting import GUARD_SECONDS, eventually

from muster.backends.base import Backend
from muster.backends.local.places import Places
from muster.core.data import Input, OutputTarget, Pinned
from muster.core.job import JobSpec, Role
from muster.core.origin import Origin
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.core.status import JobState, JobStatus
from muster.core.tally import Tally
from muster.images.folders import find_image, image_folders, put_image
from muster.volumes.folder import FolderStore

pytestmark = pytest.mark.slow

MAKE = "open('{outputs.made}/f', 'w').write('1')"
# Works for three seconds of a core: the first look at its use is after two.
WORK = "import time\nend = time.process_time() + 3\nwhile time.process_time() < end: pass\n" + MAKE
WAIT = "import time; print('up', flush=True); time.sleep(600)"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "home")


@pytest.fixture
def backend(places: Places, cache: Path) -> Iterator[Backend]:
    yield from one_machine(places, cache, memory_gib=8)


@pytest.fixture
def job(backend: Backend, tmp_path: Path, cache: Path) -> Callable[..., JobSpec]:
    settings = Settings(home=tmp_path, cache=cache)
    image = put_image(backend.store, find_image("python", image_folders(settings)))

    def make(code: str, *, makes: str = "", memory_gib: float = 4, **changes: Any) -> JobSpec:
        role = Role(
            command=("python", "-c", code),
            resources=Resources(memory_gib=memory_gib),
            replicas=changes.pop("replicas", 1),
            least_replicas=changes.pop("least", None),
        )
        outputs = {"made": OutputTarget(volume=makes)} if makes else {}
        return JobSpec(
            name="t.j", image="python", image_digest=image, roles=(role,), outputs=outputs, **changes
        )

    return make


def times(backend: Backend, job_id: str) -> list[tuple[float, float | None, int]]:
    return [(each.since, each.until, each.replicas) for each in backend.store.ledger.tally(job_id).times]


def usage(places: Places, *words: str) -> Any:
    environment = {**os.environ, "MUSTER_HOME": str(places.home)}
    command = [sys.executable, "-m", "muster", "usage", *words, "--json"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=GUARD_SECONDS
    )
    return json.loads(done.stdout)["rows"]


def test_three_stages_held_what_the_supervisor_gave_them(
    backend: Backend, job: Callable[..., JobSpec], places: Places
) -> None:
    addresses: list[str] = []
    ended: list[JobStatus] = []
    for stage in ("features", "train", "evaluate"):
        inputs = {
            f"in{number}": Input(versions=(Pinned(address=address, digest=version.digest),))
            for number, address in enumerate(addresses)
            for version in backend.store.resolve(address)
        }
        origin = Origin(instance="i", dag_id="flights", run_id="r", task_id=stage)
        spec = job(WORK, makes=f"flights/{stage}", origin=origin, inputs=inputs)
        backend.submit(spec, job_id=stage, tally=Tally(user="ada", team="vision"))
        status, _ = finish(backend, stage)
        assert status.state is JobState.SUCCEEDED, status.verdict
        ended.append(status)
        addresses = list(status.addresses)
    held = 0.0
    for status in ended:
        ((since, until, replicas),) = times(backend, status.job_id)
        assert until is not None
        assert status.started is not None
        assert status.submitted <= since <= status.started <= until == status.ended
        assert replicas == 1
        held += until - since
    (row,) = usage(places, "--by", "dag,user,team,class")
    assert (row["dag"], row["user"], row["team"], row["class"], row["jobs"]) == (
        *("flights", "ada", "vision", "cpu"),
        3,
    )
    assert row["cpu_hours_held"] == pytest.approx(held / 3600, abs=0.0003)
    assert 0 < row["cpu_hours_used"] <= row["cpu_hours_held"] * 1.1
    # all three made the last one; the first was made by itself
    assert usage(places, "flights/evaluate@1")[0]["jobs"] == 3
    assert usage(places, "flights/features@1")[0]["jobs"] == 1
    volumes = [each["volume"] for each in usage(places, "--by", "volume")]
    assert sorted(volumes) == ["flights/evaluate", "flights/features", "flights/train"]


def test_a_preempted_job_holds_nothing_while_it_waits(backend: Backend, job: Callable[..., JobSpec]) -> None:
    backend.submit(job(WAIT, memory_gib=8, priority="low", max_restarts=0), job_id="trial")
    eventually(lambda: b"up" in backend.store.ledger.read("trial")[0])
    backend.submit(job(WAIT, memory_gib=8, priority="normal"), job_id="gang")
    eventually(lambda: b"up" in backend.store.ledger.read("gang")[0])
    ((_, given_back, _),) = times(backend, "trial")
    assert given_back is not None
    assert given_back <= times(backend, "gang")[0][0]
    backend.cancel("gang")
    eventually(lambda: len(times(backend, "trial")) == 2)
    ((_, before, _), (since, _, _)) = times(backend, "trial")
    assert before == given_back
    gang_until = times(backend, "gang")[0][1]
    assert gang_until is not None
    assert since >= given_back


def test_an_elastic_gang_holds_what_it_has(backend: Backend, job: Callable[..., JobSpec]) -> None:
    backend.submit(job(WAIT, memory_gib=2, replicas=4, least=1), job_id="elastic")
    eventually(lambda: backend.store.ledger.read("elastic")[0].count(b"up") == 4)
    assert [size for _, _, size in times(backend, "elastic")] == [
        1,
        4,
    ]  # its least number, then what has room
    backend.submit(job(WAIT, memory_gib=4), job_id="other")
    eventually(lambda: b"up" in backend.store.ledger.read("other")[0])
    eventually(lambda: [size for _, _, size in times(backend, "elastic")] == [1, 4, 2])
    _, (_, until, _), (since, goes_on, _) = times(backend, "elastic")
    assert until == since
    assert goes_on is None


def test_a_lost_supervisor_loses_what_came_after_the_last_sign_of_it(
    backend: Backend, job: Callable[..., JobSpec], places: Places
) -> None:
    spec = job(WAIT, max_restarts=0)
    backend.submit(spec, job_id="lost")
    eventually(lambda: b"up" in backend.store.ledger.read("lost")[0])
    os.kill(supervisor(places, "lost").pid, signal.SIGKILL)
    eventually(lambda: not backend.status("lost").alive)
    gone = time.time()
    assert usage(places)[0]["jobs"] == 1
    backend.submit(spec, job_id="lost")
    eventually(lambda: len(times(backend, "lost")) == 2)
    (first, until, _), (since, _, _) = times(backend, "lost")
    assert until is not None
    assert first <= until <= gone <= since


def test_the_log_outlives_its_jobs(backend: Backend, job: Callable[..., JobSpec], places: Places) -> None:
    backend.submit(job("pass"), job_id="short")
    finish(backend, "short")
    assert isinstance(backend.store, FolderStore)
    backend.store.collect(job_days=0.0)
    assert "short" not in backend.store.ledger.jobs()
    assert usage(places)[0]["jobs"] == 1
