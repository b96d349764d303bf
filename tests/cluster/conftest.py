"""What tests of deployments share: a cluster that serves, and one deployment that is settled before each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster import deploying
from tests.cluster.deploying import Served
from tests.cluster.inside import layout
from tests.cluster.lines import Line, standing


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The deployments of one store, which is empty at first."""
    with deploying.served(layout(), tmp_path_factory.mktemp("served")) as found:
        yield found


@pytest.fixture(scope="module")
def one(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """One deployment for all tests of a module."""
    with standing(served, tmp_path_factory.mktemp("line")) as line:
        yield line


@pytest.fixture
def line(one: Line) -> Line:
    """That one, with a champion that answers and nothing under way."""
    one.settle()
    return one
