"""What an extension adds to muster, and how extensions are found.

The core is the road of a model. A capability beside the road is an extension: one folder, ``muster/ext/NAME``, or
another distribution. Both are found by the entry-point group ``muster.extensions``, whose entries name an
:class:`Extension`. The core imports none of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from muster.core.errors import SpecError

GROUP = "muster.extensions"
Added = TypeVar("Added")


@dataclass(frozen=True, kw_only=True)
class Tab:
    """A tab of the page in Airflow, at ``#/ROOM``.

    :param script: a file in the extension's folder `static`. It exports ``choose(name, asked)``, which is given what
        follows the room in the address, and returns the entry of the navigation, a function that draws, and its arguments.
    :param listed: whether the navigation has an entry for it.
    """

    room: str
    title: str
    script: str
    listed: bool = True


@dataclass(frozen=True, kw_only=True)
class Gauge:
    """A metric. :param look: ``module:function``, called with the store; yields the labels' values with a number, which add up."""

    name: str
    means: str
    labels: tuple[str, ...]
    look: str


@dataclass(frozen=True, kw_only=True)
class Extension:
    """What one extension adds, all of it as names: a module is imported when what it adds is first used.

    :param extra: the extra of muster without which its operators are refused where a Dag is parsed.
    :param operators: the module of each name that it adds to :mod:`muster.airflow`.
    :param decorators: the module of each task decorator, ``@task.NAME``.
    :param links: the classes of its links on a task, ``module.Class``.
    :param triggers: the module of each trigger that Airflow's database names as one of
        :mod:`muster.airflow.attempts.trigger`, or of a module that it was in before.
    :param commands: ``module:function``, called with the groups of the command ``muster`` by name: the command itself
        is ``""``. The function adds to them.
    :param checks: ``module:function`` of ``muster doctor``, called with the settings; yields each
        :class:`muster.core.check.Check`.
    :param settings: its options under ``[muster]`` in Airflow's configuration, by name, as a provider describes them.
    :param routes: ``module:router``, a FastAPI router of the page's JSON, in the order in which they are asked.
    :param static: its folder of files for the page, which has them at ``static/NAME/``, where NAME is the extension's.
    :param calls: ``module:function``, which yields calls of the store service, as the ``routes`` of its own modules do.
    :param reading: ``module:function``, called with a class of stores and the settings: it returns what opens such a store,
        one that reads what it lacks from the mirror that the settings name.
    :param tallied: ``module:function`` for each, called with the store's folder, a job's spec, status and tally, what returns
        its series, and whether the status is recorded: when the job is given its resources for the first time, and when it
        ends, just before and just after that is recorded.
    :param held: ``module:function`` for each, called with a store, a job that waits, its tally, and whether it is submitted
        for the first time: returns why it must not start yet, empty where it may. Of no job (None): why some must not.
    :param planned: ``module:function`` for each, called with a store, a Dag's id and team, the jobs of a plan, and its GPU- and
        CPU-hours: yields what a plan warns of.
    :param collected: ``module:function`` for each, called with the store's folder when gc has deleted what is old.
    :param reconciled: ``module:function`` for each, called with the store once a minute where Airflow's database can be read.
    :param gauges: what ``muster metrics`` tells of it.
    :param teams: ``module:function``, called with the file that ``[muster] teams`` names: it returns the site's teams, as
        ``muster.airflow.teams.Teams`` describes them.
    :param repair: ``module:class`` of what ``muster volumes fsck --repair-from`` mends a store with.
    """

    extra: str | None = None
    operators: Mapping[str, str] = field(default_factory=dict)
    decorators: Mapping[str, str] = field(default_factory=dict)
    links: tuple[str, ...] = ()
    triggers: Mapping[str, str] = field(default_factory=dict)
    commands: str | None = None
    checks: tuple[str, ...] = ()
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    routes: tuple[str, ...] = ()
    static: Path | None = None
    tabs: tuple[Tab, ...] = ()
    calls: str | None = None
    reading: str | None = None
    tallied: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    planned: tuple[str, ...] = ()
    collected: tuple[str, ...] = ()
    reconciled: tuple[str, ...] = ()
    gauges: tuple[Gauge, ...] = ()
    teams: str | None = None
    repair: str | None = None


def extensions() -> Mapping[str, Extension]:
    """Return every installed extension by its name, sorted. One that cannot be loaded is among :func:`problems`."""
    return find()[0]


def problems() -> tuple[str, ...]:
    """Return why an extension that is installed cannot be used, or a part of it that :func:`used` was asked for."""
    return tuple(find()[1])


@cache
def find() -> tuple[Mapping[str, Extension], dict[str, None]]:
    """Return every installed extension by its name, and why others cannot be used: found once in a process."""
    found: dict[str, Extension] = {}
    wrong: dict[str, None] = {}
    for name, place in sorted(_entries()):
        try:
            extension = load(place)
            if name in found:
                raise ValueError("another extension has its name")
            if not isinstance(extension, Extension):
                raise TypeError(f"it is a {type(extension).__name__}, not a muster.core.extensions.Extension")
        except Exception as error:  # whatever its module raises: the rest of muster goes on without it
            wrong[_problem(name, place, error)] = None
        else:
            found[name] = extension
    return found, wrong


def _problem(name: str, place: str, error: Exception) -> str:
    why = f"cannot be loaded ({type(error).__name__}: {error})"
    return f"the extension {name!r} ({place}) {why}: upgrade the distribution that has it, or uninstall it"


def used(what: Callable[[Extension], Iterable[str]]) -> Iterator[Any]:
    """Yield what the extensions name there, imported; what cannot be imported is among :func:`problems` from then on."""
    for name, extension in extensions().items():
        for place in what(extension):
            try:
                found = load(place)
            except Exception as error:  # as above
                find()[1][_problem(name, place, error)] = None
            else:
                yield found


def load(place: str) -> Any:
    """Return what ``module:name`` names."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def only(what: Callable[[Extension], str | None], *, needed_by: str) -> Any:
    """Return what the first extension names that has it. :raises SpecError: none has; it says what needs it."""
    for each in extensions().values():
        if (place := what(each)) is not None:
            return load(place)
    raise SpecError("\n".join((f"{needed_by}: no extension that is installed does this", *problems())))


def added(what: Callable[[Extension], Mapping[str, Added]]) -> dict[str, Added]:
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
                text = Path(distribution.path, "entry_points.txt").read_text(
                    encoding="utf-8", errors="replace"
                )
            except OSError:  # it has none, or only others may read it
                continue
            project = distribution.name.partition("-")[0]
            # What stands first on the path is what is imported.
            if f"[{GROUP}]" in text and project not in known:
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
