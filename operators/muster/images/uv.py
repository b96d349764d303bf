"""Runs muster's own uv for one image."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from muster.core.errors import ImageError
from muster.core.linux import die_with
from muster.core.shipped import need

_LAST_LINES = 12
_BEAT_SECONDS = 3.0


class Uv:
    """uv in the folder of an image: with a cache of its own, no configuration of the user's, and no Python but ours.

    :param folder: where uv runs: what a lock names as ``./FILE`` is beside the lock.
    :param variables: more of its environment.
    """

    def __init__(self, name: str, folder: Path, cache: Path, variables: Mapping[str, str]) -> None:
        self._name = name
        self._folder = folder
        self._env = {
            **os.environ,
            "UV_CACHE_DIR": str(cache),
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_NO_CONFIG": "1",
            **variables,
        }

    def run(
        self,
        *words: str,
        failed: str,
        cure: str,
        given: str = "",
        beat: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        """Run uv to its end; it dies with this process.

        :param failed: what to say where it fails, behind "uv".
        :param cure: what the user can do then.
        :param given: its stdin.
        :param beat: is told every few seconds how long it has run; an exception from it ends uv.
        :raises ImageError: uv failed; the message holds its last lines.
        """
        began = last = time.monotonic()
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8") as asked,
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said,
        ):
            asked.write(given)
            asked.seek(0)
            process = subprocess.Popen(
                [program(), "--color", "never", *words],
                cwd=self._folder,
                env=self._env,
                stdin=asked,
                stdout=said,
                stderr=subprocess.STDOUT,
                preexec_fn=partial(die_with, os.getpid()),  # the next process that builds it must be alone
            )
            try:
                while not _ended(process):
                    if time.monotonic() - last >= _BEAT_SECONDS:
                        last = time.monotonic()
                        beat(last - began)
            finally:
                process.kill()
                process.wait()
            if process.returncode:
                said.seek(0)
                lines = [f"  {line}" for line in said.read().splitlines() if line.strip()][-_LAST_LINES:]
                raise ImageError(
                    "\n".join(
                        [f"image {self._name}: uv {failed} (exit code {process.returncode})", *lines, cure]
                    )
                )


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(timeout=0.1)
    except subprocess.TimeoutExpired:
        return False
    return True


def program() -> str:
    """Return the path of muster's own uv."""
    need("machine", what="making the environment of an image")
    from uv import find_uv_bin  # only a build needs it

    return find_uv_bin()
