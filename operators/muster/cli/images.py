"""``muster images``: the locked environments that jobs run in, built ahead of time, here or as container images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.command import Json, example, group
from muster.cli.progress import progress
from muster.cli.screen import Table, digest, emit, note, safe, say, seconds, size
from muster.core.errors import NotFound, SpecError
from muster.core.names import check_label
from muster.core.settings import Settings

if TYPE_CHECKING:
    from muster.backends.local.environments import Environment
    from muster.cli.containers import Bases, Recipe

app = group("Images: the locked environments that jobs run in.")


@dataclass(frozen=True, kw_only=True)
class Image:
    """One image that a Dag here may name, and its environment on this machine.

    :param digest: of its lock; None where it has none that could be built, which `trouble` tells.
    """

    name: str
    digest: str | None
    folder: str
    trouble: str | None
    built: bool
    size_bytes: int | None
    path: str | None

    @property
    def lock(self) -> str:
        """The digest of its lock. :raises SpecError: it has none that could be built."""
        if self.digest is None:
            raise SpecError(f"image {self.name!r}: {self.trouble}")
        return self.digest


def find_images(settings: Settings) -> Iterator[Image]:
    """Yield every image that a Dag of this project may name: a Dag's own, the project's, further folders', the shipped."""
    from muster.backends.local.environments import Environments, known_images, project_folders

    built = {(e.name, e.digest): e for e in Environments(settings.cache).ls() if e.complete}
    for folder in known_images(project_folders(settings, Path.cwd())).values():
        yield _image(folder, built)


def _image(folder: Path, built: dict[tuple[str, str], Environment]) -> Image:
    from muster.backends.local.requirements import trouble

    name, wrong = folder.name, trouble(folder)
    locked = None if wrong else lock_digest(folder)
    there = built.get((name, locked.removeprefix("b3:")[:12])) if locked else None
    return Image(
        name=name,
        digest=locked,
        folder=str(folder),
        trouble=wrong,
        built=there is not None,
        size_bytes=there.size_bytes if there else None,
        path=str(there.path) if there else None,
    )


def lock_digest(folder: Path) -> str:
    """Return what a job's spec carries of the image in `folder`."""
    from muster.backends.local.environments import image_files
    from muster.volumes.snapshot import digest as snapshot_digest

    return snapshot_digest(folder, image_files(folder))


@app.command("ls", epilog=example("muster images ls"))
def list_images(*, as_json: Json = False) -> None:
    """List the images that a Dag here may name. One below dags/NAME/images is that Dag's alone."""
    found = list(find_images(Settings.load()))
    if as_json:
        emit(found)
        return
    table = Table(["image", "lock", "built", ">size", "folder"])
    for image in found:
        built = "yes" if image.built else "no"
        room = None if image.size_bytes is None else size(image.size_bytes)
        table.add(image.name, digest(image.digest) if image.digest else "none", built, room, image.folder)
    table.show(empty="no images")
    for image in found:
        if image.trouble:
            note(f"warning: image {safe(image.name)}: {safe(image.trouble)}")


