"""Where images are looked for, what is there, and what of an image travels with a job.

An image is a folder: ``requirements.txt`` (the lock, with hashes), perhaps wheels of the author's own that it names, and
perhaps ``image.toml``::

    [build]
    no_isolation = ["horovod"]  # built against what the rest of the lock installed
    [build.env]
    CMAKE_PREFIX_PATH = "{image}/lib"  # {image} is the venv's folder

A name means the first folder of that name. Where that one holds neither a lock nor a ``requirements.in``, the name is
refused, and not looked for further: its author meant that folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from muster.core.errors import SpecError
from muster.core.names import check_label, nearest
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.images.environment import Environments
from muster.images.lock import LOCK, RECIPE, WANTED, check, trouble, wheels
from muster.volumes.protocols import Snapshots
from muster.volumes.snapshot import digest as snapshot_digest

OWN = ("muster", "airflow")
"""Images of muster itself: the cluster's, in which no job runs."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """One image that a Dag here may name, and its environment on this machine.

    :param digest: of its lock; None where it has none that could be built, which `trouble` tells.
    :param interpreter: the Python that runs its jobs on this machine in place of an environment of its lock, if one is set.
    """

    name: str
    digest: str | None
    folder: str
    trouble: str | None
    built: bool
    size_bytes: int | None
    path: str | None
    interpreter: str | None = None

    @property
    def lock(self) -> str:
        """The digest of its lock. :raises SpecError: it has none that could be built."""
        if self.digest is None:
            raise SpecError(f"image {self.name!r}: {self.trouble}")
        return self.digest


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
    """Return the folder of the image `name`, ready to be built.

    :param others: folders of images that are other Dags' own; a message says what lies there.
    :raises SpecError: there is none of that name, no job runs in it, it has no lock, or its lock is out of date.
    """
    check_label("image", name)
    searched = list(dict.fromkeys(folders))
    named = (folder / name for folder in searched)
    found = next((path for path in named if path.is_dir() and not _is_own(path)), None)
    if found is None:
        raise SpecError(_absent(name, searched, others))
    check(found)
    return found


def known_images(folders: Iterable[Path]) -> dict[str, Path]:
    """Return the images of some folders by name, as :func:`find_image` finds them; some may have to be locked first."""
    first, images = dict[str, Path](), set[str]()
    for folder in dict.fromkeys(folders):
        for path in sorted(folder.glob("*/")):
            if not _is_own(path):
                first.setdefault(path.name, path)
                if any((path / file).is_file() for file in (LOCK, WANTED)):
                    images.add(path.name)
    return {name: path for name, path in first.items() if name in images}


def images_of(settings: Settings, project: Path) -> Iterator[Image]:
    """Yield every image that a Dag of a project may name: a Dag's own, the project's, further folders', the shipped."""
    built = {(e.name, e.digest): e for e in Environments(settings.cache).ls() if e.complete}
    for name, folder in known_images(project_folders(settings, project)).items():
        wrong = trouble(folder)
        locked = None if wrong else image_digest(folder)
        there = built.get((name, locked.removeprefix("b3:")[:12])) if locked else None
        yield Image(
            name=name,
            digest=locked,
            folder=str(folder),
            trouble=wrong,
            built=there is not None,
            size_bytes=there.size_bytes if there else None,
            path=str(there.path) if there else None,
            interpreter=str(python) if (python := settings.interpreter(name)) else None,
        )


def put_image(store: Snapshots, folder: Path) -> str:
    """Keep an image's lock, recipe and wheels in the store and return the digest that a spec carries."""
    return store.put(folder, _files(folder))


def image_digest(folder: Path) -> str:
    """Return what :func:`put_image` would."""
    return snapshot_digest(folder, _files(folder))


def _files(folder: Path) -> list[str]:
    """The files of an image that a job's environment is made from: the lock, the recipe, wheels of one's own."""
    lock = folder / LOCK
    own = wheels(lock.read_text(encoding="utf-8")) if lock.is_file() else []
    return [name for name in (LOCK, RECIPE, *own) if (folder / name).is_file()]


def _is_own(folder: Path) -> bool:
    return folder.name in OWN and folder.parent == shipped("images")


def _absent(name: str, searched: Sequence[Path], others: Iterable[Path]) -> str:
    if name in OWN:
        return (
            f"image {name!r} is muster's own, and no job runs in it: it is built as a container alone, by "
            f"`muster images build {name} --container`"
        )
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
