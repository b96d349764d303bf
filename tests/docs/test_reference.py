"""docs/reference.md says what the docstrings say. Write it again: ``python -m tests.docs.test_reference``."""

from __future__ import annotations

import pytest
from tests.docs import reference
from tests.docs.page import DOCS

import muster.airflow

PAGE = DOCS / "reference.md"


def test_the_reference_is_what_the_docstrings_say() -> None:
    assert PAGE.read_text() == reference.page()


@pytest.mark.parametrize("name", [*muster.airflow.__all__, "job", "gang"])
def test_whatever_a_dag_file_writes_is_in_it(name: str) -> None:
    assert f" import {name}`\n" in PAGE.read_text()


if __name__ == "__main__":
    PAGE.write_text(reference.page())
