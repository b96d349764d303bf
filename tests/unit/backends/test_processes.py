"""Who is who among processes, and what becomes of strays."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from tests.waiting import GUARD_SECONDS

from muster.backends.local import processes
from muster.backends.local.processes import MARK_VARIABLE, Process
from muster.core.linux import adopt_orphans, die_with

SLEEP = [sys.executable, "-c", "print('up', flush=True); import time; time.sleep(600)"]


def run(code: Callable[[], None]) -> int:
    """Run `code` in a fork of this process and return how it ended."""
    pid = os.fork()
    if pid == 0:
        try:
            code()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_process_is_told_from_a_later_one_with_its_pid() -> None:
    me = Process.me()
    assert me.alive
    assert not replace(me, started=me.started - 1).alive
    assert not replace(me, boot="another").alive


def test_only_the_very_process_is_killed() -> None:
    sleeper = subprocess.Popen(SLEEP, stdout=subprocess.PIPE)
    found = Process.find(sleeper.pid)
    assert found is not None
    replace(found, started=found.started + 1).kill()
    assert sleeper.poll() is None
    found.kill()
    assert sleeper.wait(timeout=GUARD_SECONDS) == -signal.SIGKILL
    found.kill()
    assert sleeper.stdout is not None
    sleeper.stdout.close()


def test_strays_of_a_job_are_found_by_their_mark_and_ended() -> None:
    environment = {**os.environ, MARK_VARIABLE: f"stray-{os.getpid()}"}
    stray = subprocess.Popen(SLEEP, env=environment, start_new_session=True, stdout=subprocess.PIPE)
    other = subprocess.Popen(
        SLEEP, env={**environment, MARK_VARIABLE: f"stray-{os.getpid()}-2"}, stdout=subprocess.PIPE
    )
    for process in (stray, other):
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
    assert processes.marked(f"stray-{os.getpid()}") == [stray.pid]
    processes.end_strays(f"stray-{os.getpid()}")
    assert stray.wait(timeout=GUARD_SECONDS) == -signal.SIGKILL
    assert other.poll() is None
    other.kill()
    other.wait(timeout=GUARD_SECONDS)


def test_ranks_are_what_workers_started_in_sessions_of_their_own() -> None:
    mark = f"gang-{os.getpid()}"
    worker = (
        "import os, subprocess, sys, time\n"
        "sleep = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "aside = subprocess.Popen(sleep)\n"
        "for rank in range(2):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        os.setsid(); subprocess.Popen(sleep, start_new_session=True); os.write(1, b'up\\n'); time.sleep(600)\n"
        "    os.write(1, f'{pid}\\n'.encode())\n"
        "time.sleep(600)\n"
    )
    environment = {**os.environ, MARK_VARIABLE: mark}
    started, workers = [], []
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", worker], env=environment, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        with process.stdout as said:
            lines = [said.readline().strip() for _ in range(4)]
        workers.append(process)
        started += [int(line) for line in lines if line != "up"]
    try:
        assert processes.ranks(mark) == started
        os.kill(started[0], signal.SIGKILL)
        assert set(processes.ranks(mark)) - {started[0]} == set(started[1:])
    finally:
        processes.end_strays(mark)
        for process in workers:
            process.wait(timeout=GUARD_SECONDS)
    assert processes.ranks(mark) == []


def test_a_subreaper_ends_whatever_it_started_however_it_hides() -> None:
    def supervise() -> None:
        adopt_orphans()
        hide = "import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True, env={})"
        for _ in range(3):
            subprocess.run([sys.executable, "-c", hide], check=True)
        assert len(processes.descendants(os.getpid())) == 3
        processes.end_descendants()
        assert processes.descendants(os.getpid()) == []

    assert run(supervise) == 0


def test_a_child_dies_with_its_parent() -> None:
    read, write = os.pipe()

    def parent() -> None:
        me = os.getpid()
        child = subprocess.Popen(SLEEP, preexec_fn=lambda: die_with(me), stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        os.write(write, str(child.pid).encode())
        os.kill(me, signal.SIGKILL)

    assert run(parent) == -signal.SIGKILL
    child = int(os.read(read, 32))
    with suppress(ProcessLookupError):  # it is gone already; else the kernel's signal is still on its way
        watch = os.pidfd_open(child)
        assert select.select([watch], [], [], 10)[0]
        os.close(watch)
    os.close(read)
    os.close(write)
