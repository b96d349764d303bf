"""Debian's libfuse for the tests: the one that is installed, or its package unpacked below the cache.

Nothing is installed and root is not needed to have it; root, or Debian's ``fusermount3``, to mount with it.
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from muster.core.locks import locked
from muster.core.settings import Settings

VARIABLE = "FUSE_LIBRARY_PATH"  # mfusepy's own
PACKAGES = ("libfuse3-4", "libfuse3-3")  # Debian 13's and 12's


class NoFuse(Exception):
    """No file system of our own can be mounted here; says why, and what to do."""


def find() -> str:
    """Return what mfusepy is to load. :raises NoFuse: there is none, and none can be had."""
    named = os.environ.get(VARIABLE) or ctypes.util.find_library("fuse3")
    if named:
        return named
    cache = Settings.load(os.environ).cache / "fuse"
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / "lock"):
        return next(_unpacked(cache), None) or _fetch(cache)


def _unpacked(cache: Path) -> Iterator[str]:
    yield from map(str, sorted(cache.glob("root/**/libfuse3.so.[0-9]")))


def _fetch(cache: Path) -> str:
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise NoFuse("there is no libfuse3, and no apt-get to fetch Debian's with: install libfuse 3")
    with tempfile.TemporaryDirectory(dir=cache, prefix="fetch-") as made:
        work = Path(made)
        (work / "lists/partial").mkdir(parents=True)
        apt = ("apt-get", "-qq", "-o", f"Dir::State::Lists={work}/lists", "-o", f"Dir::Cache={work}")
        quiet = (*apt, "-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=")
        failures = [_run(*quiet, "update", folder=work)]
        failures += [_run(*quiet, "download", package, folder=work) for package in PACKAGES]
        archives = sorted(work.glob("*.deb"))
        if not archives:
            raise NoFuse(f"there is no libfuse3, and Debian's cannot be fetched: {' '.join(failures)}")
        _run("dpkg-deb", "-x", str(archives[0]), str(work / "root"), folder=work)
        shutil.rmtree(cache / "root", ignore_errors=True)
        (work / "root").rename(cache / "root")
    return next(_unpacked(cache))


def _run(*words: str, folder: Path) -> str:
    """Run it; return what it complained of."""
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300).stderr.strip()[
        -300:
    ]
