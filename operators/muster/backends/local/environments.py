"""Images on one machine: a venv made from an image's lock by uv, once, and kept by the lock's digest.

An image is a folder: ``requirements.txt`` (the lock, with hashes) and perhaps ``image.toml``::

    [build]
    no_isolation = ["horovod"]  # built against what the rest of the lock installed
    [build.env]
    CMAKE_PREFIX_PATH = "{image}/lib"  # {image} is the venv's folder

The folder travels as a snapshot in the store, so a job finds its lock wherever it runs.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from muster.backends.local.places import locked_if_free
from muster.core.errors import SpecError
from muster.core.names import check_label
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.volumes.base import Store
from muster.volumes.durability import sync_all, write_whole
from muster.volumes.tree import remove

LOCK = "requirements.txt"
WANTED = "requirements.in"
RECIPE = "image.toml"

Progress = Callable[[str], None]

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


def image_folders(settings: Settings, *roots: Path) -> tuple[Path, ...]:
    """Return where images are looked for: below each of `roots` (the Dag's folder, the bundle), then more."""
    return (*(root / "images" for root in roots), *settings.images, shipped("images"))


def find_image(name: str, folders: Iterable[Path]) -> Path:
    """Return the folder of the image `name`, the first in `folders`.

    :raises SpecError: none is called so, or it has no lock; the message names those that are there.
    """
    check_label("image", name)
    searched = list(dict.fromkeys(folders))
    for folder in searched:
        if (folder / name / LOCK).is_file():
            return folder / name
        if (folder / name).is_dir():
            raise SpecError(
                f"image {name!r}: {folder / name} has no {LOCK}; make it from its {WANTED} with "
                f"`muster images lock {name}`"
            )
    known = sorted({path.parent.name for folder in searched for path in folder.glob(f"*/{LOCK}")})
    raise SpecError(
        f"image {name!r} is in none of {', '.join(map(str, searched))}; known are: "
        f"{', '.join(known) or 'none'}. Add a folder {name}/ with a {LOCK}, or name more folders in MUSTER_IMAGES"
    )


def put_image(store: Store, folder: Path) -> str:
    """Keep an image's lock and recipe in the store and return the digest that a spec carries."""
    return store.put(folder, [name for name in (LOCK, RECIPE) if (folder / name).is_file()])


class Environments:
    """The venvs below one cache folder."""

    def __init__(self, cache: Path) -> None:
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
        :param digest: of that folder, from :func:`put_image`.
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
                size_bytes=_size(path),
            )
            for path, match in ours
            if match
        ]

    def _home(self, name: str, digest: str) -> Path:
        python = f"py{sys.version_info.major}{sys.version_info.minor}"
        return self._root / f"{name}-{digest.removeprefix('b3:')[:12]}-{python}"

    def _ensure(self, name: str, lock_folder: Path, home: Path, progress: Progress) -> Path:
        if not _is_complete(home):
            from muster.backends.local.build import Build  # most jobs find their image built

            remove(home)
            Build(name, lock_folder, home, self._uv_cache, progress).run()
            sync_all(home)  # the marker must not outlive a power cut that the rest does not
            write_whole(home / _COMPLETE, "")
        return _python(home)


def _python(home: Path) -> Path:
    return home / "bin" / "python"


def _is_complete(home: Path) -> bool:
    return (home / _COMPLETE).exists() and os.access(_python(home), os.X_OK)


def _size(root: Path) -> int:
    return sum(
        entry.stat(follow_symlinks=False).st_size
        for folder, _, names in os.walk(root)
        for entry in map(Path(folder).joinpath, names)
    )