@app.command(
    "build",
    epilog=example(
        "muster images build train",
        "muster images build --all",
        "muster images build etl serve --push registry.example/team-a",
        "muster images build muster --container --base python:3.12-slim --json",
    ),
)
def build(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Which to build.")] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Every image that a Dag here may name.")] = False,
    container: Annotated[
        bool, typer.Option("--container", help="A container image for a cluster, and no environment here.")
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(
            "--push", metavar="REGISTRY", help="Send the container image there: REGISTRY/NAME:LOCK."
        ),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            "--base", metavar="IMAGE", envvar="MUSTER_BASE", help="What it stands on; has Python 3.11."
        ),
    ] = None,
    build_base: Annotated[
        str | None,
        typer.Option(
            "--build-base",
            metavar="IMAGE",
            envvar="MUSTER_BUILD_BASE",
            help="What is compiled is built on it: the base with a C++ compiler.",
        ),
    ] = None,
    builder: Annotated[
        str | None, typer.Option("--builder", metavar="PROGRAM", help="buildah, podman or docker.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Build environments ahead of their jobs, or container images.

    A container image is called by the digest of its lock, as a cluster's backend will ask for it. `muster` and
    `airflow` are images of muster itself, for the chart and for Airflow.
    """
    if every == bool(names):
        raise typer.BadParameter("name the images to build, or give --all")
    if builder is not None and not container and push is None:
        raise typer.BadParameter("--builder is for container images: give --container, or --push REGISTRY")
    settings = Settings.load()
    known = {image.name: image for image in find_images(settings)}
    if container or push is not None:
        from muster.cli.containers import Bases

        bases = Bases(base=base, compiler=build_base)
        wanted = [_recipe(name, known, settings) for name in (list(known) if every else names or [])]
        _build_containers(wanted, builder=builder, registry=push, bases=bases, as_json=as_json)
        return
    found = []
    for name in list(known) if every else names or []:
        image = _known(name, known, settings)
        took = build_image(settings, image)
        found.append({"name": image.name, "digest": image.digest, "seconds": took})
        if not as_json:
            say(f"{safe(image.name)} {'built in ' + seconds(took) if took else 'is built already'}")
    if as_json:
        emit({"environments": found})


def _recipe(name: str, known: dict[str, Image], settings: Settings) -> Recipe:
    from muster.backends.local.environments import OWN
    from muster.cli.containers import Recipe
    from muster.core.shipped import shipped

    if name in OWN and name not in known:
        folder = shipped("images") / name
        return Recipe(name=name, folder=folder, digest=lock_digest(folder))
    image = _known(name, known, settings)
    return Recipe(name=image.name, folder=Path(image.folder), digest=image.lock)


def _build_containers(
    wanted: list[Recipe], *, builder: str | None, registry: str | None, bases: Bases, as_json: bool
) -> None:
    from muster.cli.builders import Builder
    from muster.cli.containers import build

    program, found = Builder.find(builder), []
    for recipe, arguments in [(each, bases.arguments(each)) for each in wanted]:  # none before all are sound
        with progress() as tell:
            made = build(
                recipe,
                builder=program,
                prefix="localhost" if registry is None else registry,
                arguments=arguments,
                push=registry is not None,
                tell=tell,
            )
        found.append(made)
        if not as_json:
            say(
                f"{safe(made.name)}  {safe(made.reference)}  {safe(made.size)}{'  pushed' if made.pushed else ''}"
            )
            if made.also:
                say(f"  also {safe(made.also)}: the code that is in it is this muster's")
    if as_json:
        emit({"images": found})


@app.command("lock", epilog=example("muster images lock train"))
def lock(name: Annotated[str, typer.Argument(metavar="NAME", help="A folder below images/.")]) -> None:
    """Resolve an image's requirements.in into its lock.

    The lock, requirements.txt, holds hashes and is the same for every platform. Versions that it holds already stay where
    they can; delete it to renew them.
    """
    from muster.backends.local.environments import known_images, project_folders
    from muster.backends.local.lock import lock_image
    from muster.backends.local.requirements import WANTED, entries, trouble

    settings = Settings.load()
    check_label("image", name)
    folders = project_folders(settings, Path.cwd())
    found = known_images(folders).get(name)
    if found is None or not (found / WANTED).is_file():
        wrong = found and trouble(found)
        raise NotFound(
            f"image {name!r}: {wrong}"
            if wrong
            else f"image {name!r}: no folder {name}/ with a {WANTED} in {', '.join(map(str, folders))}; write one that "
            "names the packages it needs, and run this again"
        )
    packages = len(entries(lock_image(name, found, settings.cache / "uv").read_text()))
    say(f"{safe(name)} is locked, {packages} packages: {safe(str(found / 'requirements.txt'))}")


def _known(name: str, known: dict[str, Image], settings: Settings) -> Image:
    """Return an image that can be built. :raises SpecError: it is not there, not locked, or its lock is out of date."""
    from muster.backends.local.environments import OWN, find_image, project_folders

    if name in OWN and name not in known:
        raise SpecError(
            f"image {name!r} is muster's own, and no job runs in it: it is built as a container alone, by "
            f"`muster images build {name} --container`"
        )
    if name not in known or known[name].trouble:
        find_image(name, project_folders(settings, Path.cwd()))
    return known[name]


def build_image(settings: Settings, image: Image) -> float | None:
    """Build one image with progress; the seconds it took, or None where it was there."""
    import time

    if image.built:
        return None
    began = time.monotonic()
    python_of(settings, image)
    return time.monotonic() - began


def python_of(settings: Settings, image: Image) -> Path:
    """Return the Python of an image's environment, built now with progress if it is not there yet."""
    from muster.backends.local.environments import Environments

    try:
        with progress() as tell:
            return Environments(settings.cache).ensure(image.name, Path(image.folder), image.lock, tell)
    except KeyboardInterrupt:
        note(f"image {safe(image.name)} is not built; what was downloaded is kept")
        raise
