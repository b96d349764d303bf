"""Public names do not change by accident."""

from __future__ import annotations

import pytest
from tests.unit.airflow.public_names import LIST, lines

from muster import __version__
from muster.airflow.embedded.home import EmbeddedHome
from muster.core.deprecated import NAMES, Renamed


@pytest.mark.slow
def test_public_names_are_those_of_the_list(home: EmbeddedHome) -> None:
    said = LIST.read_text().splitlines()
    found = list(lines())
    gone, new = sorted(set(said) - set(found)), sorted(set(found) - set(said))
    assert (gone, new) == ([], []), (
        "python -m tests.unit.airflow.public_names writes the list anew; see there"
    )
    assert len(found) == len(said)


@pytest.mark.slow
def test_a_name_that_is_renamed_stands_in_the_list_until_it_goes(
    home: EmbeddedHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(NAMES, "muster.airflow.RankOperator", Renamed(now="GangOperator", goes="0.2"))
    said = "deprecated muster.airflow.RankOperator is now GangOperator; muster.airflow.RankOperator goes with release 0.2"
    assert set(lines()) - set(LIST.read_text().splitlines()) == {said}


def test_no_deprecated_name_outlives_its_release() -> None:
    late = [name for name, renamed in NAMES.items() if _number(renamed.goes) <= _number(__version__)]
    assert late == [], "take them out of muster.core.deprecated, and what they stand for"


def _number(release: str) -> list[int]:
    return [int(part) for part in release.split(".")]
