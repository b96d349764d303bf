"""Locks an image: resolves what it wants into a lock with hashes, for every platform and Python that muster runs on."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from muster.backends.local.build import uv_program
from muster.backends.local.environments import LOCK, WANTED
from muster.core.errors import ImageError

OLDEST_PYTHON = "3.11"

_LAST_LINES = 12


def lock_image(name: str, folder: Path, uv_cache: Path) -> Path:
    """Resolve ``requirements.in`` of an image's folder into ``requirements.txt``, and return that.

    What the lock holds already keeps its version where it still can: delete the lock to renew all.
    The lock holds no address, so that it is the same one wherever packages come from.

    :raises ImageError: it cannot be resolved; the message holds uv's last lines.
    """
    words = [
        uv_program(),
        *("pip", "compile", "--quiet", "--color", "never", "--universal", "--python-version", OLDEST_PYTHON),
        *("--generate-hashes", "--no-emit-index-url", "--no-header", "--no-annotate"),
        *(WANTED, "-o", LOCK),
    ]
    env = {**os.environ, "UV_CACHE_DIR": str(uv_cache), "UV_PYTHON_DOWNLOADS": "never", "UV_NO_CONFIG": "1"}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join(f"  {line}" for line in done.stderr.strip().splitlines()[-_LAST_LINES:])
        raise ImageError(
            f"image {name}: uv could not resolve {folder / WANTED} (exit code {done.returncode})\n{said}\n"
            f"Mend {WANTED}, or the network that uv speaks of; the lock is as it was"
        )
    return folder / LOCK
