"""Packages that one test needs and muster does not: installed once into the cache, from a lock of their own."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from uv import find_uv_bin

from muster.core.settings import Settings


def installed(lock: Path) -> Path:
    """Return a folder for PYTHONPATH that holds what a lock names."""
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    name = f"{lock.parent.name}-{digest}-{sys.implementation.cache_tag}"
    folder = Settings.load().cache / "tests" / name
    if not (folder / "ready").is_file():
        subprocess.run(
            [
                *(find_uv_bin(), "pip", "install", "--quiet", "--require-hashes", "--no-deps"),
                *("--python", sys.executable, "--target", str(folder), "-r", str(lock)),
            ],
            check=True,
        )
        (folder / "ready").touch()
    return folder
