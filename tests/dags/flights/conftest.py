"""The flights pipeline's code runs in its images: a probe is a script that runs there and answers as JSON."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.core.settings import Settings
from muster.images.environment import Environments
from muster.images.folders import put_image
from muster.volumes.folder import FolderStore

ROOT = Path(__file__).parents[3]
PROBES = Path(__file__).parent / "probes"

Probe = Callable[..., Any]


@pytest.fixture(scope="session")
def python_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The Python of an image of this checkout, built in the machine's own cache."""
    store = FolderStore(tmp_path_factory.mktemp("store"))

    @functools.cache
    def ensure(image: str) -> Path:
        folder = ROOT / "images" / image
        return Environments(Settings.load().cache).ensure(image, folder, put_image(store, folder))

    return ensure


@pytest.fixture(scope="session")
def probe(python_of: Callable[[str], Path]) -> Probe:
    """Run ``probes/NAME.py ARGUMENT…`` in an image; return what its last line says."""

    def run(image: str, name: str, *arguments: object, says: str = "", fails: bool = False) -> Any:
        words = [str(PROBES / f"{name}.py"), *map(str, arguments)]
        path = os.pathsep.join([str(ROOT / "dags"), str(ROOT / "images" / "validate")])
        ended = subprocess.run(
            [python_of(image), *words],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MLFLOW_TRACKING_URI": ""},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert (ended.returncode != 0) is fails, ended.stderr[-4000:]
        assert says in ended.stdout
        return None if fails else json.loads(ended.stdout.splitlines()[-1])

    return run
