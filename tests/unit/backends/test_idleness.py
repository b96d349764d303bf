"""A gang that does nothing is warned of, and ended: the looks of a backend, and one real gang."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.one_machine import one_machine
from tests.contract.test_backend import finish

from muster.backends.base import Backend
from muster.backends.jobs.ending import Idleness
from muster.backends.local.places import Places
from muster.core.idle import QUIET
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources
from muster.core.series import Curve, Series
from muster.core.settings import Settings
from muster.core.status import JobState
from muster.core.verdict import Cause
from muster.images.folders import find_image, image_folders, put_image


class Gang:
    """What its two replicas told last, and what was warned."""

    def __init__(self) -> None:
        self.idleness, self.warned, self.asked = Idleness(1200.0), list[str](), 0

    def look(self, now: float, quiet: float, *cards: str) -> str:
        def series() -> Series:
            self.asked += 1
            names = (QUIET, *cards)
            return Series(
                use=tuple(
                    Curve(name=name, source=f"main-{number}", seconds=(now,), values=(quiet,), told=1)
                    for number in range(2)
                    for name in names
                )
            )

        found = self.idleness.look(series, replicas=2, now=now, warn=self.warned.append)
        return "" if found is None else found.message


def test_it_is_warned_of_once_each_time_and_ended() -> None:
    gang = Gang()
    assert gang.look(1000, 590) == ""
    assert gang.look(1010, 600) == ""
    assert gang.asked == 1  # not at each turn
    for now, quiet in ((1040, 630), (1080, 670), (1120, 0), (2000, 880)):
        assert gang.look(now, quiet) == ""
    nothing = "no output, and less than 5 % of a core in each replica"
    assert gang.warned == [
        f"warning: idle for 10 min 30 s: {nothing}; it is ended after 20 min 00 s (idle=)",
        f"warning: idle for 14 min 40 s: {nothing}; it is ended after 20 min 00 s (idle=)",
    ]
    assert gang.look(2400, 1280) == f"idle for 21 min 20 s with 2 replicas: {nothing}"


def test_one_that_computes_again_before_it_is_ended_goes_on() -> None:
    """The store was away, or the cluster's answer was another: nothing ended it at the look that found it idle."""
    gang = Gang()
    ended = gang.look(2400, 1280)
    assert gang.look(2401, 0) == ended != ""  # one look finds one thing
    assert gang.look(2500, 0) == ""
    assert gang.look(5000, 1250) != ""


def test_cards_are_told_of_where_they_are_measured() -> None:
    assert Gang().look(2400, 1280, "gpu0_share") == "idle for 21 min 20 s with 2 replicas: no card computes"


def test_without_a_limit_nothing_is_asked() -> None:
    gang = Gang()
    gang.idleness = Idleness(0.0)
    assert gang.look(2400, 9999) == ""
    assert gang.asked == 0


def test_it_is_tried_again_by_nobody() -> None:
    assert not Cause.IDLE.retried
    assert not Cause.IDLE.restarts_gang


# The first rank works for longer than the limit; then both sleep. Told to stop, they save.
SLEEPERS = (
    "import os, pathlib, signal, sys, time\n"
    "saved = pathlib.Path('{checkpoints}', os.environ['MUSTER_RANK'])\n"
    "def save(*_): saved.write_text('saved'); print('saved', flush=True); sys.exit(1)\n"
    "signal.signal(signal.SIGTERM, save)\n"
    "for step in range(80 if os.environ['MUSTER_RANK'] == '0' else 1): print('step', step, flush=True); time.sleep(0.1)\n"
    "time.sleep(600)\n"
)


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Backend]:
    yield from one_machine(Places(tmp_path / "home"), tmp_path / "cache", memory_gib=4)


@pytest.mark.slow
def test_a_gang_that_sleeps_is_ended_with_its_checkpoint(backend: Backend, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, cache=tmp_path / "cache")
    image = put_image(backend.store, find_image("python", image_folders(settings)))
    role = Role(command=("python", "-c", SLEEPERS), replicas=2, resources=Resources(memory_gib=1))
    spec = JobSpec(name="t.j", image="python", image_digest=image, roles=(role,), idle_seconds=5.0)
    backend.submit(spec, job_id="sleepers")
    status, lines = finish(backend, "sleepers")
    assert (status.state, status.restarts) == (JobState.FAILED, 0)
    assert status.verdict is not None
    assert status.verdict.cause is Cause.IDLE
    assert "no output, and less than 5 % of a core in each replica" in status.verdict.message
    assert "[rank 0] step 79" in lines  # it was not ended while one of the two worked
    (warning,) = [number for number, line in enumerate(lines) if "[muster] warning: idle for" in line]
    saved = [number for number, line in enumerate(lines) if line.endswith("] saved")]
    assert len(saved) == 2
    assert warning < min(saved)
    kept = backend.store.saved("sleepers")
    assert kept is not None
    assert kept.files == 2
    assert lines[-4] == "idle"
