"""A Python of its own, whose Airflow has no configuration."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def printed(source: str, *, home: Path) -> str:
    """Run a program and return what it printed."""
    environment = {"AIRFLOW_HOME": str(home), "HOME": str(Path.home()), "PATH": "/usr/bin:/bin"}
    told = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True, env=environment
    )
    return told.stdout
