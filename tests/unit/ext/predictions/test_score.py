"""The code that scores a version comes from muster's own model servers, not from an image."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.airflow.authoring.code import DagFolder
from muster.core.errors import SpecError
from muster.core.settings import Settings
from muster.ext.predictions.score import ScoreOperator


def test_the_code_that_scores_is_looked_for_in_no_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = DagFolder(file=tmp_path / "dag.py", bundle=tmp_path)
    settings = Settings(home=tmp_path / "home", cache=tmp_path / "cache")
    monkeypatch.setattr(
        "muster.airflow.authoring.code.shipped", lambda _: folder.bundle
    )  # it holds no muster_serving
    operator = ScoreOperator(task_id="t", model="a/b@1", rows="a/c@1", outputs="a/d")
    with pytest.raises(SpecError, match="holds no muster_serving"):
        operator.travelling(folder, settings)
    operator.check_files(folder, settings)
