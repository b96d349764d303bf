"""Runs a server of an image in the foreground until Ctrl-C: JupyterLab, TensorBoard, MLflow, Spark's history server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from muster.cli.images import python_of
from muster.core.errors import Conflict, ImageError
from muster.core.settings import Settings, project_folder


def python_of_image(name: str) -> str:
    """Return the Python that jobs of an image run with here: the one that is set for it, or its environment, built if missing.

    :raises ImageError: there is no such image.
    """
    from muster.images.folders import images_of

    settings = Settings.load()
    image = next((image for image in images_of(settings, project_folder()) if image.name == name), None)
    if image is None:
        raise ImageError(f"image {name!r:.60} does not exist: `muster images ls` lists the images")
    return image.interpreter or str(python_of(settings, image))


def check_port(port: int, *, option: str = "--port") -> None:
    """Find out whether a server can listen there. :raises Conflict: another program does; `option` names another."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError as error:
            raise Conflict(
                f"port {port} of 127.0.0.1 cannot be used ({error.strerror}): another program listens there, or it is "
                f"reserved; name another one, such as {option} {port + 1 if port < 65535 else 8888}"
            ) from error


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Make a folder that is deleted when this process ends, by a closed terminal or SIGTERM too."""
    for end in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(end) is not signal.SIG_IGN:  # nohup has it ignored
            signal.signal(end, lambda number, _: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix=prefix) as place:
        yield Path(place)


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
    finally:
        process.terminate()
        process.wait()
    if code:
        raise ImageError(f"{what} ended with exit code {code}: its last lines above say why")
