"""Every example of docs/ does what the page says, typed in a folder of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from itertools import dropwhile
from pathlib import Path

import pytest
from tests.docs.page import DOCS, ROOT, File, Typed, missing, pages, steps
from tests.e2e.author import MUSTER, Author

LONGEST_SECONDS = 600

PAGES = {str(page.relative_to(DOCS)): page for page in pages()}
RUN = [
    name
    for name, page in PAGES.items()
    if any(isinstance(s, Typed) and not s.note.startswith("not") for s in steps(page))
]


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_the_examples_run(name: str, tmp_path: Path) -> None:
    with Author(tmp_path) as author:
        for step in steps(PAGES[name]):
            if isinstance(step, File):
                write(author, step)
            elif not step.note.startswith("not run"):
                type_in(author, step)


@pytest.mark.slow
def test_a_rank_is_killed_as_the_tutorial_says(tmp_path: Path) -> None:
    """In two terminals: the run in one, and in the other who looks for the pid of rank 1 and kills it."""
    does = list(steps(PAGES["tutorial.md"]))
    typed = [step for step in does if isinstance(step, Typed)]
    begin, look, kill = dropwhile(lambda step: "two terminals" not in step.note, typed)
    with Author(tmp_path) as author:
        for file in [step for step in does if isinstance(step, File)]:
            write(author, file)
        for images in [step for step in typed if step.commands.startswith("muster images")]:
            type_in(author, images)
        first = terminal(author, begin.commands)
        try:
            read_on(first, "epoch=2/…")
            shown, _ = terminal(author, look.commands.split("activate\n")[1]).communicate(timeout=60)
            assert missing(re.sub(r"pid \d+", "pid …", look.prints), shown) == [], shown
            (pid,) = re.findall(r"rank +1 .*pid +(\d+)", shown)
            terminal(author, re.sub(r"\d{4,}", pid, kill.commands)).communicate(timeout=60)
            read_on(first, kill.prints)
            read_on(first, "epoch=1/…")
        finally:
            os.killpg(first.pid, signal.SIGINT)  # as Ctrl-C does
            first.communicate(timeout=60)
        assert first.returncode == 130


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


def test_a_shell_that_says_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.docs.test_pages.LONGEST_SECONDS", 0.1)
    with (
        subprocess.Popen(
            ["sleep", "600"], stdout=subprocess.PIPE, text=True, start_new_session=True
        ) as shell,
        pytest.raises(AssertionError, match="'something' was not said"),
    ):
        read_on(shell, "something")
    assert shell.returncode == -signal.SIGKILL


@pytest.mark.parametrize("expected", ["three", "two\none", "o…x", "one two"])
def test_a_line_that_is_not_printed_is_missed(expected: str) -> None:
    said = "one\n  two   words\n"
    assert missing(expected, said) != []
    assert missing("o…\ntwo words", said) == []


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name: str) -> None:
    page = PAGES[name]
    links = [link for link in re.findall(r"\]\(([^)#]+)", page.read_text()) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text()
    assert [name for name in PAGES if name != "index.md" and f"]({name})" not in index] == []
    assert "docs/index.md" in (ROOT / "README.md").read_text()
