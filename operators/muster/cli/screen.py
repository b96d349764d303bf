"""Output to the screen: safe text, tables, one JSON document, and notes on stderr.

Answers go to stdout, everything else (notes, progress, errors) to stderr, so that a script reads
only its answer. Names, messages and log lines come from others: none of their control characters
reaches the terminal.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TextIO

import typer

from muster.core.names import JOB_ID_LENGTH
from muster.core.room import size as size
from muster.core.text import escaped, lasting, shortened
from muster.core.wire import plain

_STDOUT, _STDERR = 1, 2
_kept: list[TextIO] = []  # the original stdout, while it is kept for the document
STATE_COLOURS = {
    "succeeded": "green",
    "success": "green",
    "serving": "green",
    "ok": "green",
    "kept": "cyan",
    "running": "cyan",
    "committing": "cyan",
    "warn": "yellow",
    "failed": "red",
    "refused": "red",
    "bad": "red",
}


def safe(text: object) -> str:
    """Return `text` as one line without control characters (:func:`muster.core.text.escaped`)."""
    return escaped(str(text))


def say(text: str = "", *, style: str | None = None, bold: bool | None = None) -> None:
    """Print a line of an answer on stdout; `text` is muster's own or was escaped by :func:`safe`.

    Colours are removed if the output is no terminal, or if NO_COLOR is set.
    """
    typer.secho(text, fg=style, bold=bold)


def note(text: str = "", *, style: str | None = None) -> None:
    """Print a note on stderr, where no script reads it."""
    typer.secho(text, fg=style, err=True)


def program(name: str) -> str:
    """Return what to type for a program of this environment: its name where PATH has it, else its path."""
    path = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if found and (not path.exists() or path.samefile(found)):  # else it is another environment's
        return name
    return quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def complain(message: object) -> None:
    """Print an error on stderr: its lines stay lines, other control characters are escaped."""
    first, *rest = str(message).splitlines() or [""]
    typer.secho("muster: ", fg="red", bold=True, err=True, nl=False)
    typer.echo(safe(first), err=True)
    for line in rest:
        typer.echo(f"  {safe(line)}", err=True)


def emit(document: object) -> None:
    """Print the one JSON document of a ``--json`` command; dataclasses become objects."""
    answer = _kept[-1] if _kept else sys.stdout
    indent = 2 if answer.isatty() else None
    text = json.dumps(plain(document), allow_nan=False, ensure_ascii=True, indent=indent)
    typer.echo(text, file=answer)


@contextmanager
def kept_for_the_document() -> Iterator[None]:
    """Keep stdout for :func:`emit`: what libraries, tasks or programs print there meanwhile goes to stderr."""
    sys.stdout.flush()
    try:
        shared = sys.stdout.fileno() == _STDOUT
    except OSError:  # stdout is replaced by an object that is no file
        shared = False
    with ExitStack() as after:
        if shared:
            answer: TextIO = after.enter_context(os.fdopen(os.dup(_STDOUT), "w", encoding="ascii"))
            os.dup2(_STDERR, _STDOUT)
            after.callback(os.dup2, answer.fileno(), _STDOUT)
            # before the switch back: what is still buffered belongs to stderr
            after.callback(sys.stdout.flush)
        else:
            answer = sys.stdout
            after.enter_context(redirect_stdout(sys.stderr))
        _kept.append(answer)
        after.callback(_kept.pop)
        yield


def answers_go_to() -> int:
    """Return the file of answers: stdout, also while it is kept for the document."""
    return (_kept[-1] if _kept else sys.stdout).fileno()


def when(epoch_seconds: float | None) -> str:
    """Return a time in local time, to the second; ``-`` for None."""
    if epoch_seconds is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(epoch_seconds))


def seconds(duration_seconds: float | None) -> str:
    """Return a duration for people, as :func:`muster.core.text.lasting`; ``-`` for None."""
    return "-" if duration_seconds is None else lasting(duration_seconds)


def digest(text: str | None, *, digits: int = 8) -> str:
    """Return the beginning of a digest, which is long enough for an address: ``b3:9f2c41aa``."""
    return "-" if not text else text[: len("b3:") + digits]


@dataclass
class Table:
    """Rows in aligned columns; ``>`` before a column's name aligns it to the right.

    On a terminal each row is one line: the last column is cut at the window's edge, and of one that is wider a column
    that takes more than a third of it. In a pipe nothing is cut.
    """

    columns: Sequence[str]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        """Add a row; None and empty text show as ``-``."""
        self.rows.append(tuple(safe("-" if cell in (None, "") else cell) for cell in cells))

    def lines(self, *, width: int | None = None) -> Iterable[str]:
        """Yield the head and the rows, with coloured states; the last column is cut at `width`."""
        names = [name.removeprefix(">") for name in self.columns]
        table = [tuple(names), *self.rows]
        widths = [max(len(row[i]) for row in table) for i in range(len(names))]
        if width is not None and sum(widths[:-1]) > width:
            widths = [min(wide, max(width // 3, JOB_ID_LENGTH)) for wide in widths]
            table = [tuple(map(shortened, row, widths[:-1])) + row[-1:] for row in table]
        room = None if width is None else max(width - sum(widths[:-1]) - 2 * (len(widths) - 1), 12)
        for row in table:
            cells = [self._set(row, i, wide) for i, wide in enumerate(widths[:-1])]
            last = _painted(row[-1] if room is None else shortened(row[-1], room))
            if self.columns[-1].startswith(">"):
                last = row[-1].rjust(widths[-1])
            yield "  ".join([*cells, last]).rstrip()

    def _set(self, row: tuple[str, ...], i: int, wide: int) -> str:
        padding = " " * (wide - len(row[i]))
        cell = _painted(row[i])
        return padding + cell if self.columns[i].startswith(">") else cell + padding

    def show(self, *, empty: str) -> None:
        """Print the table; if it has no rows, print `empty` on stderr."""
        if not self.rows:
            note(empty)
            return
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        head, *rows = self.lines(width=width)
        say(head, bold=True)
        for line in rows:
            say(line)


def _painted(cell: str) -> str:
    return typer.style(cell, fg=STATE_COLOURS[cell]) if cell in STATE_COLOURS else cell


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values in two columns, without empty values."""
    shown = [(name, safe(value)) for name, value in pairs if value not in (None, "", ())]
    wide = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        say(f"{typer.style(name.ljust(wide), dim=True)}  {value}")
