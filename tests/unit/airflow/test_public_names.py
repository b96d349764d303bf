"""Public names do not change by accident."""

from __future__ import annotations

import pytest
from tests.unit.airflow.public_names import LIST, lines

from muster.airflow.embedded.home import EmbeddedHome


@pytest.mark.slow
def test_public_names_are_those_of_the_list(home: EmbeddedHome) -> None:
    said = LIST.read_text().splitlines()
    found = list(lines())
    gone, new = sorted(set(said) - set(found)), sorted(set(found) - set(said))
    assert (gone, new) == ([], []), (
        "python -m tests.unit.airflow.public_names writes the list anew; see there"
    )
    assert len(found) == len(said)
