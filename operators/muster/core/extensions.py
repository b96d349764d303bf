"""What an extension adds to muster, and how extensions are found.

The core is the road of a model. A capability beside the road is an extension: one folder, ``muster/ext/NAME``, or a
distribution of somebody else's. Both are found by the entry-point group ``muster.extensions``, whose entries name an
:class:`Extension`. The core imports none of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

GROUP = "muster.extensions"


@dataclass(frozen=True, kw_only=True)
class Extension:
    """What one extension adds, all of it as names: a module is imported when what it adds is first used.

    :param operators: the module of each name that it adds to :mod:`muster.airflow`.
    :param decorators: the module of each task decorator, ``@task.NAME``.
    :param links: the classes of its links on a task, ``module.Class``.
    :param commands: ``module:function``, called with the groups of the command ``muster`` by name: the command itself
        is ``""``. The function adds to them.
    :param routes: ``module:router``, a FastAPI router of the page's JSON, in the order in which they are asked.
    """

    operators: Mapping[str, str] = field(default_factory=dict)
    decorators: Mapping[str, str] = field(default_factory=dict)
    links: tuple[str, ...] = ()
    commands: str | None = None
    routes: tuple[str, ...] = ()


def extensions() -> Mapping[str, Extension]:
    """Return every installed extension by its name, sorted. One that cannot be loaded is among :func:`problems`."""
    return _found()[0]


def problems() -> tuple[str, ...]:
    """Return why an extension that is installed cannot be used, a message for each."""
    return _found()[1]


@cache
def _found() -> tuple[Mapping[str, Extension], tuple[str, ...]]:
    found: dict[str, Extension] = {}
    wrong = []
    for name, place in sorted(_entries()):
        try:
            extension = load(place)
        except Exception as error:  # whatever its module raises: the rest of muster goes on without it
            problem = f"cannot be loaded ({type(error).__name__}: {error})"
        else:
            if name in found:
                problem = "has the name of another extension"
            elif isinstance(extension, Extension):
                found[name] = extension
                continue
            else:
                problem = f"is a {type(extension).__name__}, not a muster.core.extensions.Extension"
        wrong.append(
            f"the extension {name!r} ({place}) {problem}: upgrade the distribution that has it, or uninstall it"
        )
    return found, tuple(wrong)


def load(place: str) -> Any:
    """Return what ``module:name`` names."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def added(what: Callable[[Extension], Mapping[str, str]]) -> dict[str, str]:
    """Return a mapping of all extensions as one."""
    return {name: place for each in extensions().values() for name, place in what(each).items()}


def _entries() -> Iterator[tuple[str, str]]:
    """Yield the name and the place of each entry of the group.

    ``importlib.metadata`` would read and parse the metadata of every distribution, which takes 15 to 80 ms where
    Airflow is installed; these files are small, and this takes 2.
    Format: https://packaging.python.org/en/latest/specifications/entry-points/
    """
    known = set()
    for folder in dict.fromkeys(sys.path):
        try:
            distributions = [each for each in os.scandir(folder or ".") if each.name.endswith(".dist-info")]
        except OSError:  # an archive, or a folder that is not there
            continue
        for distribution in distributions:
            try:
                text = Path(distribution.path, "entry_points.txt").read_text(encoding="utf-8")
            except (FileNotFoundError, NotADirectoryError):
                continue
            project = distribution.name.partition("-")[0]
            if (
                f"[{GROUP}]" in text and project not in known
            ):  # what stands first on the path is what is imported
                known.add(project)
                yield from _group(text)


def _group(text: str) -> Iterator[tuple[str, str]]:
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line
        elif section == f"[{GROUP}]" and "=" in line and not line.startswith(("#", ";")):
            name, _, place = line.partition("=")
            yield name.strip(), place.strip()
