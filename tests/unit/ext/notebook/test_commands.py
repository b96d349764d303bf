"""``muster notebook``: what is refused before an image is built or anything is started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.volumes.folder import FolderStore

Run = Callable[..., Any]


def test_a_notebook_that_is_not_there(muster: Run) -> None:
    said = muster("notebook", "--execute", "report.ipynb")
    assert (said.code, said.out) == (1, "")
    assert "report.ipynb does not exist: name a notebook" in said.err


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (["volume://flights/model@1/model.onnx"], "names a file; give its version"),
        (["volume://flights/model@1", "model=volume://flights/model@2"], "the variable model is taken"),
        (["muster=volume://flights/model@1"], "the variable muster is taken"),
        (["class=volume://flights/model@1"], "the variable class is taken"),
        (["volume://flights/nothing"], "flights/nothing"),
    ],
)
def test_an_input_that_cannot_be_at_hand(
    muster: Run, history: FolderStore, tmp_path: Path, inputs: list[str], says: str
) -> None:
    (tmp_path / "report.ipynb").write_text("{}")
    words = [word for each in inputs for word in ("--inputs", each)]
    said = muster("notebook", "--execute", tmp_path / "report.ipynb", *words)
    assert (said.code, said.out) == (1, "")
    assert says in said.err
