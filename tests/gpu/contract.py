"""What a machine with a card must do: the tests, run on the card, and on CPUs that stand for one.

Backend, store and worker are used directly, with an interpreter that has torch: no Airflow, no image, no network.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.gpu.place import Place
from tests.ports import free_port
from tests.waiting import eventually

from muster.backends.base import Backend
from muster.backends.local.machine import Machine
from muster.backends.local.place import MachinePlace
from muster.backends.local.places import Places
from muster.backends.local.processes import ranks
from muster.core.job import JobSpec, Launcher, Role
from muster.core.resources import Resources
from muster.core.settings import Settings
from muster.core.status import JobState, JobStatus
from muster.core.verdict import Cause
from muster.images.interpreter import look_at

PROGRAMS = Path(__file__).with_name("programs")
IMAGE = Path(__file__).parents[2] / "images" / "train"
MOST_SECONDS = 420.0  # of one job; a call on a machine that is lent may take no longer than ten minutes
RATE = r"rows_per_second=([\d.]+)"

Figure = Callable[[str, str], None]
Make = Callable[..., JobSpec]


class GpuContract:
    """Inherit it and give a `place`."""

    @pytest.fixture
    def place(self) -> Place:
        raise NotImplementedError

    @pytest.fixture
    def backend(self, tmp_path: Path, place: Place) -> Iterator[Backend]:
        """One card is offered to jobs, however many there are."""
        yield from backend_on(tmp_path, place.cards[:1])

    @pytest.fixture
    def job(self, backend: Backend, place: Place) -> Make:
        return maker(backend, place)

    def test_the_machine_s_cards_are_found(self, place: Place) -> None:
        assert Machine.here().gpus == place.cards

    def test_a_gang_runs_on_one_card(self, backend: Backend, job: Make) -> None:
        backend.submit(job("gang", ranks=2, launcher=Launcher.TORCHRUN), job_id="gang")
        status, lines = finish(backend, "gang")
        assert status.state is JobState.SUCCEEDED, lines
        assert sorted(line for line in lines if "added up" in line) == [
            f"[rank {rank}] rank {rank} of 2 added up to {256**3 * 5}" for rank in (0, 1)
        ]
        (told,) = (line for line in lines if "not with its lock" in line)
        assert told.startswith("[muster] image train: runs with /")

    def test_a_job_sees_the_cards_it_asked_for_and_no_other(
        self, backend: Backend, job: Make, place: Place
    ) -> None:
        for job_id, gpus in (("one", 1), ("none", 0)):
            backend.submit(job("hold", gpus=gpus), job_id=job_id)
        (_, one), (_, none) = finish(backend, "one"), finish(backend, "none")
        seen = 1 if place.device == "cuda" else 0
        assert f"[rank 0] visible={place.cards[0]} cards={seen}" in one
        assert "[rank 0] visible= cards=0" in none

    @pytest.mark.nightly  # contract/test_backend.py has jobs that wait
    def test_a_second_job_waits_for_the_card(self, backend: Backend, job: Make, tmp_path: Path) -> None:
        over = tmp_path / "over"
        backend.submit(job("hold", "--until", str(over)), job_id="first")
        eventually(lambda: b"visible=" in backend.store.ledger.read("first")[0])
        backend.submit(job("hold"), job_id="second")
        waits = backend.status("second")
        assert (waits.state, waits.alive) == (JobState.QUEUED, True)
        assert "GPU" in waits.reason
        over.touch()
        (first, _), (second, lines) = finish(backend, "first"), finish(backend, "second")
        assert (first.state, second.state) == (JobState.SUCCEEDED, JobState.SUCCEEDED), lines
        assert first.ended is not None
        assert second.started is not None
        assert second.started >= first.ended - 1, "both had the card"

    def test_a_full_card_is_a_verdict_with_figures(self, backend: Backend, job: Make, figure: Figure) -> None:
        backend.submit(job("fill", max_restarts=3), job_id="full")
        status, lines = finish(backend, "full")
        assert status.verdict is not None
        assert status.verdict.cause is Cause.GPU_OUT_OF_MEMORY, lines
        assert (status.verdict.rank, status.restarts) == (0, 0)
        assert re.search(r"Tried to allocate [\d.]+ [MG]iB.*GPU 0.*[\d.]+ GiB", status.verdict.message)
        figure("out of memory", status.verdict.message)

    @pytest.mark.nightly  # contract/test_backend.py has a hang
    def test_a_hang_inside_a_kernel_ends_and_leaves_the_card_free(
        self, backend: Backend, job: Make, place: Place, tmp_path: Path
    ) -> None:
        backend.submit(
            job("stuck", hang_timeout_seconds=place.hang_seconds, grace_seconds=1.0), job_id="stuck"
        )
        status, lines = finish(backend, "stuck")
        assert "[rank 0] begins" in lines
        assert status.verdict is not None
        assert status.verdict.cause is Cause.HANG, lines
        assert ranks(Places(tmp_path / "home").mark("stuck")) == []
        backend.submit(job("gang", launcher=Launcher.TORCHRUN), job_id="after")
        status, lines = finish(backend, "after")
        assert status.state is JobState.SUCCEEDED, lines

    @pytest.mark.nightly  # contract/test_backend.py has a gang that goes on from its checkpoint
    def test_what_was_on_the_card_comes_back_after_a_restart(
        self, backend: Backend, job: Make, place: Place, figure: Figure
    ) -> None:
        size = place.checkpoint_bytes
        words = ("--bytes", str(size), "--into", "{checkpoints}")
        memory_gib = place.memory_gib + 2 * size / (1 << 30)
        backend.submit(job("checkpoint", *words, memory_gib=memory_gib, max_restarts=1), job_id="saves")
        status, lines = finish(backend, "saves")
        assert status.state is JobState.SUCCEEDED, lines
        assert status.restarts == 1
        saved, loaded = (
            found(rf"{word} {size} bytes in ([\d.]+) s, sum (\d+)", lines) for word in ("saved", "loaded")
        )
        assert saved[1] == loaded[1], "other bytes came back"
        took = (status.ended or 0.0) - (status.started or 0.0)
        figure(
            "checkpoint and restart",
            f"{size / 1e9:g} GB saved in {saved[0]} s, loaded in {loaded[0]} s, the whole job {took:.1f} s",
        )

    def test_the_use_of_a_card_is_told_over_time(
        self, backend: Backend, job: Make, place: Place, tmp_path: Path, figure: Figure
    ) -> None:
        over = tmp_path / "over"
        backend.submit(job("busy", "--until", str(over), "--side", str(place.width)), job_id="busy")
        eventually(lambda: len(uses(backend, "busy").get("gpu0_share", ())) >= place.use_points)
        over.touch()
        status, lines = finish(backend, "busy")
        assert status.state is JobState.SUCCEEDED, lines
        told = uses(backend, "busy")
        # The first look comes while torch is imported.
        assert max(told["gpu0_share"]) > 0.5
        assert max(told["gpu0_memory_gib"]) >= 2.0
        figure(
            "use of a busy card",
            f"share {told['gpu0_share']}, memory {[round(each, 1) for each in told['gpu0_memory_gib']]} GiB",
        )

    def test_training_is_as_fast_as_under_torchrun(
        self, backend: Backend, job: Make, place: Place, figure: Figure
    ) -> None:
        words = ("--backend", place.collective, "--seconds", str(place.train_seconds))
        words = (*words, "--width", str(place.width))
        bare, ours = [], []
        for number in range(place.pairs):
            bare.append(torchrun(place, "train", words))
            backend.submit(job("train", *words, launcher=Launcher.TORCHRUN), job_id=f"train-{number}")
            status, lines = finish(backend, f"train-{number}")
            assert status.state is JobState.SUCCEEDED, lines
            ours.append(float(found(RATE, lines)[0]))
        ratios = [mine / theirs for mine, theirs in zip(ours, bare, strict=True)]
        ratio = statistics.median(ratios)
        figure(
            "training throughput, muster to torchrun",
            f"{ratio:.3f} (median of {len(ratios)}, {min(ratios):.3f} to {max(ratios):.3f}; "
            f"{statistics.median(ours):.0f} rows/s)",
        )
        assert ratio >= place.least_ratio

    def test_two_cards_add_up(self, place: Place, tmp_path: Path, figure: Figure) -> None:
        if len(place.cards) < 2:
            pytest.skip(f"NCCL needs two cards, here is {len(place.cards)}")
        for backend in backend_on(tmp_path, place.cards[:2]):
            words = ("--backend", place.collective, "--bytes", str(place.width**2))
            spec = maker(backend, place)("reduce", *words, replicas=2, launcher=Launcher.TORCHRUN)
            backend.submit(spec, job_id="two")
            status, lines = finish(backend, "two")
            assert status.state is JobState.SUCCEEDED, lines
            speeds = [found(rf"rank {rank} of 2: gb_per_second=([\d.]+)", lines)[0] for rank in (0, 1)]
            figure(f"{place.collective} on two cards", f"{min(map(float, speeds)):g} GB/s")


def backend_on(root: Path, cards: tuple[str, ...]) -> Iterator[Backend]:
    """Yield a backend that offers some cards, and end what is left on it."""
    settings = Settings(home=root / "home", cache=root / "cache")
    machine = Machine(memory_gib=Machine.here().memory_gib, gpus=cards)
    backend = Backend(MachinePlace(settings, machine=machine))
    yield backend
    for job_id in backend.store.ledger.jobs():
        backend.cancel(job_id)
    eventually(lambda: not list((root / "home").glob("claims/*.json")))


def maker(backend: Backend, place: Place) -> Make:
    """Return what makes a job of one of the programs, which runs with the place's interpreter."""
    image = backend.store.put(IMAGE, ["requirements.txt"])
    code = backend.store.put(PROGRAMS, [path.name for path in sorted(PROGRAMS.glob("*.py"))])
    interpreter = look_at("train", place.python)

    def make(program: str, *words: str, **changes: Any) -> JobSpec:
        shape = {name: changes.pop(name) for name in ("replicas", "ranks") if name in changes}
        memory_gib, gpus = changes.pop("memory_gib", place.memory_gib), changes.pop("gpus", 1)
        role = Role(
            command=("python", f"{program}.py", "--device", place.device, *words),
            resources=Resources(memory_gib=memory_gib, gpus=gpus),
            **shape,
        )
        return JobSpec(
            name=f"gpu.{program}",
            image="train",
            image_digest=image,
            code=code,
            interpreter=interpreter,
            roles=(role,),
            **{"run_timeout_seconds": MOST_SECONDS, "max_restarts": 0, **changes},
        )

    return make


