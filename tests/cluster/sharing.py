"""Tests shared out among clusters, a process of pytest's each: what one does to its cluster no other sees."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.cluster import inside, network
from tests.cluster.layout import Layout

_ROOTS = "MUSTER_TEST_CLUSTERS"


def options(layouts: Sequence[Layout]) -> list[str]:
    """Return what pytest is to be told so that each of its processes has a cluster of its own."""
    if len(layouts) == 1:
        return []
    # In the order in which they are found: the file that takes longest is not among the last.
    order = ("--dist=loadfile", "--no-loadscope-reorder")
    return ["-n", str(len(layouts)), "--max-worker-restart=0", *order, "-p", __name__]


def environment(layouts: Sequence[Layout]) -> dict[str, str]:
    """Return the variables of a process that shares out."""
    return inside.environment(layouts[0]) | {_ROOTS: os.pathsep.join(str(each.root) for each in layouts)}


def pytest_configure(config: pytest.Config) -> None:
    """Move a process into its cluster; that which shares out runs no test."""
    found = getattr(config, "workerinput", None)
    if found is None:
        return
    roots = os.environ[_ROOTS].split(os.pathsep)
    layout = Layout.at(Path(roots[int(found["workerid"].removeprefix("gw"))]))
    network.enter(layout)
    os.environ.update(inside.environment(layout))
