"""Container images of the locked environments: one context, one build and perhaps one push an image.

An image's folder holds its Dockerfile; an author's that has none is built as ``python`` is, which takes any lock. What
it is made from beside its folder is laid beside it: the model server, or this muster with what it ships.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from muster.core.errors import SpecError
from muster.core.shipped import shipped
from muster.images.builders import Builder, ContainerError, Progress
from muster.images.folders import OWN, find_image, image_digest, known_images
from muster.images.lock import RECIPE
from muster.volumes.snapshot import digest as snapshot_digest

DOCKERFILE = "Dockerfile"
_GENERIC = "python"
_TAG_DIGITS = 12  # of the lock's digest, as a cluster's backend writes it
LEAST_FREE_BYTES = 2 << 30
_PREFIX = re.compile(r"[a-z0-9][a-z0-9.-]*(:\d{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*\Z")
_BASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*\Z")
_UNSHIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


@dataclass(frozen=True, kw_only=True)
class ContainerImage:
    """One image that was built.

    :param reference: what it is called, ``registry.example/team-a/etl:4edec067fdea``.
    :param also: the same image under a name that says what else is in it.
    :param image_id: the digest of its configuration: two builds of the same are one.
    :param size: as the builder says it.
    """

    name: str
    reference: str
    also: str | None
    image_id: str
    size: str
    pushed: bool


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What one image is built from.

    :param folder: with its lock and perhaps a Dockerfile.
    :param digest: of its lock, as a job's spec carries it.
    """

    name: str
    folder: Path
    digest: str

    @classmethod
    def find(cls, name: str, folders: Iterable[Path]) -> Recipe:
        """Return that of an image that a Dag may name, or of muster's own.

        :raises SpecError: it is not there, not locked, or its lock is out of date.
        """
        searched = list(folders)
        if name in OWN and name not in known_images(searched):
            folder = shipped("images") / name
        else:
            folder = find_image(name, searched)
        return cls(name=name, folder=folder, digest=image_digest(folder))

    def dockerfile(self) -> Path:
        """Its own Dockerfile, or the one that takes any lock."""
        own = self.folder / DOCKERFILE
        if own.is_file():
            return own
        if (self.folder / RECIPE).exists():
            raise SpecError(
                f"image {self.name}: {RECIPE} says how it is built on one machine, and a container needs a "
                f"{DOCKERFILE} beside it that does the same: images/horovod is one"
            )
        return shipped("images") / _GENERIC / DOCKERFILE

    def tag(self) -> str:
        """The first digits of its lock's digest."""
        return self.digest.removeprefix("b3:")[:_TAG_DIGITS]

    @contextmanager
    def context(self) -> Iterator[tuple[Path, str]]:
        """Lay out what it is built from, and give the folder and a digest of what is in it beside the lock."""
        with tempfile.TemporaryDirectory(prefix="muster-context-") as name:
            root = Path(name)
            shutil.copytree(self.folder, root, dirs_exist_ok=True, ignore=_UNSHIPPED)
            shutil.copy(self.dockerfile(), root / DOCKERFILE)
            wanted = (root / DOCKERFILE).read_text()
            beside = [part for part in ("serving", "package") if f"COPY {part} " in wanted]
            for part in beside:
                _PARTS[part](root / part)
            files = [str(path.relative_to(root)) for part in beside for path in _files(root / part)]
            _open(root)
            yield root, snapshot_digest(root, sorted(files)) if files else ""


@dataclass(frozen=True, kw_only=True)
class Bases:
    """The images that others stand on; a Dockerfile's own choice where one is None.

    :param base: of every image.
    :param compiler: what is compiled is built on it: it has a C++ compiler, and the Python of `base`, at the same place.
    """

    base: str | None = None
    compiler: str | None = None

    def __post_init__(self) -> None:
        for base in filter(None, (self.base, self.compiler)):
            if len(base) > 300 or not _BASE.match(base):
                raise SpecError(
                    f"base {base!r:.100}: need an image with Python 3.11 or newer, such as python:3.11-slim"
                )

    def arguments(self, recipe: Recipe) -> tuple[str, ...]:
        """Return the words for the builder. :raises SpecError: the two would not go together."""
        compiles = "ARG BUILD=" in recipe.dockerfile().read_text()
        if compiles and self.base and not self.compiler:
            raise SpecError(
                f"image {recipe.name} is compiled, and would run on {self.base} with the Python of another image: name one "
                "that has the same Python and a C++ compiler, with --build-base"
            )
        given = {"BASE": self.base, "BUILD": self.compiler if compiles else None}
        return tuple(
            word for name, image in given.items() if image for word in ("--build-arg", f"{name}={image}")
        )


