"""Locks an image: resolves what it wants into a lock with hashes, for every platform and Python that muster runs on.

A package of the author's own lies in the image's folder: ``./NAME`` in ``requirements.in``, or a wheel,
``./wheels/FILE.whl``. A folder is built into ``wheels/``, and the lock names the wheel and its hash.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from muster.backends.local.build import uv_program
from muster.backends.local.requirements import LOCK, WANTED, entries, source_digest, trouble, wanted_lines
from muster.core.errors import ImageError
from muster.volumes.durability import write_whole

OLDEST_PYTHON = "3.11"

_LAST_LINES = 12
_WHEELS = "wheels"
_OLDEST_ZIP = "315532800"  # 1980-01-01
_ELSEWHERE = re.compile(r"(-e\b|--editable\b|\.\./|/|file:|.*@\s*file:)")


def lock_image(name: str, folder: Path, uv_cache: Path) -> Path:
    """Resolve ``requirements.in`` of an image's folder into ``requirements.txt``, and return that.

    What the lock holds already keeps its version where it still can: delete the lock to renew all.
    The lock holds no address, so that it is the same one wherever packages come from.

    :raises ImageError: it cannot be resolved, or no hash can be had of a package; the lock is as it was.
    """
    with _as_it_was(folder / _WHEELS):
        _lock(name, folder, _Uv(name, folder, uv_cache))
    left = trouble(folder)
    if left:
        raise ImageError(f"image {name}: {left}")
    return folder / LOCK


@contextmanager
def _as_it_was(wheels: Path) -> Iterator[None]:
    """Bring the wheels back where no lock can be made of the new ones: the lock that is there names these."""
    with tempfile.TemporaryDirectory() as scratch:
        before = Path(scratch) / _WHEELS
        if wheels.is_dir():
            shutil.copytree(wheels, before)
        try:
            yield
        except BaseException:
            shutil.rmtree(wheels, ignore_errors=True)
            if before.is_dir():
                shutil.copytree(before, wheels)
            raise


def _lock(name: str, folder: Path, uv: _Uv) -> None:
    lines, built = [], []
    for line in wanted_lines((folder / WANTED).read_text(encoding="utf-8")):
        if _ELSEWHERE.match(line):
            raise ImageError(
                f"image {name}: {WANTED} names {line!r:.120}, which does not travel with the image: put the package's "
                f"folder or wheel into {folder}, and write its path there, such as ./mylib"
            )
        if line.startswith("./") and (folder / line).is_dir():
            wheel = uv.wheel(line)
            built.append(f"# {line} is {wheel}, built from {source_digest(folder / line)}\n")
            line = wheel
        lines.append(line)
    lock = uv.resolve(lines)
    unhashed = [entry.strip() for entry in entries(lock) if "--hash=" not in entry]
    if unhashed:
        raise ImageError(
            f"image {name}: no hash can be had of {unhashed[0]!r:.120}, so it could never be built: name a release of an "
            f"index, or put the package's folder or wheel into {folder} and write its path, such as ./mylib"
        )
    write_whole(folder / LOCK, "".join(built) + lock)


class _Uv:
    """uv's runs for one image."""

    def __init__(self, name: str, folder: Path, cache: Path) -> None:
        self._name = name
        self._folder = folder
        self._env = {
            **os.environ,
            "UV_CACHE_DIR": str(cache),
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_NO_CONFIG": "1",
            "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", _OLDEST_ZIP),
        }

    def resolve(self, lines: Sequence[str]) -> str:
        """Return the lock of some requirements, with the versions of the lock that is there where they still can be."""
        with tempfile.TemporaryDirectory() as scratch:
            lock = Path(scratch) / LOCK
            if (self._folder / LOCK).is_file():
                shutil.copyfile(self._folder / LOCK, lock)
            self._run(
                *("pip", "compile", "--quiet", "--universal", "--python-version", OLDEST_PYTHON),
                *("--generate-hashes", "--no-emit-index-url", "--no-header", "--no-annotate"),
                *("-", "-o", str(lock)),
                given="".join(f"{line}\n" for line in lines),
                failed=f"could not resolve {self._folder / WANTED}",
                cure=f"Mend {WANTED}, or the network that uv speaks of; the lock is as it was",
            )
            return lock.read_text(encoding="utf-8")

    def wheel(self, source: str) -> str:
        """Build a package's folder into a wheel beside the lock, in place of what was built from it before."""
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / "source"  # setuptools leaves a folder build/ behind
            shutil.copytree(
                self._folder / source, copy, ignore=shutil.ignore_patterns("build", "dist", "*.egg-info")
            )
            self._run(
                *("build", "--quiet", "--wheel", "--out-dir", f"{scratch}/made", str(copy)),
                failed=f"could not build {source}",
                cure=f"Mend its pyproject.toml; {LOCK} is as it was",
            )
            (made,) = Path(scratch, "made").glob("*.whl")
            target = self._folder / _WHEELS
            target.mkdir(exist_ok=True)
            for old in target.glob(f"{made.name.partition('-')[0]}-*.whl"):
                old.unlink()
            shutil.move(made, target / made.name)
        return f"./{_WHEELS}/{made.name}"

    def _run(self, *words: str, failed: str, cure: str, given: str = "") -> None:
        done = subprocess.run(
            [uv_program(), "--color", "never", *words],
            cwd=self._folder,
            env=self._env,
            input=given,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = "\n".join(f"  {line}" for line in done.stderr.strip().splitlines()[-_LAST_LINES:])
            raise ImageError(f"image {self._name}: uv {failed} (exit code {done.returncode})\n{said}\n{cure}")
