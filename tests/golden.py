"""Documents that a person reviews: each kind whole once, every other one by the lines in which it differs from that.

A whole file and a difference that match are the whole other file, to the letter.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_CONTEXT_LINES = 1


class _Plain(yaml.SafeDumper):
    """Writes what is there twice twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def text(document: Any) -> str:
    """Return a document as YAML."""
    return yaml.dump(document, Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True)


def difference(whole: str, other: str, *, names: tuple[str, str]) -> str:
    """Return how `other` differs from `whole`, as a unified diff; nothing where they are the same."""
    lines = whole.splitlines(keepends=True), other.splitlines(keepends=True)
    return "".join(difflib.unified_diff(*lines, *names, n=_CONTEXT_LINES))


def files(texts: Mapping[str, str], *, like: Mapping[str, str]) -> dict[str, str]:
    """Return each file's text by its name: ``NAME.diff`` for one that is like another, else ``NAME.yaml``."""
    return {
        **{f"{name}.yaml": text for name, text in texts.items() if name not in like},
        **{
            f"{name}.diff": difference(texts[whole], texts[name], names=(whole, name))
            for name, whole in like.items()
        },
    }


def kept(folder: Path) -> dict[str, str]:
    """Return what was reviewed, in the form of :func:`files`."""
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def write(folder: Path, made: Mapping[str, str]) -> None:
    """Write the files anew, and remove those that are no longer made."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")