def finish(backend: Backend, job_id: str) -> tuple[JobStatus, list[str]]:
    """Wait for a job's end; return its status and its log."""
    status = eventually(lambda: ended(backend, job_id), seconds=MOST_SECONDS)
    assert status is not None
    log, _ = backend.store.ledger.read(job_id)
    return status, log.decode("utf-8", "replace").splitlines()


def ended(backend: Backend, job_id: str) -> JobStatus | None:
    status = backend.status(job_id)
    return status if status.state.ended else None


def found(pattern: str, lines: Sequence[str]) -> tuple[str, ...]:
    """Return the groups of the first line in which a pattern is found."""
    for line in lines:
        if match := re.search(pattern, line):
            return match.groups()
    raise AssertionError(f"no line has {pattern!r}: {lines}")


def uses(backend: Backend, job_id: str) -> dict[str, tuple[float, ...]]:
    """Return what a job's only replica used, over time, by name."""
    return {curve.name: curve.values for curve in backend.store.ledger.series(job_id).use}


def torchrun(place: Place, program: str, words: Sequence[str]) -> float:
    """Train as without muster; return the rows per second."""
    command = [place.python, "-m", "torch.distributed.run", "--nproc-per-node=1", "--master-addr=127.0.0.1"]
    command += [f"--master-port={free_port()}", f"{program}.py", "--device", place.device, *words]
    variables = {"CUDA_VISIBLE_DEVICES": place.cards[0], "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    ran = subprocess.run(
        command,
        cwd=PROGRAMS,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=MOST_SECONDS,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return float(found(RATE, ran.stdout.splitlines())[0])
