"""Memory limits, by the kernel and by looking."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import GUARD_SECONDS, until

from muster.backends.local.limits import Cgroup, Polled, end_left_behind, left_behind, make_cgroup
from muster.backends.local.processes import Process

HOLD = "import os, sys, time; held = b'x' * ({mib} << 20); print('up', flush=True); time.sleep(600)"


def parent_of(code: str, **environment: str) -> subprocess.Popen[bytes]:
    """A worker with one rank below it, as limits see them."""
    worker = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {code!r}]); sys.exit(p.wait() != 0)"
    return subprocess.Popen(
        [sys.executable, "-c", worker], stdout=subprocess.PIPE, env={**os.environ, **environment}
    )


def wait_for_line(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"


def end(process: subprocess.Popen[bytes]) -> None:
    process.wait(timeout=GUARD_SECONDS)
    assert process.stdout is not None
    process.stdout.close()


def test_a_look_finds_what_outgrew_its_limit_and_ends_it() -> None:
    worker = parent_of(HOLD.format(mib=200), MUSTER_RANK="3")
    wait_for_line(worker)
    assert Polled(1.0).overrun(worker.pid) is None
    overrun = Polled(0.1).overrun(worker.pid)
    assert overrun is not None
    assert overrun.rank == 3
    assert overrun.limit_gib == 0.1
    assert 0.19 < overrun.used_gib < 0.3
    end(worker)


def test_pages_that_ranks_share_count_once() -> None:
    code = (
        "import mmap, os, time\n"
        "shared = mmap.mmap(-1, 100 << 20); shared.write(b'x' * (100 << 20))\n"
        "if os.fork(): print('up', flush=True)\n"
        "sum(shared[::4096]); time.sleep(600)\n"
    )
    worker = parent_of(code)
    wait_for_line(worker)
    assert Polled(0.18).overrun(worker.pid) is None
    assert Polled(0.05).overrun(worker.pid) is not None
    end(worker)


@pytest.fixture
def group() -> Iterator[Cgroup]:
    group = make_cgroup(f"muster.test-{os.getpid()}.1-main-0", 0.1)
    if group is None:
        pytest.skip("no cgroup can be made here")
    yield group
    end_left_behind(f"test-{os.getpid()}")  # also after a test that has failed


def test_cpus_are_a_weight_in_the_kernels_own_count() -> None:
    group = make_cgroup(f"muster.test-shares-{os.getpid()}.1-main-0", 1.0, cpus=2.5)
    if group is None or group.shares is None:
        pytest.skip("no cgroup v1 with CPU shares can be made here")
    held = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    group.enter(held.pid)
    assert (group.shares / "cpu.shares").read_text().strip() == "2560"
    assert (group.shares / "cgroup.procs").read_text().split() == [str(held.pid)]
    held.communicate()
    group.close()
    assert not group.shares.exists()
    assert not group.folder.exists()


def test_the_kernel_keeps_a_cgroups_limit_and_counts(group: Cgroup) -> None:
    held = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(mib=300)], preexec_fn=lambda: group.enter(os.getpid())
    )
    assert held.wait(timeout=GUARD_SECONDS) == -9
    overrun = group.overrun(held.pid)
    assert overrun is not None
    assert overrun.used_gib == pytest.approx(0.1, abs=0.01)
    group.close()
    assert not group.folder.exists()


def test_what_stays_within_its_cgroup_is_let_be(group: Cgroup) -> None:
    quiet = subprocess.Popen([sys.executable, "-c", "pass"], preexec_fn=lambda: group.enter(os.getpid()))
    assert quiet.wait(timeout=GUARD_SECONDS) == 0
    assert group.overrun(quiet.pid) is None
    group.close()


@pytest.fixture
def left(group: Cgroup) -> subprocess.Popen[bytes]:
    """A process in the cgroup of a job that is lost."""
    left = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(mib=1)],
        preexec_fn=lambda: group.enter(os.getpid()),
        stdout=subprocess.PIPE,
    )
    wait_for_line(left)
    return left


def test_the_cgroup_of_a_lost_job_is_found_again(group: Cgroup, left: subprocess.Popen[bytes]) -> None:
    assert left_behind(f"test-{os.getpid()}") == [left.pid]
    left.kill()
    end(left)
    assert left_behind(f"test-{os.getpid()}") == []
    assert not group.folder.exists()


def test_what_a_lost_job_left_running_is_ended_and_its_cgroups_go(
    group: Cgroup, left: subprocess.Popen[bytes]
) -> None:
    end_left_behind(f"test-{os.getpid()}")
    assert left.wait(timeout=GUARD_SECONDS) == -9
    end(left)
    assert not any(folder.exists() for folder in (group.folder, group.shares) if folder)


def test_version_2_is_used_where_memory_is_handed_on(tmp_path: Path) -> None:
    """The kernel of this machine may know version 1 alone; the files are the same anywhere."""
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids")
    group = make_cgroup("muster.j.1-main-0", 0.5, mount=tmp_path)
    assert group is not None
    assert (group.folder / "memory.max").read_text() == str(512 << 20)
    assert (group.folder / "memory.swap.max").read_text() == "0"
    (group.folder / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 0\n")
    assert group.overrun(1) is None
    (group.folder / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\n")
    (group.folder / "memory.peak").write_text(f"{512 << 20}\n")
    overrun = group.overrun(1)
    assert overrun is not None
    assert (overrun.used_gib, overrun.limit_gib) == (0.5, 0.5)


def test_without_delegation_there_is_no_cgroup(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("cpu pids")
    assert make_cgroup("muster.j.1-main-0", 0.5, mount=tmp_path) is None
    assert not (tmp_path / "muster.j.1-main-0").exists()


def test_the_process_that_was_ended_is_gone() -> None:
    worker = parent_of(HOLD.format(mib=50))
    wait_for_line(worker)
    assert Polled(0.01).overrun(worker.pid) is not None
    end(worker)
    assert until(lambda: Process.find(worker.pid) is None)
