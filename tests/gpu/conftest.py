"""The figures that the tests of GPUs measure: printed at the end, and kept in the file MUSTER_TEST_FIGURES."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

_FIGURES = pytest.StashKey[dict[str, str]]()


@pytest.fixture
def figure(pytestconfig: pytest.Config) -> Callable[[str, str], None]:
    """Notes what was measured: a name and the figure with its unit."""
    return pytestconfig.stash.setdefault(_FIGURES, {}).__setitem__


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show the figures, and write them down where that is asked for."""
    figures = config.stash.get(_FIGURES, {})
    if figures:
        terminalreporter.section("figures")
        for name, text in figures.items():
            terminalreporter.write_line(f"{name}: {text}")
    if file := os.environ.get("MUSTER_TEST_FIGURES"):
        Path(file).write_text(json.dumps(figures, indent=2) + "\n")
