"""Types what a page of docs/ says, in a shell for each block, and reads what is printed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from tests.docs.page import File, Typed, missing, steps
from tests.e2e.author import MUSTER, Author

LONGEST_SECONDS = 600


def follow(author: Author, page: Path) -> None:
    """Do all that a page has its reader do, in order."""
    for step in steps(page):
        if isinstance(step, File):
            write(author, step)
        elif not step.note.startswith("not run"):
            type_in(author, step)


def write(author: Author, file: File) -> None:
    (author.folder / file.path).parent.mkdir(parents=True, exist_ok=True)
    (author.folder / file.path).write_text(file.text)


def terminal(author: Author, commands: str) -> subprocess.Popen[str]:
    """Type commands into a shell of their own."""
    return subprocess.Popen(
        ["bash", "-e", "-c", commands],
        cwd=author.folder,
        env=author.environment | {"PATH": f"{MUSTER.parent}:{author.environment['PATH']}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def read_on(shell: subprocess.Popen[str], expected: str) -> None:
    """Read what a shell says until it has said this; one that takes too long is ended."""
    assert shell.stdout is not None
    said = ""
    late = threading.Timer(LONGEST_SECONDS, os.killpg, (shell.pid, signal.SIGKILL))
    late.start()
    try:
        while missing(expected, said):
            line = shell.stdout.readline()
            assert line, f"{expected!r} was not said: {said[-4000:]}"
            said += line
    finally:
        late.cancel()


def type_in(author: Author, step: Typed) -> None:
    if "curl " in step.commands and shutil.which("curl") is None:
        pytest.skip("no curl here, which the page types")
    shell = terminal(author, step.commands)
    said, _ = shell.communicate(timeout=LONGEST_SECONDS)
    assert (shell.returncode != 0) == (step.note == "fails"), f"{step.commands}\n{said[-4000:]}"
    assert missing(step.prints, said) == [], f"{step.commands}\n{said[-4000:]}"
