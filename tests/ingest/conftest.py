"""The image ingest, and its program run in it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from muster.core.ingest import variables
from muster.core.settings import Settings
from muster.images.environment import Environments
from muster.images.folders import put_image
from muster.volumes.folder import FolderStore

ROOT = Path(__file__).parents[2]
IMAGE = ROOT / "images" / "ingest"


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of the image, built in the machine's own cache."""
    store = FolderStore(tmp_path_factory.mktemp("store"))
    return Environments(Settings.load().cache).ensure("ingest", IMAGE, put_image(store, IMAGE))


@pytest.fixture
def ingest(python: Path, tmp_path: Path) -> Callable[..., Any]:
    """Run the program with a version before, into a folder of checkpoints, with the fields and the extra of a connection."""

    def run(
        target: str,
        source: str,
        *,
        before: str = "",
        fields: Any = None,
        extra: Any = None,
        program: str = "drive.py",
        meanwhile: Callable[[], None] | None = None,
        **what: Any,
    ) -> Any:
        (tmp_path / target).mkdir(exist_ok=True)
        fields, extra = fields or {}, extra or {}
        given = {"source": source, "streams": 4, "patience_seconds": 2, "extras": sorted(extra), **what}
        values = {**fields, **extra}
        environment = {
            variable: value if isinstance(value := values[name], str) else json.dumps(value)
            for variable, name in variables(fields, list(extra)).items()
        }
        begun = subprocess.Popen(
            [
                python,
                ROOT / "tests" / "ingest" / program,
                str(tmp_path / before) if before else "",
                str(tmp_path / target),
                json.dumps(given),
            ],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(IMAGE), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            if meanwhile is not None:  # it has printed a line, and waits for one
                assert begun.stdout is not None
                begun.stdout.readline()
                meanwhile()
            said, errors = begun.communicate("\n", timeout=120)
        finally:
            begun.kill()
            begun.wait()
        assert begun.returncode == 0, errors[-3000:]
        for value in fields.values():
            assert len(value) < 6 or value not in said
        return json.loads(said.splitlines()[-1])

    return run
