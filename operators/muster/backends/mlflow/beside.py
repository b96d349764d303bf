"""Calls an MLflow store that has no server, such as this machine's file, through a process that has MLflow."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster.core.errors import BackendError, ImageError, NotFound
from muster.core.text import one_line

_HELPER = Path(__file__).with_name("helper.py")
_START_SECONDS = 60.0  # MLflow is imported; the file's tables are made where it is new
_CALL_SECONDS = 30.0
_PART = 1 << 16


class Beside:
    """A process of an image's Python that answers calls of MLflow. It ends with this object, or with this process.

    :param variables: its environment.
    :raises ImageError: the image has no MLflow. :raises BackendError: it cannot be started.
    """

    def __init__(self, python: Path, variables: Mapping[str, str]) -> None:
        try:
            self._process = subprocess.Popen(
                [python, "-I", _HELPER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=dict(variables),
            )
        except OSError as error:
            raise BackendError(f"MLflow cannot be called: {python} does not start ({error})") from error
        self._read = b""
        try:
            told = self._answer(_START_SECONDS)
        except BaseException:
            self.close()
            raise
        if "missing" in told:
            self.close()
            raise ImageError(f"MLflow cannot be called: {one_line(told['missing'])}")

    def call(self, name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """See :class:`muster.backends.mlflow.runs.Transport`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"name": name, "given": given}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise BackendError(f"the process that calls MLflow has ended ({error})") from error
        told = self._answer(_CALL_SECONDS)
        if told.get("code") == "RESOURCE_DOES_NOT_EXIST":
            raise NotFound(f"MLflow: {one_line(told['error'])}")
        if "error" in told:
            raise BackendError(f"MLflow refuses {name}: {one_line(told['error'])}")
        found: Mapping[str, Any] = told["answer"]
        return found

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.kill()
        self._process.wait()

    def _answer(self, seconds: float) -> dict[str, Any]:
        """Read one line. :raises BackendError: none comes, or the process has ended."""
        assert self._process.stdout is not None
        deadline, handle = time.monotonic() + seconds, self._process.stdout.fileno()
        while b"\n" not in self._read:
            if not select.select([handle], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise BackendError(f"MLflow has not answered within {seconds:.0f} s")
            part = os.read(handle, _PART)
            if not part:
                raise BackendError("the process that calls MLflow has ended")
            self._read += part
        line, _, self._read = self._read.partition(b"\n")
        try:
            found: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise BackendError(f"MLflow's answer cannot be read ({error}): {line[:200]!r}") from error
        return found
