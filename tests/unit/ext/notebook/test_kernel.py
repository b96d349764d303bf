"""What a kernel has at hand, and what it says of a package that its image lacks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import muster
from muster.ext.notebook import kernel
from muster.volumes.folder import FolderStore


def test_versions_are_at_hand_under_their_names(
    history: FolderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {
        "model": {"addresses": ["volume://flights/model@1"], "many": False},
        "months": {"addresses": ["volume://flights/features@1", "volume://flights/features@2"], "many": True},
    }
    monkeypatch.setenv(kernel.INPUTS, json.dumps(asked))
    found = kernel.given()
    assert found["muster"] is muster
    assert found["model"].path.joinpath("card.md").read_text() == "a model"
    assert [each.path.joinpath("part.parquet").stat().st_size for each in found["months"]] == [700, 700]
    assert found["inputs"] == {"model": found["model"], "months": found["months"]}


def test_an_image_whose_kernel_cannot_start_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", kernel.__file__, str(tmp_path), "--check"]
    known = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    assert known["error"].startswith("ipykernel.kernelapp: ModuleNotFoundError: ")
    assert known["lacks"] == []
