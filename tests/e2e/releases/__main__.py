"""``python -m tests.e2e.releases [FILE]``: try both releases side by side; the table of what happened goes to FILE too."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.e2e.releases.table import rows, table


class Table:
    """Writes the table."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        self._file.write_text(f"{table(rows(terminalreporter))}\n")


if __name__ == "__main__":
    folder = str(Path(__file__).parent)
    sys.exit(pytest.main([folder, "-q"], plugins=[Table(Path(each)) for each in sys.argv[1:2]]))
