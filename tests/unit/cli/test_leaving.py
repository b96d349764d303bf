"""The end of a process that holds much: what has to be done is done, and nothing is freed object by object."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

PROGRAM = """
    import atexit, sys, threading

    class Heavy:
        def __del__(self):
            print("freed")

    held = Heavy()
    atexit.register(print, "registered")
    sys.stdout.write("written ")
    {more}
    from muster.core.forking import leave
    leave(3)
"""


def end(*, more: str = "") -> tuple[int, list[str]]:
    program = dedent(PROGRAM).format(more=more)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.returncode, done.stdout.split()


def test_nothing_is_freed_and_nothing_is_lost() -> None:
    assert end() == (3, ["written", "registered"])


def test_a_thread_that_has_to_be_waited_for_is() -> None:
    more = "threading.Thread(target=lambda: (threading.main_thread().join(), print('waited'))).start()"
    assert end(more=more) == (3, ["written", "waited", "registered"])


@pytest.mark.parametrize(
    ("shell", "code", "says"),
    [
        ("muster --version >/dev/full", 1, "muster: No space left on device\n"),
        ("muster --version >&-", 0, ""),
        ("muster volumes --help | true; exit ${PIPESTATUS[0]}", 141, ""),  # SIGPIPE, as of every program
    ],
)
def test_what_stdout_leads_to_is_no_bug(tmp_path: Path, shell: str, code: int, says: str) -> None:
    program = Path(sys.executable).with_name("muster")
    done = subprocess.run(
        ["bash", "-c", shell.replace("muster", str(program), 1)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "MUSTER_HOME": str(tmp_path / "home"), "MUSTER_NO_WARM": "1"},
    )
    assert (done.returncode, done.stderr) == (code, says)


@pytest.mark.parametrize(
    ("home", "does", "code", "says"),
    [
        (".", "(Path.home() / 'project' / 'missing.json').read_text()", 1, "FileNotFoundError"),
        (".", "a, b = socket.socketpair(); b.close(); a.send(b'x')", 1, "BrokenPipeError"),
        ("/proc", "Path('/proc/.cache').mkdir()", 1, "muster: No such file or directory: /proc/.cache\n"),
        ("/proc/none", "Path('/proc/none').mkdir()", 1, "muster: No such file or directory: /proc/none\n"),
    ],
)
def test_only_a_home_that_cannot_be_written_is_no_bug(
    tmp_path: Path, home: str, does: str, code: int, says: str
) -> None:
    (tmp_path / "project").mkdir()
    program = f"""
        import socket, typer
        from pathlib import Path
        from muster.cli import app
        command = typer.Typer(pretty_exceptions_enable=False)
        @command.command()
        def run():
            {does}
        app.named = lambda words: command
        app.main()
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path / home)},
    )
    assert done.returncode == code
    assert done.stderr == says if says.startswith("muster") else says in done.stderr
    assert ("Traceback" in done.stderr) is not says.startswith("muster")
