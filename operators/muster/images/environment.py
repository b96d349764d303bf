"""The environments of images on one machine: a venv made from a lock by uv, once, and kept by the lock's digest.

``python -m muster.images.environment CACHE NAME LOCK DIGEST`` builds one. It says how far it is, a line at a time, and
last why it could not be built.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from muster.core.errors import ImageError, MusterError
from muster.core.interpreters import python_command
from muster.core.locks import locked_if_free
from muster.volumes.durability import sync_all, write_whole
from muster.volumes.tree import remove

if TYPE_CHECKING:
    from muster.images.build import Progress

_BEAT_SECONDS = 3.0
_LOOK_SECONDS = 0.05
_COMPLETE = ".muster-complete"
_HOME = re.compile(r"(?P<name>.+)-(?P<digest>[0-9a-f]{12})-py\d+\Z")


@dataclass(frozen=True, kw_only=True)
class Environment:
    """One venv in the cache. `size_bytes` counts a file that is linked from uv's cache as its own."""

    name: str
    digest: str
    path: Path
    complete: bool
    size_bytes: int


class Environments:
    """The venvs below one cache folder."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._root = cache / "images"
        self._uv_cache = cache / "uv"

    def ensure(
        self,
        name: str,
        lock_folder: Path,
        digest: str,
        progress: Progress = lambda _line: None,
    ) -> Path:
        """Return the Python of the image's venv, built now if it is not there yet.

        Two that ask together build it once. What a crash left half-built is built again.

        :param lock_folder: holds the lock and perhaps the recipe.
        :param digest: of that folder, from :func:`muster.images.folders.put_image`.
        :param progress: is told what happens, a line every few seconds; an exception from it ends the build.
        :raises ImageError: uv could not build it; the message holds uv's last lines.
        """
        home = self._home(name, digest)
        if _is_complete(home):
            return _python(home)
        lock = home.with_name(f".{home.name}.lock")
        asked = beat = time.monotonic()
        while True:
            with locked_if_free(lock) as mine:
                if mine:
                    return self._ensure(name, lock_folder, home, progress)
            if beat <= time.monotonic():
                beat += _BEAT_SECONDS
                progress(f"image {name}: another job builds it; waiting, {time.monotonic() - asked:.0f} s")
            time.sleep(_LOOK_SECONDS)

    def ensure_apart(
        self, name: str, lock_folder: Path, digest: str, progress: Progress, *, log: Path
    ) -> Generator[None, None, Path]:
        """Do as :meth:`ensure` in a process of its own, and yield while it builds.

        :param log: a file for what the build says.
        :raises ImageError: it cannot be built.
        """
        found = self.find(name, digest)
        if found is not None:
            return found
        import subprocess

        from muster.core.linux import die_with

        words = python_command("-m", __name__, str(self._cache), name, str(lock_folder), digest)
        with log.open("wb") as out:
            build = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd="/",
                preexec_fn=partial(die_with, os.getpid()),
            )
        try:
            while build.poll() is None:
                said = log.read_text(encoding="utf-8", errors="replace").splitlines()
                if said:
                    progress(said[-1])
                yield
        finally:
            build.kill()
            build.wait()
        if build.returncode or (found := self.find(name, digest)) is None:
            raise ImageError(log.read_text(encoding="utf-8", errors="replace").strip()[-4000:])
        return found

    def find(self, name: str, digest: str) -> Path | None:
        """Return the Python of the image's venv if it is built."""
        home = self._home(name, digest)
        return _python(home) if _is_complete(home) else None

    def ls(self) -> list[Environment]:
        """Return every venv of the cache, by name; what lies there besides is not ours."""
        if not self._root.is_dir():
            return []
        ours = ((path, _HOME.match(path.name)) for path in sorted(self._root.iterdir()) if path.is_dir())
        return [
            Environment(
                name=match["name"],
                digest=match["digest"],
                path=path,
                complete=_is_complete(path),
                size_bytes=_noted_size(path),
            )
            for path, match in ours
            if match
        ]

    def _home(self, name: str, digest: str) -> Path:
        python = f"py{sys.version_info.major}{sys.version_info.minor}"
        return self._root / f"{name}-{digest.removeprefix('b3:')[:12]}-{python}"

    def _ensure(self, name: str, lock_folder: Path, home: Path, progress: Progress) -> Path:
        if not _is_complete(home):
            from muster.images.build import Build  # most jobs find their image built

            remove(home)
            try:
                Build(name, lock_folder, home, self._uv_cache, progress).run()
            except BaseException:  # a cancel and a full disk, too
                with suppress(OSError):
                    remove(home)
                raise
            sync_all(home)  # the marker must not outlive a power cut that the rest does not
            write_whole(home / _COMPLETE, str(_size(home)))
        return _python(home)


def _python(home: Path) -> Path:
    return home / "bin" / "python"


def _is_complete(home: Path) -> bool:
    return (home / _COMPLETE).exists() and os.access(_python(home), os.X_OK)


def _noted_size(home: Path) -> int:
    """Return what a venv's marker says; one that is not whole has none."""
    with suppress(OSError, ValueError):
        return int((home / _COMPLETE).read_text(encoding="utf-8"))
    return _size(home)


def _size(root: Path) -> int:
    return sum(
        os.lstat(os.path.join(folder, name)).st_size  # noqa: PTH118 of a hundred thousand files
        for folder, _, names in os.walk(root)
        for name in names
    )


def main() -> None:
    """Build. Arguments: ``CACHE NAME LOCK DIGEST``."""
    cache, name, lock, digest = sys.argv[1:]
    try:
        Environments(Path(cache)).ensure(name, Path(lock), digest, lambda line: print(line, flush=True))  # noqa: T201
    except (MusterError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
