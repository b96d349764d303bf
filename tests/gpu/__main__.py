"""``make test-gpu``: says what is missing, or runs the tests that need a card. It needs neither Airflow nor a network."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.gpu.missing import missing

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str]) -> int:
    """Run pytest on this folder alone: the conftest.py above it makes an Airflow."""
    lacks = list(missing())
    if lacks:
        print("the tests of GPUs cannot run here:", *lacks, sep="\n- ")
        return 1
    words = [sys.executable, "-m", "pytest", "-m", "gpu", "--confcutdir=tests/gpu", "tests/gpu", *arguments]
    return subprocess.run(words, cwd=ROOT, env=environment(), check=False).returncode


def environment() -> dict[str, str]:
    """Return our variables, with muster's sources where Python looks: it need not be installed.

    pytest's plugins stay out: a Python with torch may have many, and each warning of theirs would be an error here.
    """
    paths = [str(ROOT / "operators"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