def build(
    recipe: Recipe, *, builder: Builder, prefix: str, arguments: Sequence[str], push: bool, tell: Progress
) -> ContainerImage:
    """Build one image, and push it where that is asked for.

    :param prefix: the registry and path that its name begins with.
    :param arguments: for the builder (:meth:`Bases.arguments`).
    :raises ContainerError: the builder failed; SpecError: a name is none.
    """
    _check(prefix)
    _check_disk()
    with recipe.context() as (context, digest), _secrets() as secrets:
        tags = _tags(recipe, prefix, digest)
        image_id = builder.build(context, tags, (*arguments, *secrets), tell)
    if push:
        for tag in tags:
            builder.push(tag, tell)
    return ContainerImage(
        name=recipe.name,
        reference=tags[0],
        also=tags[1] if len(tags) > 1 else None,
        image_id=image_id,
        size=builder.size(tags[0]),
        pushed=push,
    )


def _tags(recipe: Recipe, prefix: str, digest: str) -> list[str]:
    """Its names. What a job's spec carries names a lock alone, so an image with code of ours has a second one."""
    name, lock, code = f"{prefix}/{recipe.name}", recipe.tag(), digest.removeprefix("b3:")[:8]
    if not code:
        return [f"{name}:{lock}"]
    return [f"{name}:{lock}-{code}"] if recipe.name in OWN else [f"{name}:{lock}", f"{name}:{lock}-{code}"]


def _check(prefix: str) -> None:
    if len(prefix) > 200 or not _PREFIX.match(prefix):
        raise SpecError(
            f"registry {prefix!r:.100}: need its name and perhaps a path, such as registry.example/team-a, in small "
            "letters, without https:// and without a tag"
        )


def _check_disk() -> None:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE_BYTES:
        raise ContainerError(
            f"{free / (1 << 30):.1f} GiB free in {folder}, and an image needs 2 GiB and more to be built: "
            "free some, or set TMPDIR to another disk"
        )


@contextmanager
def _secrets() -> Iterator[tuple[str, ...]]:
    """Let the build see, and not keep, where packages come from here and whom to trust there."""
    with tempfile.TemporaryDirectory(prefix="muster-secrets-") as name:
        folder, found = Path(name), []
        config = _pip_config()
        if config:
            (folder / "pip.conf").write_text(config)
            found.append(f"id=pip.conf,src={folder / 'pip.conf'}")
        trusted = os.environ.get("SSL_CERT_FILE", "")
        if trusted and Path(trusted).is_file():
            found.append(f"id=ca.crt,src={trusted}")
        yield tuple(word for each in found for word in ("--secret", each))


def _pip_config() -> str:
    """What pip is told here about its index: variables, else its file."""
    known = {"index-url": "PIP_INDEX_URL", "extra-index-url": "PIP_EXTRA_INDEX_URL"}
    lines = [
        f"{name} = {os.environ[variable]}" for name, variable in known.items() if os.environ.get(variable)
    ]
    if lines:
        return "\n".join(["[global]", *lines, ""])
    file = os.environ.get("PIP_CONFIG_FILE")
    return Path(file).read_text() if file and Path(file).is_file() else ""


def _serving(target: Path) -> None:
    shutil.copytree(shipped("serving"), target, ignore=_UNSHIPPED)


def _package(target: Path) -> None:
    """Lay out muster as it is installed here: its modules, what they ship, and the words by which Airflow finds it."""
    package = Path(__file__).parents[1]
    shutil.copytree(package, target / "muster", ignore=_UNSHIPPED)
    for part in ("images", "serving", "dags"):
        if not (target / "muster" / "_shipped" / part).exists():
            shutil.copytree(shipped(part), target / "muster" / "_shipped" / part, ignore=_UNSHIPPED)
    try:
        found = distribution("airflow-provider-muster")
    except PackageNotFoundError as error:
        raise ContainerError(
            "this muster was not installed, so what it offers Airflow is not known"
        ) from error
    folder = target / f"airflow_provider_muster-{found.version}.dist-info"
    folder.mkdir()
    for file in ("METADATA", "entry_points.txt"):
        (folder / file).write_text(found.read_text(file) or "")


_PARTS: dict[str, Callable[[Path], None]] = {"serving": _serving, "package": _package}


def _files(root: Path) -> Iterator[Path]:
    return (path for path in root.rglob("*") if path.is_file())


def _open(root: Path) -> None:
    """Every user of the image may read it, whatever this user's umask is; modes are the same on every machine."""
    for path in root.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
