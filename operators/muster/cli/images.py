"""``muster images``: the locked environments that jobs run in, built ahead of time, here or as container images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.command import Json, example, group
from muster.cli.progress import progress
from muster.cli.screen import Table, digest, emit, note, safe, say, seconds, size
from muster.core.errors import NotFound, SpecError
from muster.core.names import check_label
from muster.core.settings import Settings, project_folder
from muster.core.shipped import copy_whole, shipped

if TYPE_CHECKING:
    from muster.images.containers import Bases, Recipe
    from muster.images.folders import Image

app = group("Images: the locked environments that jobs run in.")


@app.command("ls", epilog=example("muster images ls"))
def list_images(*, as_json: Json = False) -> None:
    """List the images that a Dag here may name. Only the Dag NAME may use the images in dags/NAME/images."""
    from muster.images.folders import images_of

    found = list(images_of(Settings.load(), project_folder()))
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
        if image.interpreter:
            note(f"image {safe(image.name)}: jobs here run with {safe(image.interpreter)}, not with its lock")
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
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Images to build.")] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Every image that a Dag here may name.")] = False,
    container: Annotated[
        bool,
        typer.Option("--container", help="Build a container image for a cluster, and no environment here."),
    ] = False,
    push: Annotated[
        str | None,
        typer.Option("--push", metavar="REGISTRY", help="Push the container image as REGISTRY/NAME:LOCK."),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option("--base", metavar="IMAGE", envvar="MUSTER_BASE", help="Base image; needs Python 3.11."),
    ] = None,
    build_base: Annotated[
        str | None,
        typer.Option(
            "--build-base",
            metavar="IMAGE",
            envvar="MUSTER_BUILD_BASE",
            help="Base image with a C++ compiler, for packages that are compiled.",
        ),
    ] = None,
    builder: Annotated[
        str | None, typer.Option("--builder", metavar="PROGRAM", help="buildah, podman or docker.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Build environments before jobs need them, or container images.

    A container image's tag is the digest of its lock, from which the cluster's backend derives its name. `muster` and
    `airflow` are images of muster itself, for the chart and for Airflow.
    """
    if every == bool(names):
        raise typer.BadParameter("name the images to build, or give --all")
    if builder is not None and not container and push is None:
        raise typer.BadParameter("--builder is for container images: give --container, or --push REGISTRY")
    from muster.images.folders import find_image, images_of, project_folders

    settings = Settings.load()
    folders = project_folders(settings, project_folder())
    known = {image.name: image for image in images_of(settings, project_folder())}
    if container or push is not None:
        from muster.images.containers import Bases, Recipe

        bases = Bases(base=base, compiler=build_base)
        wanted = [Recipe.find(name, folders) for name in (list(known) if every else names or [])]
        _build_containers(wanted, builder=builder, registry=push, bases=bases, as_json=as_json)
        return
    found = []
    for name in list(known) if every else names or []:
        find_image(name, folders)
        image = known[name]
        took = build_image(settings, image)
        found.append({"name": image.name, "digest": image.digest, "seconds": took})
        if not as_json:
            say(f"{safe(image.name)} {'built in ' + seconds(took) if took else 'is built already'}")
    if as_json:
        emit({"environments": found})


def _build_containers(
    wanted: list[Recipe], *, builder: str | None, registry: str | None, bases: Bases, as_json: bool
) -> None:
    from muster.images.builders import Builder
    from muster.images.containers import build

    program, found = Builder.find(builder), []
    # build none unless all are valid
    for recipe, arguments in [(each, bases.arguments(each)) for each in wanted]:
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
                say(f"  also {safe(made.also)}: it holds the code of this muster")
    if as_json:
        emit({"images": found})


@app.command("lock", epilog=example("muster images lock train"))
def lock(name: Annotated[str, typer.Argument(metavar="NAME", help="A folder in images/.")]) -> None:
    """Resolve an image's requirements.in into its lock.

    The lock, requirements.txt, has hashes and is the same for every platform. Versions already in it stay if possible;
    delete it to update them.
    """
    from muster.images.folders import known_images, project_folders
    from muster.images.lock import WANTED, entries, lock_image, trouble

    settings = Settings.load()
    check_label("image", name)
    folders = project_folders(settings, project_folder())
    found = known_images(folders).get(name)
    if found is None or not (found / WANTED).is_file():
        wrong = found and trouble(found)
        raise NotFound(
            f"image {name!r}: {wrong}"
            if wrong
            else f"image {name!r}: no folder {name}/ with a {WANTED} in {', '.join(map(str, folders))}; write one that "
            "names the packages it needs, and run this again"
        )
    if found.parent == shipped("images") and found.parent != project_folder() / "images":
        raise SpecError(
            f"image {name!r} is one that muster ships, in {found.parent}: copy it, `muster images copy {name} my{name}`, change "
            f"that one's {WANTED}, and lock it: `muster images lock my{name}`"
        )
    packages = len(entries(lock_image(name, found, settings.cache / "uv").read_text()))
    say(f"{safe(name)} is locked, {packages} packages: {safe(str(found / 'requirements.txt'))}")


@app.command("copy", epilog=example("muster images copy tables mytables"))
def copy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An image, such as one that muster ships.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The copy's name, a folder in images/.")],
) -> None:
    """Copy an image into the project's images/, to be changed there."""
    from muster.images.folders import find_image, project_folders

    check_label("image", new)
    project = project_folder()
    folders = project_folders(Settings.load(), project)
    taken = next((folder / new for folder in folders if (folder / new).exists()), None)
    if taken is not None:
        raise SpecError(f"image {new!r} is there already, {taken}: give the copy another name")
    target = project / "images" / new
    copy_whole(find_image(name, folders), target)
    say(f"{safe(new)} is a copy of {safe(name)}: {safe(str(target))}")
    note(f"Next: change {safe(str(target / 'requirements.in'))}, and run `muster images lock {safe(new)}`.")


def build_image(settings: Settings, image: Image) -> float | None:
    """Build one image with progress; return the seconds, or None if it was built already."""
    import time

    if image.built:
        return None
    began = time.monotonic()
    python_of(settings, image)
    return time.monotonic() - began


def python_of(settings: Settings, image: Image) -> Path:
    """Return the Python of an image's environment; build that first, with progress, if needed."""
    from muster.images.environment import Environments

    try:
        with progress() as tell:
            return Environments(settings.cache).ensure(image.name, Path(image.folder), image.lock, tell)
    except KeyboardInterrupt:
        note(f"image {safe(image.name)} is not built; downloads are kept")
        raise
