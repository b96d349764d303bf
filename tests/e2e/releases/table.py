"""What was tried with two releases, and what happened, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

EARLIER = ("bfc7578d",)
PAIRS = [("earlier", "this"), ("this", "earlier")]

Row = tuple[tuple[str, str, str, str], str]
"""What one release does, what the other does with it, the earlier release, who is first; and a test's outcome."""

NAME = "two releases"
"""Under which a report keeps its row."""

_ORDER = ("failed", "error", "skipped", "passed")  # the worst of several tests is what is told


def tried(does: str, other: str) -> pytest.MarkDecorator:
    """Say of a test what one release does in it, and what the other does with that."""
    return pytest.mark.tried(does, other)


def tried_by(item: pytest.Item) -> tuple[str, str, str, str] | None:
    """Return what a test tried."""
    mark = item.get_closest_marker("tried")
    call = getattr(item, "callspec", None)
    if mark is None or call is None:
        return None
    given: Mapping[str, object] = call.params
    first = next((str(each) for each in given.values() if each in ("earlier", "this")), "this")
    return (*mark.args, str(given.get("earlier", "")), first)


def rows(terminalreporter: pytest.TerminalReporter) -> list[Row]:
    """Return what was tried, and what happened."""
    return [
        (said, outcome)
        for outcome in ("passed", "failed", "error", "skipped")
        for report in terminalreporter.getreports(outcome)
        for name, said in getattr(report, "user_properties", ())
        if name == NAME and (outcome != "passed" or report.when == "call")
    ]


def table(rows: Sequence[Row]) -> str:
    """Write Markdown: a line for each thing that was tried, a column for each pair of releases and its direction."""
    columns = [(release, first) for release in EARLIER for first in ("earlier", "this")]
    found: dict[tuple[str, str], dict[tuple[str, str], str]] = {}
    for (does, other, release, first), outcome in rows:
        cells = found.setdefault((does, other), {})
        before = cells.get((release, first), "passed")
        cells[release, first] = min(before, outcome, key=_ORDER.index)
    heads = [f"{r} → this" if first == "earlier" else f"this → {r}" for r, first in columns]
    lines = ["| one release | the other |", *(f" {head} |" for head in heads)]
    text = ["".join(lines), "|---|---|" + "---|" * len(columns)]
    text += [
        f"| {does} | {other} |" + "".join(f" {_SAID[cells.get(column, '')]} |" for column in columns)
        for (does, other), cells in found.items()
    ]
    return "\n".join(text)


_SAID = {
    "passed": "as it should",
    "failed": "FAILED",
    "error": "FAILED",
    "skipped": "left out",
    "": "not tried",
}
