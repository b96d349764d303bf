"""Figures that tests took, shown when pytest ends, whichever of its processes took them.

A test says ``record_property(heading, line)``; lines with one heading are a table.
"""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the tables."""
    tables: dict[str, list[str]] = {}
    for report in (*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")):
        if report.when == "call":
            for heading, line in report.user_properties:
                tables.setdefault(str(heading), []).append(str(line))
    if tables:
        terminalreporter.section("figures")
    for heading, lines in tables.items():
        terminalreporter.write_line(heading)
        for line in lines:
            terminalreporter.write_line(line)
