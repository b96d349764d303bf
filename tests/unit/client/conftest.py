"""A store with a little history, and this process in the folder that holds it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.unit.cli.conftest import history, home, store

from muster.client.place import close

__all__ = ["history", "home", "store"]


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    close()
