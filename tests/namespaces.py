"""Small disks for the tests: a command sees a file system of its own, in namespaces that end with it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

_UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")


def on_a_small_disk(folder: Path, megabytes: int, *words: str | Path) -> list[str]:
    """Return a command that runs `words` where `folder` is a disk of so many MiB.

    Skips the test where no user namespace can be had, as in a chroot.
    """
    probe = subprocess.run([*_UNSHARE, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"no user namespaces here, as in a chroot or a container: {probe.stderr.strip()}")
    mount = f'mount -t tmpfs -o size={megabytes}m none "$1" && shift && exec "$@"'
    return [*_UNSHARE, "sh", "-ec", mount, "sh", str(folder), *map(str, words)]
