"""A fork is to the outside what a program would be: its session, streams, signals and end are its own."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from tests.waiting import until

from muster.backends.local.processes import Process

HEAD = """
    import os, signal, sys, threading, time
    from pathlib import Path
    from muster.ext.up.components import ForkedComponent
    from muster.core.locks import locked

    def forked(work):
        with open("log", "ab") as log:
            return ForkedComponent(work, log=log.fileno())

"""


def program(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    """Run a program that forks: this process has threads, and must not."""
    return subprocess.run(
        [sys.executable, "-c", dedent(HEAD) + dedent(body)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_how_it_ended_is_what_popen_says(tmp_path: Path) -> None:
    ran = program(
        tmp_path,
        """
        def fail(): raise ValueError("why")
        def leave(): sys.exit("no good")
        ends = [lambda: None, lambda: sys.exit(3), leave, fail, lambda: os.kill(os.getpid(), signal.SIGKILL)]
        print([forked(end).wait() for end in ends])
        long = forked(lambda: time.sleep(600))
        assert long.poll() is None
        long.send_signal(signal.SIGTERM)
        print(long.wait(), long.poll())
        long.send_signal(signal.SIGTERM)
        long.kill()
        """,
    )
    assert ran.stdout.splitlines() == ["[0, 3, 1, 1, -9]", "-15 -15"], ran.stderr
    log = (tmp_path / "log").read_text()
    assert "no good" in log
    assert "ValueError: why" in log


def test_streams_signals_and_session_are_its_own(tmp_path: Path) -> None:
    ran = program(
        tmp_path,
        """
        print("of the parent", end="")
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD})
        def work():
            print(os.getsid(0) == os.getpid(), repr(sys.stdin.read()), signal.pthread_sigmask(signal.SIG_BLOCK, ()))
            print([repr(signal.getsignal(n)) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)])
            print("ä", file=sys.stderr)
            os.write(1, b"raw\\n")
        print(forked(work).wait())
        """,
    )
    assert ran.stdout == "of the parent0\n"
    assert ran.stderr == ""
    session, handlers, *rest = (tmp_path / "log").read_text().splitlines()
    assert session == "True '' set()"
    assert [word in handlers for word in ("SIG_DFL", "SIG_IGN", "default_int_handler")] == [True] * 3
    assert rest == ["ä", "raw"]


def test_it_ends_as_python_does_and_frees_nothing(tmp_path: Path) -> None:
    ran = program(
        tmp_path,
        """
        import atexit
        class Heavy:
            def __del__(self): print("freed")
        def work():
            global held
            held = Heavy()
            atexit.register(print, "registered")
            threading.Thread(target=lambda: (threading.main_thread().join(), print("waited"))).start()
            sys.stdout.write("written ")
        print(forked(work).wait())
        """,
    )
    assert ran.stdout == "0\n", ran.stderr
    assert (tmp_path / "log").read_text() == "written waited\nregistered\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_its_parent_whose_lock_it_does_not_keep(tmp_path: Path, number: signal.Signals) -> None:
    body = """
        def work():
            Path("pid").write_text(str(os.getpid()))
            time.sleep(600)
        with locked(Path("lock")):
            forked(work)
            time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", dedent(HEAD) + dedent(body)], cwd=tmp_path) as parent:
        assert until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        child = Process.find(int((tmp_path / "pid").read_text()))
        assert child is not None
        parent.send_signal(number)
        parent.wait()
        with (tmp_path / "lock").open() as lock:
            fcntl.flock(
                lock, fcntl.LOCK_EX | fcntl.LOCK_NB
            )  # it fails where another process still holds the lock
    assert until(lambda: not child.alive)
