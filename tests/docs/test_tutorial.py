"""The tutorial does what it says, to its end in two terminals."""

from __future__ import annotations

import os
import re
import signal
from itertools import dropwhile
from pathlib import Path

import pytest
from tests.docs.page import DOCS, Typed, missing, steps
from tests.docs.terminal import follow, read_on, terminal
from tests.e2e.author import WARM, Author
from tests.waiting import GUARD_SECONDS

TUTORIAL = DOCS / "tutorial.md"


@pytest.mark.slow
@pytest.mark.nightly  # cli/test_readme.py types a shorter way
def test_the_examples_run(tmp_path: Path) -> None:
    with Author(tmp_path, **WARM) as author:
        follow(author, TUTORIAL)


@pytest.mark.slow
@pytest.mark.nightly  # tests/e2e/test_faults.py kills a rank of a gang that imports no torch
def test_a_rank_is_killed_at_the_end(tmp_path: Path) -> None:
    """The run is in one terminal, and in the other who looks for the pid of rank 1 and kills it."""
    typed = [step for step in steps(TUTORIAL) if isinstance(step, Typed)]
    begin, look, kill = dropwhile(lambda step: "two terminals" not in step.note, typed)
    with Author(tmp_path, **WARM) as author:
        follow(author, TUTORIAL)
        first = terminal(author, begin.commands)
        try:
            read_on(first, "epoch=2/…")
            shown, _ = terminal(author, look.commands.split("activate\n")[1]).communicate(
                timeout=GUARD_SECONDS
            )
            assert missing(re.sub(r"pid \d+", "pid …", look.prints), shown) == [], shown
            (pid,) = re.findall(r"rank +1 .*pid +(\d+)", shown)
            terminal(author, re.sub(r"\d{4,}", pid, kill.commands)).communicate(timeout=GUARD_SECONDS)
            read_on(first, kill.prints)
            read_on(first, "epoch=1/…")
        finally:
            os.killpg(first.pid, signal.SIGINT)  # as Ctrl-C does
            first.communicate(timeout=GUARD_SECONDS)
        assert first.returncode == 130
