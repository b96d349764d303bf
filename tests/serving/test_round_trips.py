"""A version answers what its model answers on its own training rows, or is refused by name: seven kinds of model, frames by chance."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.images.worker_archive import worker_folder

HERE = Path(__file__).parent
TABLES = ("pipeline", "trees", "xgboost", "lightgbm", "python")
TRAIN = ("torch", "onnx")


@pytest.mark.slow
@pytest.mark.parametrize(("image", "kinds"), [("tables", TABLES), ("train", TRAIN)])
def test_a_few_frames(python: Callable[[str], Path], image: str, kinds: tuple[str, ...]) -> None:
    tried(python(image), kinds, frames=4)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("image", "kind"), [*(("tables", kind) for kind in TABLES), *(("train", kind) for kind in TRAIN)]
)
def test_two_hundred_frames(python: Callable[[str], Path], image: str, kind: str) -> None:
    found = tried(python(image), (kind,), frames=200)
    assert found[kind]["same"] >= 140


def tried(python: Path, kinds: tuple[str, ...], *, frames: int) -> dict[str, Any]:
    """Have frames trained, described, asked; return how many were answered the same, by kind."""
    path = os.pathsep.join(map(str, (shipped("serving"), worker_folder(Settings.load().cache))))
    command = [str(python), "-W", "ignore", str(HERE / "round_trips.py"), ",".join(kinds), str(frames), "42"]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-1500:]
    found: dict[str, Any] = json.loads(done.stdout)
    for kind in kinds:
        words = found[kind]["words"]
        assert not words["wrong"], (kind, words["wrong"])
        assert all("input 'c" in each or "column 'c" in each for each in words["refused"]), words["refused"]
        assert found[kind].get("same", 0) + len(words["refused"]) == frames
    return found
