"""The guardian of a keeper: when it starts the next one. What it does as a process is in the contract of deployments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import eventually

from muster.backends.local.processes import Process, children
from muster.backends.local.serving import guardian
from muster.backends.local.serving.guardian import next_pause
from muster.backends.local.serving.kept import Guardian, KeptNumbers
from muster.core.settings import Settings


def test_a_keeper_that_dies_at_once_is_started_later_each_time() -> None:
    pauses = [0.0]
    for _ in range(12):
        pauses.append(next_pause(pauses[-1], lived=0.5))
    assert pauses[1:5] == [0.1, 0.2, 0.4, 0.8]
    assert pauses[-2:] == [60.0, 60.0]
    assert next_pause(pauses[-1], lived=6.0) == 0.1


def test_a_guardian_ends_where_the_deployment_is_gone(tmp_path: Path) -> None:
    """A keeper that is killed; its home has no such deployment any more."""
    keeper = (
        "import subprocess, os, sys, time\n"
        "words = [sys.executable, '-I', '-S', *sys.argv[1:], 'guard', str(os.getpid())]\n"
        "print(subprocess.Popen(words).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    words = [sys.executable, "-c", keeper, guardian.__file__, str(tmp_path), str(tmp_path), "f"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        found = Process.find(int(process.stdout.readline()))
        assert found is not None
        process.kill()
    eventually(lambda: not found.alive)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def mine(tmp_path: Path) -> Iterator[Guardian]:
    """A keeper's, whose files are a pipe."""
    ends = os.pipe()
    yield Guardian(Settings(home=tmp_path, cache=tmp_path), "f", -1, KeptNumbers(*[ends[0]] * 6, ends[1]))
    for end in ends:
        os.close(end)


def test_a_guardian_that_is_lost_is_replaced_and_ends_when_it_is_dismissed(mine: Guardian) -> None:
    before = set(children(os.getpid()))

    def guardians() -> set[int]:
        return set(children(os.getpid())) - before

    mine.replace_lost()
    (first,) = guardians()
    mine.replace_lost()
    assert guardians() == {first}
    os.kill(first, signal.SIGKILL)
    eventually(lambda: not guardians())
    mine.replace_lost()
    (second,) = guardians()
    assert second != first
    mine.dismiss()
    assert guardians() == set()
    mine.dismiss()


def test_a_guardian_that_cannot_be_started_is_tried_again(
    mine: Guardian, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_spawn", refused)
        with pytest.raises(BlockingIOError):
            mine.replace_lost()
    mine.replace_lost()
    mine.dismiss()
