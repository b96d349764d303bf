"""Public names that were renamed: each works under its old name for one release, with a warning that says what to write.

The table is :data:`NAMES`. Its keys are spelled as ``tests/unit/airflow/public_names.txt`` lists names::

    "muster.airflow.Rank"                   a name that a Dag imports
    "muster.airflow.JobOperator(gpus)"      a keyword of an operator and of those that inherit from it
    "MUSTER_STORE"                          an environment variable
    "muster volumes ls --old"               an option of a command
    "json JobStatus.old"                    a key of JSON; the dataclass keeps a property of that name
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Renamed:
    """What an old name is called now; it is removed in the release `goes`.

    :param now: the bare name, such as ``gpus`` or ``--new``.
    """

    now: str
    goes: str

    def text(self, name: str) -> str:
        """Return the one sentence that every place warns with."""
        return f"{name} is now {self.now}; {name} goes with release {self.goes}"


NAMES: dict[str, Renamed] = {}


def current(name: str, *, stacklevel: int = 2) -> str | None:
    """Return what an old name is called now, with a DeprecationWarning; None where the name is not an old one.

    :param stacklevel: as :func:`warnings.warn` counts, from the caller: 2 is the caller's caller.
    """
    if name not in NAMES:
        return None
    warnings.warn(NAMES[name].text(name), DeprecationWarning, stacklevel=stacklevel + 1)
    return NAMES[name].now


def old_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are set under an old name alone, under their names of now; warn of each old name."""
    found = {}
    for name, text in environment.items():
        now = current(name, stacklevel=3) if name in NAMES else None
        if now is not None and now not in environment:
            found[now] = text
    return found


def old_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return a command's words with old options under their names of now, and the warnings.

    :param words: as typed, without ``muster``. Words behind ``--`` are values.
    """
    typed, warned = list(words), []
    end = typed.index("--") if "--" in typed else len(typed)
    for name, renamed in NAMES.items():
        path, _, option = name.rpartition(" ")
        if not option.startswith("--") or typed[: path.count(" ")] != path.split()[1:]:
            continue
        for at, word in enumerate(typed[:end]):
            flag, equals, value = word.partition("=")
            if flag == option:
                typed[at] = f"{renamed.now}{equals}{value}"
                warned.append(renamed.text(name))
    return typed, warned


def old_keys(kind: type) -> Iterable[str]:
    """Return the keys under which JSON still holds what a dataclass calls otherwise now."""
    start = f"json {kind.__name__}."
    return [name.removeprefix(start) for name in NAMES if name.startswith(start)]
