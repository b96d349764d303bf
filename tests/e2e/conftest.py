"""A folder of one's own for each test, and nothing left running in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.author import Author


@pytest.fixture
def author(tmp_path: Path) -> Iterator[Author]:
    """A person in an empty folder; whatever a failed test left running there is ended."""
    with Author(tmp_path) as author:
        yield author
