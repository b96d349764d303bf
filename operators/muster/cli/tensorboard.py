"""``muster tensorboard``: shows the event files of model versions, in the TensorBoard of an image."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.command import open_store
from muster.cli.foreground import python_of_image, serve
from muster.cli.screen import note, safe, say
from muster.core.errors import NotFound

if TYPE_CHECKING:
    from muster.volumes.base import Version
    from muster.volumes.protocols import LocalStore

EVENTS = "events.out.tfevents."


def tensorboard(
    address: Annotated[
        str | None, typer.Argument(metavar="ADDRESS", help="A volume or version; by default all.")
    ] = None,
    *,
    image: Annotated[str, typer.Option(help="The image with TensorBoard.")] = "train",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Its port on 127.0.0.1.")] = 6006,
) -> None:
    """Show the training curves of versions, until Ctrl-C."""
    runs = dict(_runs(open_store(), address))
    if not runs:
        raise NotFound(
            f"no TensorBoard events in {address or 'any volume'}: a stage writes them into its output"
        )
    python = python_of_image(image)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the folder of links is deleted
    with tempfile.TemporaryDirectory(prefix="muster-tensorboard-") as folder:
        for name, path in runs.items():
            (Path(folder) / name).symlink_to(path)
        note(f"{len(runs)} run{'s' * (len(runs) != 1)}: {safe(', '.join(runs))}")
        say(f"http://127.0.0.1:{port}/   Ctrl-C ends it")
        serve(
            "TensorBoard",
            [
                python,
                "-m",
                "tensorboard.main",
                "--logdir",
                folder,
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
            ],
        )


def _runs(store: LocalStore, address: str | None) -> Iterator[tuple[str, Path]]:
    """Yield a name and a folder for each version with event files."""
    for version in _versions(store, address):
        if any(path.rpartition("/")[2].startswith(EVENTS) for path in store.manifest(version.address)):
            yield f"{version.volume.replace('/', '.')}@{version.number}", store.path(version.address)


def _versions(store: LocalStore, address: str | None) -> list[Version]:
    if address is None:
        return [version for name in store.volumes() for version in store.versions(name)]
    if "@" in address:
        return list(store.resolve(address))
    return store.versions(address) or list(store.resolve(address))
