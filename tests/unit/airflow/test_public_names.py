"""Public names do not change by accident, and CHANGELOG.md tells of new ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.unit.airflow.public_names import LIST, lines

from muster.airflow.embedded.home import EmbeddedHome

CHANGELOG = Path(__file__).parents[3] / "CHANGELOG.md"
RELEASED = LIST.with_name("released_names.txt")
"""The public names of the newest release. A release writes them anew, from the list; CHANGELOG.md tells of what changed since."""


@pytest.mark.slow
def test_public_names_are_those_of_the_list(home: EmbeddedHome) -> None:
    said = LIST.read_text().splitlines()
    found = list(lines())
    gone, new = sorted(set(said) - set(found)), sorted(set(found) - set(said))
    assert (gone, new) == ([], []), (
        "python -m tests.unit.airflow.public_names writes the list anew; see there"
    )
    assert len(found) == len(said)


def test_changelog_names_what_came_and_went_since_the_release() -> None:
    # It compares words, so it misses a keyword that another operator had before, and another default.
    told = set(re.findall(r"[\w-]+", CHANGELOG.read_text()))
    now = {name for name in map(_own_name, LIST.read_text().splitlines()) if name}
    untold = (now ^ set(RELEASED.read_text().split())) - told
    assert untold == set(), "write a line in CHANGELOG.md that names each of them"


def _own_name(line: str) -> str:
    """Return the name that a line of the list is about: its last, without a default; none of an argument of a command, or a number."""
    *_, name = re.findall(r"[\w-]+", re.sub(r" = .*|\[(?!muster)\w+\]|^exit.*", "", line).rstrip(")")) or [""]
    return "" if name.isupper() or name.isdigit() else name
