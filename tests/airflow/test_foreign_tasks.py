"""Tasks that are not muster's, in a shared Airflow: muster's plugin leaves them, and their runs, as Airflow has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.airflow import foreign


def left(home: Path, *, plugin: bool) -> Any:
    """Return what a scheduler makes of tasks in every state."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    variables |= {"AIRFLOW__MUSTER__PLUGIN": str(plugin), "MUSTER_HOME": str(home / "muster")}
    done = subprocess.run(
        [sys.executable, foreign.__file__, str(home / "airflow")],
        env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_foreign_tasks_are_the_same_with_and_without_the_plugin(tmp_path: Path) -> None:
    without, with_it = left(tmp_path / "without", plugin=False), left(tmp_path / "with", plugin=True)
    ours = "beside.train"
    assert with_it.keys() == without.keys()
    assert {name: with_it[name] for name in with_it if name != ours} == {
        name: without[name] for name in without if name != ours
    }
    assert len([name for name in without if name.startswith("foreign.")]) == 2 * len(foreign.STATES)
    (*_, (_, state, tries)), (*_, (_, _, forgotten)) = with_it[ours], without[ours]
    assert (state, tries) == (None, forgotten + 1), "the clear of muster's own task is remembered"
