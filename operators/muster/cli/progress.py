"""Progress of long work on stderr: one line that changes on a terminal, a line each anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from muster.cli.screen import note, safe


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Give a function that shows what is being done; nothing is left of it when the work is done."""
    if not sys.stderr.isatty():
        yield lambda line: note(safe(line))
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status("") as status:
        yield lambda line: status.update(Text(safe(line)))
