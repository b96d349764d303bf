"""The placeholders in a command's words: ``{inputs.NAME}``, ``{outputs.NAME}``, ``{params.NAME}``, ``{checkpoints}``.

Two rooms use them: the Dag's parser refuses a name that the job does not have, and the
worker fills them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from muster.core.errors import SpecError

KINDS = ("inputs", "outputs", "params")
PLACE = re.compile(r"\{(?:(inputs|outputs|params)\.([^{}]*)|checkpoints)\}")


def check_word(word: str, known: Mapping[str, Collection[str]]) -> None:
    """Refuse a word that holds a name that the job does not have.

    :param known: the job's names by kind; a kind that is missing is not checked.
    :raises SpecError: names the word and the known names.
    """
    for place in PLACE.finditer(word):
        kind, name = place[1], place[2]
        if kind in known and name not in known[kind]:
            raise unknown_place(word, kind, name, known[kind])


def unknown_place(word: str, kind: str, name: str, known: Collection[str]) -> SpecError:
    """Return the error for a name of `kind` that is not `known`."""
    names = ", ".join(sorted(known)) or "none"
    return SpecError(
        f"command word {word!r:.80}: the job has no {kind[:-1]} {name!r:.60}; its {kind} are: {names}"
    )
