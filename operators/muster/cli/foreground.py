"""Runs a server of an image in the foreground until Ctrl-C: TensorBoard, MLflow."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from muster.cli.images import python_of
from muster.core.errors import ImageError
from muster.core.settings import Settings


def python_of_image(name: str) -> str:
    """Return the Python of an image that a Dag here may name, built if it is missing.

    :raises ImageError: there is no such image.
    """
    from muster.images.folders import images_of

    settings = Settings.load()
    image = next((image for image in images_of(settings, Path.cwd()) if image.name == name), None)
    if image is None:
        raise ImageError(f"image {name!r:.60} does not exist: `muster images ls` lists the images")
    return str(python_of(settings, image))


def serve(
    what: str,
    command: Sequence[str],
    *,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Run a server until it ends or Ctrl-C; the kernel ends it if this process is killed.

    :param command: a server of one process; child processes would not be ended with it.
    :param folder: its working folder; the present one by default.
    :param variables: variables added to its environment.
    :raises ImageError: it ended by itself with an error.
    """
    from muster.backends.local.variables import NO_TELEMETRY
    from muster.core.linux import die_with

    parent = os.getpid()
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=sys.stderr,
        env=os.environ | NO_TELEMETRY | dict(variables or {}),
        preexec_fn=lambda: die_with(parent),
    )
    try:
        code = process.wait()
    except KeyboardInterrupt:
        code = 0
    finally:
        process.terminate()
        process.wait()
    if code:
        raise ImageError(
            f"{what} ended with exit code {code}: its last lines above say why; if the port is in use, try another --port"
        )
