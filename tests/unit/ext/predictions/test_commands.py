"""``muster predictions commit``: a name that nothing has is told, and one whose requests were kept is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.volumes.folder import FolderStore
from muster.volumes.spool import Spool

Run = Callable[..., Any]


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_name_that_nothing_has_is_refused_with_those_that_there_are(
    muster: Run, store: FolderStore, tmp_path: Path, words: tuple[str, ...]
) -> None:
    said = muster("predictions", "commit", "nope", *words)
    assert (said.code, said.out) == (1, "")
    assert "no deployment 'nope': there are none yet" in said.err
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/a").write_text("1")
    store.add("rooms/predictions", tmp_path / "rows")
    assert "no deployment 'nope': there is rooms" in muster("predictions", "commit", "nope", *words).err


def test_a_deployment_that_is_retired_has_nothing_new(
    muster: Run, home: Path, store: FolderStore, tmp_path: Path
) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/a").write_text("1")
    store.add("rooms/predictions", tmp_path / "rows")
    Spool(home, "flights").begin()
    for name in ("rooms", "flights"):
        done = muster("predictions", "commit", name)
        assert (done.code, done.err) == (0, f"nothing new of {name}\n")
