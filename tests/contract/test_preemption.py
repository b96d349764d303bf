"""Jobs of low priority on one machine give their room back, and go on from their checkpoints: with real processes."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.contract.one_machine import one_machine
from tests.contract.test_backend import finish
from tests.waiting import eventually, until

from muster.airflow.attempts.waiting import GoesOn, InlinePatience, Wait
from muster.backends.base import Backend
from muster.backends.local import processes
from muster.backends.local.places import Places
from muster.core.cancelling import by_command
from muster.core.data import OutputTarget
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause
from muster.core.wire import loads
from muster.images.folders import find_image, image_folders, put_image

pytestmark = pytest.mark.slow

# Counts its starts in its checkpoint; the first start runs until it is ended.
TRIAL = (
    "import pathlib, signal, sys, time\n"
    "seen = pathlib.Path('{checkpoints}/starts')\n"
    "starts = int(seen.read_text()) + 1 if seen.exists() else 1\n"
    "seen.write_text(str(starts)); print('start', starts, flush=True)\n"
    "if starts == 1: time.sleep(600)\n"
    "open('{outputs.made}/f', 'w').write(str(starts))\n"
)
SLEEP = "import time; print('up', flush=True); time.sleep(600)"
SAY = "print('up', flush=True)"
WHOLE = Resources(memory_gib=4)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "home")


@pytest.fixture
def backend(places: Places, cache: Path) -> Iterator[Backend]:
    yield from one_machine(places, cache, memory_gib=4)


@pytest.fixture
def job(backend: Backend, tmp_path: Path, cache: Path) -> Callable[..., JobSpec]:
    image = put_image(
        backend.store, find_image("python", image_folders(Settings(home=tmp_path, cache=cache)))
    )

    def make(code: str, priority: str = "low", resources: Resources = WHOLE, **changes: Any) -> JobSpec:
        role = Role(command=("python", "-c", code), resources=resources)
        return JobSpec(
            name="test.job",
            image="python",
            image_digest=image,
            roles=(role,),
            priority=priority,
            outputs={"made": OutputTarget(volume="a/made")} if "{outputs.made}" in code else {},
            **changes,
        )

    return make


def says(backend: Backend, job_id: str, line: str) -> bool:
    return line.encode() in backend.store.ledger.read(job_id)[0]


def runs(backend: Backend, job_id: str, spec: JobSpec) -> bool:
    """Whether a job runs; it is submitted again where it was lost, since who starts it may be killed on the way."""
    status = backend.status(job_id)
    if not status.alive:
        backend.submit(spec, job_id=job_id)
    return status.state is JobState.RUNNING


def supervisor(places: Places, job_id: str) -> processes.Process:
    return loads(processes.Process, places.job(job_id).supervisor.read_text())


def test_a_preempted_job_goes_on_from_its_checkpoint_when_the_other_has_ended(
    backend: Backend, job: Callable[..., JobSpec]
) -> None:
    backend.submit(job(TRIAL, max_restarts=0), job_id="trial")
    eventually(lambda: says(backend, "trial", "start 1"))
    first = backend.status("trial")
    backend.submit(job(SLEEP, "normal"), job_id="gang")
    eventually(lambda: says(backend, "gang", "up"))
    waits = backend.status("trial")
    assert (waits.state, waits.alive) == (JobState.QUEUED, True)
    assert waits.submitted == first.submitted
    assert waits.reason == (
        "was preempted (gang waits for 4 GiB of memory) and waits again; "
        "waiting for 4 GiB of memory: 0 of 4 free"
    )
    backend.cancel("gang")
    status, lines = finish(backend, "trial")
    assert status.state is JobState.SUCCEEDED
    assert status.restarts == 0
    told = [line for line in lines if line.startswith("[muster] ")]
    assert [line for line in told if "image" not in line] == [
        "[muster] preempted: gang waits for 4 GiB of memory; the job goes on from its checkpoint when there is room again",
        "[muster] there is room again: the job goes on from its checkpoint",
    ]
    assert [line for line in lines if "start" in line] == ["[rank 0] start 1", "[rank 0] start 2"]
    assert len(backend.store.versions("a/made")) == 1


def test_ranks_have_their_grace_to_save(backend: Backend, job: Callable[..., JobSpec]) -> None:
    code = (
        "import pathlib, signal, sys, time\nseen = pathlib.Path('{checkpoints}/seen')\n"
        "def save(*_): seen.write_text('saved'); sys.exit(1)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "if not seen.exists(): print('up', flush=True); time.sleep(600)\n"
        "print('found', seen.read_text())\n"
    )
    backend.submit(job(code), job_id="trial")
    eventually(lambda: says(backend, "trial", "up"))
    backend.submit(job(SAY, "high"), job_id="gang")
    status, lines = finish(backend, "trial")
    assert status.state is JobState.SUCCEEDED
    assert "[rank 0] found saved" in lines


def test_two_jobs_of_low_priority_wait_for_the_gang_and_both_end_well(
    backend: Backend, job: Callable[..., JobSpec]
) -> None:
    half = Resources(memory_gib=2)
    for job_id in ("one", "two"):
        backend.submit(replace(job(TRIAL, resources=half), outputs=made(job_id)), job_id=job_id)
        eventually(functools.partial(says, backend, job_id, "start 1"))
    backend.submit(job(SAY, "normal"), job_id="gang")
    gang, _ = finish(backend, "gang")
    found = {job_id: finish(backend, job_id)[0] for job_id in ("one", "two")}
    assert {status.state for status in found.values()} == {JobState.SUCCEEDED}
    assert gang.ended is not None
    for job_id in found:
        assert len(backend.store.versions(f"a/made-{job_id}")) == 1


def made(job_id: str) -> dict[str, OutputTarget]:
    return {"made": OutputTarget(volume=f"a/made-{job_id}")}


@pytest.mark.nightly
def test_many_small_jobs_neither_keep_the_gang_waiting_nor_are_lost(
    backend: Backend, job: Callable[..., JobSpec]
) -> None:
    """Each of them that starts is preempted at most once for one gang."""
    small = Resources(memory_gib=2)
    for number in range(4):
        backend.submit(
            replace(job(TRIAL, resources=small), outputs=made(f"{number}")), job_id=f"trial-{number}"
        )
    eventually(lambda: all(says(backend, f"trial-{number}", "start 1") for number in range(2)))
    backend.submit(job(SLEEP, "normal"), job_id="gang")
    eventually(lambda: says(backend, "gang", "up"))
    assert {backend.status(f"trial-{number}").state for number in range(4)} == {JobState.QUEUED}
    assert [says(backend, f"trial-{number}", "start") for number in range(4)] == [True, True, False, False]
    backend.cancel("gang")
    for number in range(2):
        status, lines = finish(backend, f"trial-{number}")
        assert status.state is JobState.SUCCEEDED
        assert sum("preempted" in line for line in lines) == 1


def test_equals_wait_for_each_other(backend: Backend, job: Callable[..., JobSpec]) -> None:
    backend.submit(job(SLEEP), job_id="first")
    eventually(lambda: says(backend, "first", "up"))
    backend.submit(job(SAY), job_id="second")
    for _ in range(3):
        assert backend.status("second").state is JobState.QUEUED
    assert backend.status("first").state is JobState.RUNNING
    backend.cancel("first")
    assert finish(backend, "second")[0].state is JobState.SUCCEEDED


def test_a_supervisor_that_is_killed_on_the_way_loses_nothing(
    backend: Backend, job: Callable[..., JobSpec], places: Places
) -> None:
    """Its ranks take long to save, and it is killed meanwhile."""
    deaf = TRIAL.replace(
        "if starts == 1:",
        "import os\ndef deaf(*_): os.write(1, b'hears\\n')\nsignal.signal(signal.SIGTERM, deaf)\nwhile starts == 1:",
    )
    spec = job(deaf, grace_seconds=60)
    backend.submit(spec, job_id="trial")
    eventually(lambda: says(backend, "trial", "start 1"))
    backend.submit(job(SLEEP, "normal"), job_id="gang")
    eventually(lambda: says(backend, "trial", "hears"))
    supervisor(places, "trial").kill()
    eventually(lambda: backend.status("gang").state is JobState.RUNNING)
    lost = backend.status("trial")
    assert (lost.state.ended, lost.alive) == (False, False)
    assert not processes.marked(places.mark("trial"))
    backend.submit(spec, job_id="trial")
    assert backend.status("trial").alive
    backend.cancel("gang")
    status, lines = finish(backend, "trial")
    assert status.state is JobState.SUCCEEDED
    assert "[rank 0] start 2" in lines
    assert not any("preempted" in line for line in lines)


@pytest.mark.nightly  # a supervisor is killed on the way above
def test_killed_at_any_moment_of_it_the_job_ends_with_one_version(
    backend: Backend, job: Callable[..., JobSpec], places: Places
) -> None:
    kill_at_random(backend, job, places, rounds=3)


@pytest.mark.soak
def test_killed_at_many_moments_of_it_the_job_ends_with_one_version(
    backend: Backend, job: Callable[..., JobSpec], places: Places
) -> None:
    kill_at_random(backend, job, places, rounds=100)


def kill_at_random(backend: Backend, job: Callable[..., JobSpec], places: Places, *, rounds: int) -> None:
    chance = random.Random(20261125)
    for number in range(rounds):
        trial, gang = f"trial-{number}", f"gang-{number}"
        spec = replace(job(TRIAL), outputs=made(trial))
        backend.submit(spec, job_id=trial)
        eventually(functools.partial(says, backend, trial, "start 1"))
        found = supervisor(places, trial)
        waits = job(SLEEP, "normal")
        backend.submit(waits, job_id=gang)
        until(lambda: False, seconds=chance.uniform(0.0, 0.5))
        found.kill()
        eventually(functools.partial(runs, backend, gang, waits))
        backend.submit(spec, job_id=trial)  # as a task does that sees it lost
        assert backend.status(trial).alive
        backend.cancel(gang)
        status, _ = finish(backend, trial)
        assert status.state is JobState.SUCCEEDED
        assert [version.number for version in backend.store.versions(f"a/made-{trial}")] == [1]
        assert not processes.marked(places.mark(trial))


def test_a_cancel_wins(backend: Backend, job: Callable[..., JobSpec]) -> None:
    deaf = "import os, signal, time\ndef deaf(*_): os.write(1, b'hears\\n')\nsignal.signal(signal.SIGTERM, deaf)\nprint('up', flush=True)\nwhile True: time.sleep(600)"
    backend.submit(job(deaf, grace_seconds=1), job_id="trial")
    eventually(lambda: says(backend, "trial", "up"))
    backend.submit(job(SLEEP, "normal"), job_id="gang")
    eventually(lambda: says(backend, "trial", "hears"))
    backend.cancel("trial", why=by_command("ada"))
    status = backend.status("trial")
    assert status.state is JobState.CANCELLED
    assert status.verdict == by_command("ada")
    eventually(lambda: backend.status("gang").state is JobState.RUNNING)


def test_a_preempted_job_that_waits_is_cancelled(
    backend: Backend, job: Callable[..., JobSpec], places: Places
) -> None:
    backend.submit(job(TRIAL), job_id="trial")
    eventually(lambda: says(backend, "trial", "start 1"))
    backend.submit(job(SLEEP, "normal"), job_id="gang")
    eventually(lambda: backend.status("trial").state is JobState.QUEUED)
    backend.cancel("trial")
    assert backend.status("trial").state is JobState.CANCELLED
    assert not places.job("trial").root.exists()


def test_waiting_is_no_running_and_costs_no_queue_timeout(
    backend: Backend, job: Callable[..., JobSpec]
) -> None:
    """It runs as long as its run_timeout lets it, with a pause in between that is longer."""
    backend.submit(job(SLEEP, run_timeout_seconds=3.0, queue_timeout_seconds=60), job_id="trial")
    eventually(lambda: says(backend, "trial", "up"))
    backend.submit(job("import time; time.sleep(4)", "normal"), job_id="gang")
    between, _ = finish(backend, "gang")
    status, lines = finish(backend, "trial")
    assert status.verdict is not None
    assert status.verdict.cause is Cause.RUN_TIMEOUT
    assert lines.count("[rank 0] up") == 2
    assert between.started is not None
    assert between.ended is not None
    assert status.started is not None
    # It counts as waiting for at least as long as the other ran, however long a busy machine took for either.
    assert status.started - status.submitted >= between.ended - between.started


def test_a_preempted_job_waits_no_longer_than_its_queue_timeout(
    backend: Backend, job: Callable[..., JobSpec], places: Places
) -> None:
    backend.submit(job(SLEEP, queue_timeout_seconds=0.5), job_id="trial")
    eventually(lambda: says(backend, "trial", "up"))
    backend.submit(job(SLEEP, "normal"), job_id="gang")
    status, _ = finish(backend, "trial")
    assert status.verdict is not None
    assert status.verdict.cause is Cause.QUEUE_TIMEOUT
    assert "its queue_timeout of 0.5 s" in status.verdict.message
    assert not places.job("trial").root.exists()


def test_a_task_that_waits_for_it_goes_on_waiting(backend: Backend, job: Callable[..., JobSpec]) -> None:
    backend.submit(job(TRIAL), job_id="trial")
    eventually(lambda: says(backend, "trial", "start 1"))
    seen: list[JobState] = []

    def progress(status: JobStatus) -> None:
        if status.state is JobState.RUNNING and not seen:
            backend.submit(job(SLEEP, "normal"), job_id="gang")
        if status.state is JobState.QUEUED and JobState.QUEUED not in seen:
            backend.cancel("gang", wait=False)
        seen.append(status.state)

    status = Wait().follow(backend, "trial", lines=lambda *_: None, progress=progress)
    assert status.state is JobState.SUCCEEDED
    assert seen[0] is JobState.RUNNING
    assert JobState.QUEUED in seen


def test_a_task_hands_it_over_to_the_triggerer_while_it_waits_again(
    backend: Backend, job: Callable[..., JobSpec]
) -> None:
    backend.submit(job(TRIAL), job_id="trial")
    eventually(lambda: says(backend, "trial", "start 1"))
    backend.submit(job(SLEEP, "normal"), job_id="gang")
    patience = InlinePatience(seconds=60.0, queued_seconds=0.0)
    with pytest.raises(GoesOn):
        Wait().follow(backend, "trial", lines=lambda *_: None, progress=lambda _: None, patience=patience)
    eventually(lambda: backend.status("trial").state is JobState.QUEUED)
