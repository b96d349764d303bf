"""Fills the words of a command: ``{inputs.NAME}``, ``{outputs.NAME}``, ``{params.NAME}``, ``{checkpoints}``."""

from __future__ import annotations

import json
import os
import re
import sys

from muster.core.data import CHECKPOINTS, PLACE, unknown_place
from muster.core.errors import SpecError
from muster.core.replica import Replica


def fill(replica: Replica) -> list[str]:
    """Return the command's words with every known name replaced, in one pass and without a shell.

    A word that is exactly ``{inputs.NAME}`` becomes one word for each version. Other braces stay.

    :raises SpecError: the job has no such name, or many versions inside a longer word.
    """
    words: list[str] = []
    for word in replica.job_role.command or ():
        whole = PLACE.fullmatch(word)
        if whole and whole[1] == "inputs":
            words += _inputs(replica, whole[2], word)
        else:
            words.append(PLACE.sub(lambda place: _text(replica, place, word), word))  # noqa: B023 - used at once
    return words


def prepare(replica: Replica, environment: dict[str, str]) -> tuple[list[str] | None, str]:
    """Return the words to run and the folder to start in; `environment` gets the code on PYTHONPATH.

    An entrypoint has no words and starts in its scratch folder. Only an engine's driver needs PYTHONPATH then, for what it starts.

    :raises SpecError: an unknown name, or a program that is neither in the image nor in the folder.
    """
    if replica.job_role.command is None:
        if replica.spec.launcher.drives:
            _importable(environment, replica.code)
        return None, replica.scratch
    words, start = fill(replica), folder(replica)
    _importable(environment, replica.code)
    words[0] = program(words[0], start, environment["PATH"])
    return words, start


def prepare_worker(replica: Replica, environment: dict[str, str]) -> None:
    """Have an engine's worker import what the driver imports; a command's script finds what lies beside it, too."""
    start = folder(replica) if replica.code is not None and replica.job_role.command is not None else None
    _importable(environment, *dict.fromkeys((start, replica.code)))


def _importable(environment: dict[str, str], *folders: str | None) -> None:
    """Put the folders that are there before those of PYTHONPATH."""
    found = [each for each in (*folders, environment.get("PYTHONPATH")) if each]
    if found:
        environment["PYTHONPATH"] = os.pathsep.join(found)


def program(name: str, start: str, path: str) -> str:
    """Find a command's program: ``python`` is the image's, a name with ``/`` is relative to `start`."""
    if name in ("python", "python3"):
        return sys.executable
    folders = [start] if "/" in name else path.split(os.pathsep)
    for each in folders:
        candidate = os.path.join(each, name)
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    where = f"below {start}" if "/" in name else "in the image nor on the machine's PATH"
    raise SpecError(f"command: no program {name!r:.80} {where} that can be run; check its name and its x bit")


def folder(replica: Replica) -> str:
    """Return where a command starts: the Dag's folder where the code is one folder, else the code, or scratch."""
    if replica.code is None:
        return replica.scratch
    with os.scandir(replica.code) as entries:
        found = [entry for entry in entries if entry.name != "__pycache__"]
    if len(found) == 1 and found[0].is_dir(follow_symlinks=False):
        return found[0].path
    return replica.code


def _inputs(replica: Replica, name: str, word: str) -> tuple[str, ...]:
    if name not in replica.inputs:
        raise unknown_place(word, "inputs", name, replica.inputs)
    return replica.inputs[name]


def _text(replica: Replica, place: re.Match[str], word: str) -> str:
    kind, name = place[1], place[2]
    if kind is None or (name == CHECKPOINTS and kind != "params"):
        return replica.checkpoints
    if kind == "inputs":
        folders = _inputs(replica, name, word)
        if replica.spec.inputs[name].many:
            raise SpecError(
                f"command word {word!r:.80}: {{inputs.{name}}} is a list of versions ({len(folders)} here); "
                "make it a word of its own and it becomes one word for each"
            )
        return folders[0]
    known = replica.staging if kind == "outputs" else replica.spec.params
    if name not in known:
        raise unknown_place(word, kind, name, known)
    value = known[name]
    return value if isinstance(value, str) else json.dumps(value)
