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
from muster.core.errors import NotFound
from muster.core.names import check_label
from muster.core.settings import Settings

if TYPE_CHECKING:
    from muster.backends.local.environments import Environment
    from muster.cli.containers import Bases, Recipe

app = group("Images: the locked environments that jobs run in.")


@dataclass(frozen=True, kw_only=True)
class Image:
    """One image that a Dag here may name, and its environment on this machine."""

    name: str
    digest: str
    folder: str
    built: bool
    size_bytes: int | None
    path: str | None


def find_images(settings: Settings) -> Iterator[Image]:
    """Yield every image that can be named from this folder: the Dags' own, more folders', the shipped."""
    from muster.backends.local.environments import LOCK, Environments
    from muster.cli.containers import OWN
    from muster.core.shipped import shipped

    built = {(e.name, e.digest): e for e in Environments(settings.cache).ls() if e.complete}
    seen: set[str] = set()
    for folder in _folders(settings):
        own = OWN if folder == shipped("images") else ()  # the cluster's, which no Dag names
        for lock in sorted(folder.glob(f"*/{LOCK}")):
            if lock.parent.name not in (*seen, *own):
                seen.add(lock.parent.name)
                yield _image(lock.parent, built)


def _folders(settings: Settings) -> tuple[Path, ...]:
    from muster.backends.local.environments import image_folders

    here = Path.cwd()
    return image_folders(settings, *sorted((here / "dags").glob("*/")), here / "dags", here)


def _image(folder: Path, built: dict[tuple[str, str], Environment]) -> Image:
    name, locked = folder.name, lock_digest(folder)
    there = built.get((name, locked.removeprefix("b3:")[:12]))
    return Image(
        name=name,
        digest=locked,
        folder=str(folder),
        built=there is not None,
        size_bytes=there.size_bytes if there else None,
        path=str(there.path) if there else None,
    )


def lock_digest(folder: Path) -> str:
    """Return what a job's spec carries of the image in `folder`."""
    from muster.backends.local.environments import LOCK, RECIPE
    from muster.volumes.snapshot import digest as snapshot_digest

    return snapshot_digest(folder, [name for name in (LOCK, RECIPE) if (folder / name).is_file()])


@app.command("ls", epilog=example("muster images ls"))
def list_images(*, as_json: Json = False) -> None:
    """List the images that a Dag here may name."""
    found = list(find_images(Settings.load()))
    if as_json:
        emit(found)
        return
    table = Table(["image", "lock", "built", ">size", "folder"])
    for image in found:
        built = "yes" if image.built else "no"
        room = None if image.size_bytes is None else size(image.size_bytes)
        table.add(image.name, digest(image.digest), built, room, image.folder)
    table.show(empty="no images")


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
        image = known.get(name) or _unknown(name, settings)
        took = build_image(settings, image)
        found.append({"name": image.name, "digest": image.digest, "seconds": took})
        if not as_json:
            say(f"{safe(image.name)} {'built in ' + seconds(took) if took else 'is built already'}")
    if as_json:
        emit({"environments": found})


def _recipe(name: str, known: dict[str, Image], settings: Settings) -> Recipe:
    from muster.cli.containers import OWN, Recipe
    from muster.core.shipped import shipped

    if name in OWN and name not in known:
        folder = shipped("images") / name
        return Recipe(name=name, folder=folder, digest=lock_digest(folder))
    image = known.get(name) or _unknown(name, settings)
    return Recipe(name=image.name, folder=Path(image.folder), digest=image.digest)


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
    from muster.backends.local.environments import LOCK, WANTED
    from muster.backends.local.lock import lock_image

    settings = Settings.load()
    check_label("image", name)
    wanted = list(dict.fromkeys(folder / name / WANTED for folder in _folders(settings)))
    found = next((path for path in wanted if path.is_file()), None)
    if found is None:
        raise NotFound(
            f"image {name!r}: no {WANTED} in {', '.join(str(path.parent) for path in wanted)}; write one that "
            f"names the packages it needs, and run this again"
        )
    packages = lock_image(name, found.parent, settings.cache / "uv").read_text().count("==")
    say(f"{safe(name)} is locked, {packages} packages: {safe(str(found.with_name(LOCK)))}")


def _unknown(name: str, settings: Settings) -> Image:
    """Let the backend say what is wrong with a name, or find it where only it looks."""
    from muster.backends.local.environments import find_image, image_folders

    return _image(find_image(name, image_folders(settings, Path.cwd())), {})


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
            return Environments(settings.cache).ensure(image.name, Path(image.folder), image.digest, tell)
    except KeyboardInterrupt:
        note(f"image {safe(image.name)} is not built; what was downloaded is kept")
        raise
