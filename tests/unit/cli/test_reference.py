"""docs/command.md says what the help says. Write it again: ``python tests/unit/cli/test_reference.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from muster.cli.app import app, named

PAGE = Path(__file__).parents[3] / "docs" / "command.md"
HEAD = """# The command

What `muster COMMAND --help` prints, for every command. Answers go to stdout, everything else to
stderr; `--json`, which every command has that reads, prints one JSON document. The exit code is 0, or 1 with one message on stderr, 2 for a
wrong option, 3 if `muster run --resume` has nothing to run, 130 after Ctrl-C, 141 if the reader of its output has closed the pipe.

## JSON
The fields of a document are those of the objects that [the reference](reference.md) describes, by the same names. In all documents:

- A time is in seconds since 1970 (UTC), a duration in seconds, a size in bytes; the name says so (`size_bytes`, `wall_seconds`), or the field is a time by its
  meaning (`created`, `submitted`, `ended`, `time`).
- A version is named by its address, `volume://flights/model@3`; contents are named by digests, `b3:…`.
- What there is none of is `null`; a list or mapping without entries is empty. A field that a later release adds may be ignored.
"""


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command, groups first, in the order of the help."""
    yield path
    for name in group.list_commands(None) if hasattr(group, "commands") else ():
        yield from commands(group.commands[name], (*path, name))


def page() -> str:
    parts = [HEAD]
    for path in commands(typer.main.get_command(app)):
        shown = (
            CliRunner()
            .invoke(named(path), [*path, "--help"], prog_name="muster", env={"COLUMNS": "100"})
            .stdout
        )
        lines = "\n".join(line.rstrip() for line in shown.strip().splitlines())
        parts.append(f"## {' '.join(('muster', *path))}\n```\n{lines}\n```\n")
    return "\n".join(parts)


def test_the_reference_is_what_the_help_says() -> None:
    assert PAGE.read_text() == page()


if __name__ == "__main__":
    PAGE.write_text(page())
