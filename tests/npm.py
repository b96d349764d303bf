"""Packages of npm for the tests: installed by their lock into the cache, by npm itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from muster.core.locks import locked
from muster.core.settings import Settings


def installed(folder: Path) -> Path:
    """Return the ``node_modules`` that a folder's ``package-lock.json`` names, without its development dependencies."""
    lock = folder / "package-lock.json"
    root = Settings.load().cache / "tests" / folder.name
    made = root / "made-by.json"
    root.mkdir(parents=True, exist_ok=True)
    with locked(root.with_name(f"{folder.name}.lock")):
        if not made.exists() or made.read_bytes() != lock.read_bytes():
            for name in ("package.json", "package-lock.json"):
                shutil.copy(folder / name, root)
            subprocess.run(["npm", "ci", "--omit=dev", "--no-audit", "--no-fund"], cwd=root, check=True)
            shutil.copy(lock, made)
    return root / "node_modules"
