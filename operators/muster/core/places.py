"""The places in a command's words that a job fills: ``{inputs.NAME}``, ``{outputs.NAME}``, ``{params.NAME}``, ``{checkpoints}``.

Read in two rooms: while a Dag is parsed, to refuse a name that the job does not have, and in the
worker, which fills them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from muster.core.errors import SpecError

KINDS = ("inputs", "outputs", "params")
PLACE = re.compile(r"\{(?:(inputs|outputs|params)\.([^{}]*)|checkpoints)\}")


def check_word(word: str, known: Mapping[str, Collection[str]]) -> None:
    """Refuse a word with a name that a job does not have.

    :param known: the job's names by kind; a kind that is missing is not looked at.
    :raises SpecError: it names the word, and what there is.
    """
    for place in PLACE.finditer(word):
        kind, name = place[1], place[2]
        if kind in known and name not in known[kind]:
            raise unknown_place(word, kind, name, known[kind])


def unknown_place(word: str, kind: str, name: str, known: Collection[str]) -> SpecError:
    """The error for a name of `kind` that is not among the `known` ones."""
    names = ", ".join(sorted(known)) or "none"
    return SpecError(
        f"command word {word!r:.80}: the job has no {kind[:-1]} {name!r:.60}; its {kind} are: {names}"
    )
