"""The program of the image ingest, imported as a job imports it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.core.shipped import shipped

Run = Callable[..., dict[str, float]]


@pytest.fixture(autouse=True)
def program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the program's package on the import path."""
    monkeypatch.syspath_prepend(str(shipped("images") / "ingest"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder that is ingested."""
    folder = tmp_path / "source"
    folder.mkdir()
    for name, text in {"a": "1", "d/b": "22", "d/e/c": "333"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def ingest(source: Path, tmp_path: Path) -> Run:
    """Run the program with a version before, into a folder of checkpoints."""

    def run(target: str = "target", *, before: str | None = None, **what: Any) -> dict[str, float]:
        from muster_ingest import ingest  # type: ignore[import-not-found]

        (tmp_path / target).mkdir(exist_ok=True)
        base = [] if before is None else [tmp_path / before]
        given = {"source": f"file://{source}", "streams": 4, "patience_seconds": 1, **what}
        return dict(ingest(base, tmp_path / target, what=given))

    return run
