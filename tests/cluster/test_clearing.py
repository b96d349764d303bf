"""What a cluster leaves behind: nothing, whatever happened to it. A second one lives beside the first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cluster import cluster, groups, kubectl, machine
from tests.cluster.layout import Layout

from muster.core.errors import BackendError

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]  # each run of the tests begins and clears clusters

# Tests that were killed in the midst of a fault.
KILLED = """
import os, signal, sys
from tests.cluster import kubectl, nodes
from tests.cluster.inside import gang, layout, phases
from tests.cluster.layout import node_called
here = layout()
kubectl.apply(here, [gang("left", pods=3, gpus=4, script="import time; time.sleep(600)")])
kubectl.until("it runs", lambda: phases(here, "left") == ["Running"] * 3)
nodes.disconnect(here, node_called("a100-0"))
if "off" in sys.argv:
    nodes.power_off(here, node_called("k80-0"))
os.kill(os.getpid(), signal.SIGKILL)
"""
CLEARED = """
from tests.cluster import clearing, kubectl, nodes
from tests.cluster.inside import layout, pods_of
from tests.cluster.layout import NODES
here = layout()
clearing.clear(here)
assert all(nodes.is_ready(here, node) for node in NODES)
assert pods_of(here, "left") == []
assert kubectl.get(here, "jobsets", "--all-namespaces")["items"] == []
"""


# What a test that was killed leaves: a process without a parent.
ORPHAN = """
import os, time
read, write = os.pipe()
if os.fork():
    os.close(write)
    print(os.read(read, 20).decode())
elif os.fork() == 0:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    os.write(write, str(os.getpid()).encode())
    time.sleep(3600)  # until it is ended
"""


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Layout]:
    """A place for another cluster, which is gone after the test."""
    of = Layout.at(tmp_path / "c")
    with machine.more_watchers():
        yield of
        cluster.down(of)


def command(verb: str, of: Layout) -> list[str]:
    return [sys.executable, "-m", "tests.cluster", verb, f"--root={of.root}"]


def run(verb: str, of: Layout, *words: str, code: int = 0) -> None:
    done = subprocess.run([*command(verb, of), *words], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr


def started(of: Layout, *words: str) -> str:
    """What a command says that was run inside."""
    done = subprocess.run([*command("exec", of), *words], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def links() -> set[str]:
    """The network links of the machine: /sys shows the namespace of the process that mounted it, not ours."""
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
    python = (sys.executable, "-c")
    run("exec", second, *python, KILLED, code=-signal.SIGKILL)
    run("exec", second, *python, CLEARED)
    run("exec", second, *python, KILLED, "off", code=-signal.SIGKILL)
    orphan = int(started(second, *python, ORPHAN))
    assert orphan in cluster.left(second).processes
    for pid in groups.pids(second.group())[::2]:
        os.kill(pid, signal.SIGKILL)
    kubectl.until("the cluster is seen to be broken", lambda: not cluster.is_up(second))

    run("down", second)
    assert not cluster.left(second)
    assert traces(second) == []
    assert links() == before
    assert _read(Path(f"/proc/{orphan}/cmdline")) == b""


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


def test_half_of_one_that_was_to_be_borrowed_goes_down_again(second: Layout, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for program in second.programs.iterdir():
        (programs / program.name).symlink_to(program)
    (programs / "kube-apiserver").unlink()
    (programs / "kube-apiserver").symlink_to("/bin/false")

    def borrow() -> None:
        with cluster.borrowed(replace(second, programs=programs), print):
            pytest.fail("its API server is none")

    with ThreadPoolExecutor(1) as pool, pytest.raises(BackendError, match="kube-apiserver: it ended"):
        pool.submit(borrow).result()  # in a thread, which is then in the other's network
    assert not cluster.left(second)
    assert traces(second) == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
