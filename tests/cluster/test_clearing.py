"""What a cluster leaves behind: nothing, whatever happened to it. A second one lives beside the first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster import cluster, groups, kubectl, machine
from tests.cluster.layout import Layout

pytestmark = pytest.mark.cluster


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Layout]:
    """A place for another cluster, which is gone after the test."""
    of = Layout.at(tmp_path / "c")
    with machine.more_watchers():
        yield of
        cluster.down(of)


def command(verb: str, of: Layout) -> list[str]:
    return [sys.executable, "-m", "tests.cluster", verb, f"--root={of.root}"]


def run(verb: str, of: Layout) -> None:
    done = subprocess.run(command(verb, of), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def links() -> set[str]:
    """The network links of the machine: /sys shows the namespace of whoever mounted it, not ours."""
    return {path.name for path in Path("/sys/class/net").iterdir()}


def traces(of: Layout) -> list[str]:
    """Everything on the machine that has the cluster's name or folder in it."""
    mounts = [line for line in Path("/proc/1/mountinfo").read_text().splitlines() if str(of.root) in line]
    commands = [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if str(of.root).encode() in _read(path) and int(path.parent.name) != os.getpid()
    ]
    folders = [str(of.root)] if of.root.exists() else []
    return [*mounts, *commands, *folders, *groups_called(of.name)]


def groups_called(name: str) -> list[str]:
    """Control groups of any hierarchy; those of others may come and go meanwhile."""
    walked = os.walk("/sys/fs/cgroup")
    return [f"{top}/{each}" for top, folders, _ in walked for each in folders if each.startswith(name)]


def test_two_clusters_and_one_goes_after_half_of_it_was_killed(second: Layout) -> None:
    before = links()
    run("up", second)
    assert links() == before
    for pid in groups.pids(second.group())[::2]:
        os.kill(pid, signal.SIGKILL)
    kubectl.until("the cluster is seen to be broken", lambda: not cluster.is_up(second))

    run("down", second)
    assert not cluster.left(second)
    assert traces(second) == []
    assert links() == before


def test_a_start_that_was_killed_is_cleared_away_by_the_next(second: Layout) -> None:
    start = subprocess.Popen(command("up", second), stderr=subprocess.PIPE, text=True)
    assert start.stderr is not None
    for line in start.stderr:
        if "API server answers" in line:
            break
    start.kill()
    start.wait()
    start.stderr.close()
    assert cluster.left(second).processes

    run("up", second)
    assert cluster.is_up(second)
    run("down", second)
    assert traces(second) == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
