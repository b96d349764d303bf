"""Images on one machine: a venv made from an image's lock by uv, once, and kept by the lock's digest.

An image is a folder: ``requirements.txt`` (the lock, with hashes), perhaps wheels of the author's own that it names, and
perhaps ``image.toml``::

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
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from muster.backends.local.places import locked_if_free
from muster.backends.local.requirements import LOCK, RECIPE, WANTED, check, wheels
from muster.core.errors import SpecError
from muster.core.names import check_label, nearest
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.volumes.durability import sync_all, write_whole
from muster.volumes.protocols import Store
from muster.volumes.tree import remove

if TYPE_CHECKING:
    from muster.backends.local.build import Progress

OWN = ("muster", "airflow")
"""Images of muster itself: the cluster's, in which no job runs."""

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
    """Return where images are looked for: ``images/`` of each of `roots`, ``MUSTER_IMAGES``, then what muster ships.

    :param roots: the Dag's folder, the folder of all Dags, and the project above it.
    """
    return tuple(dict.fromkeys([*(root / "images" for root in roots), *settings.images, shipped("images")]))


def project_folders(settings: Settings, project: Path) -> tuple[Path, ...]:
    """Return where the Dags of a project find images: the folders of :func:`image_folders`, of all of its Dags."""
    dags = project / "dags"
    own = sorted(folder for folder in dags.glob("*/") if folder.name != "images")
    return image_folders(settings, *own, dags, project)


def find_image(name: str, folders: Iterable[Path], *, others: Iterable[Path] = ()) -> Path:
    """Return the folder of the image `name`, the first in `folders`.

    :param others: folders of images that are other Dags' own; a message says what lies there.
    :raises SpecError: none is called so, it has no lock, or its lock is out of date.
    """
    check_label("image", name)
    searched = list(dict.fromkeys(folders))
    found = next((folder / name for folder in searched if (folder / name).is_dir()), None)
    if found is None:
        raise SpecError(_absent(name, searched, others))
    check(found)
    return found


def _absent(name: str, searched: Sequence[Path], others: Iterable[Path]) -> str:
    looked = f"looked for in {', '.join(map(str, searched))}"
    other = next((folder / name for folder in others if (folder / name).is_dir()), None)
    if other is not None:
        return (
            f"image {name!r} is another Dag's own, {other}: move it to {other.parents[2] / 'images'}, where all Dags find it "
            f"({looked})"
        )
    known = sorted(known_images(searched))
    near = nearest(name, known)
    return (
        f"image {name!r} is not there{f'; did you mean {near}?' if near else ''}; known are: {', '.join(known) or 'none'}; "
        f"{looked}. To make one, write the packages it needs into {searched[0] / name / WANTED} and run "
        f"`muster images lock {name}`; MUSTER_IMAGES names more folders"
    )


def known_images(folders: Iterable[Path]) -> dict[str, Path]:
    """Return the images of some folders by name, the first of each; muster's own, in which no job runs, are none."""
    found: dict[str, Path] = {}
    for folder in folders:
        own = OWN if folder == shipped("images") else ()
        for path in sorted(folder.glob("*/")):
            if path.name not in own and any((path / file).is_file() for file in (LOCK, WANTED)):
                found.setdefault(path.name, path)
    return found


def image_files(folder: Path) -> list[str]:
    """Return the files of an image that a job's environment is made from: the lock, the recipe, wheels of one's own."""
    lock = folder / LOCK
    own = wheels(lock.read_text(encoding="utf-8")) if lock.is_file() else []
    return [name for name in (LOCK, RECIPE, *own) if (folder / name).is_file()]


def put_image(store: Store, folder: Path) -> str:
    """Keep an image's lock, recipe and wheels in the store and return the digest that a spec carries."""
    return store.put(folder, image_files(folder))


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
            try:
                Build(name, lock_folder, home, self._uv_cache, progress).run()
            except BaseException:  # a cancel and a full disk, too
                with suppress(OSError):
                    remove(home)
                raise
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
