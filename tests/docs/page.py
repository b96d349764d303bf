"""Reads a page of docs/ as a person does: files to write, commands to type, what they print.

- A block under a line that ends in a colon and begins with a path, "`dags/a/dag.py`:", is that file.
- A block of ``sh`` is typed. A block of ``text`` after it is what it prints: these lines, in this
  order, perhaps with others between; ``…`` stands for anything.
- ``<!-- fails -->`` before a block of ``sh``: its last command ends with an error.
- ``<!-- not run: why -->`` before it: it is only read. Nothing else is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"`([\w./-]+)`.*:\Z")
_NOTE = re.compile(r"<!-- (fails|not run: [^>]+) -->\Z")


@dataclass(frozen=True)
class File:
    """A file to write."""

    path: str
    text: str


@dataclass(frozen=True)
class Typed:
    """Commands to type in one shell, and what they print.

    :ivar note: ``fails``, ``not run: …`` or nothing.
    """

    commands: str
    prints: str
    note: str


def pages() -> list[Path]:
    """Every page that a person wrote; the two references are written by tests."""
    return sorted(page for page in DOCS.rglob("*.md") if "adr" not in page.parts and not _is_generated(page))


def steps(page: Path) -> Iterator[File | Typed]:
    """What the page has its reader do, in order; raise ValueError for a block that is none of these."""
    text = page.read_text()
    blocks = list(_BLOCK.finditer(text))
    for number, block in enumerate(blocks):
        before = text[: block.start()].rstrip().rpartition("\n")[2]
        language, body = block.groups()
        file = _FILE.match(before)
        if file and (language != "sh" or file[1].endswith(".sh")):  # a sentence may begin with a path, too
            yield File(file[1], body)
        elif language == "sh":
            after = blocks[number + 1] if number + 1 < len(blocks) else None
            prints = (
                after[2]
                if after and after[1] == "text" and not text[block.end() : after.start()].strip()
                else ""
            )
            note = _NOTE.match(before)
            yield Typed(body, prints, note[1] if note else "")
        elif language != "text":
            raise ValueError(f"{page.name}: a block of {language or 'nothing'} after {before!r} is no file")


def missing(expected: str, said: str) -> list[str]:
    """The expected lines that were not said, or not in this order."""
    lines = iter(_words(line) for line in said.splitlines())
    return [line for line in expected.splitlines() if line.strip(" …") and not _any(line, lines)]


def _any(line: str, lines: Iterator[str]) -> bool:
    pattern = re.sub(r"(\\ )?…(\\ )?", ".*", re.escape(_words(line)))
    return any(re.search(pattern, said) for said in lines)


def _words(line: str) -> str:
    return " ".join(line.split())


def _is_generated(page: Path) -> bool:
    return page.parent == DOCS and page.name in ("command.md", "reference.md")
