"""Whatever a request held that was answered with 200, its rows are committed; what cannot be read stops nothing."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.core.shipped import shipped

pytestmark = pytest.mark.slow

ANSWERED = Path(__file__).with_name("try_logging.py")


def test_every_value_that_is_answered_is_a_row(python: Callable[[str], Path], tmp_path: Path) -> None:
    done = subprocess.run(
        [str(python("serve")), str(ANSWERED), str(tmp_path), "300"],
        env={**os.environ, "PYTHONPATH": str(shipped("serving"))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert set(found["forms"]) == {"v1", "v2", "raw", "typed"}
    assert min(found["forms"].values()) > 300, found["forms"]
    assert found["unread"] == 0
    assert found["rows"] == found["answered"]
    assert found["different"] == []


def test_what_cannot_be_read_is_set_aside_once_and_told(
    python: Callable[[str], Path], tmp_path: Path
) -> None:
    done = subprocess.run(
        [str(python("serve")), str(ANSWERED), str(tmp_path), "bad"],
        env={**os.environ, "PYTHONPATH": str(shipped("serving"))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["first"] == {"rows": 3, "unread": 4}
    assert found["again"] == {"rows": 1, "unread": 0}
    assert sorted(found["aside"]) == [
        "2026-11-26T07.1-a.spool",
        "2026-11-26T07.1-b.spool",
        "offsets.json",
        "why.txt",
    ]
    assert found["kept"] == ["torn", "wrong"], "a spool file of what was set aside, in its own form"
