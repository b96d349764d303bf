"""The process of a model: it loads a version in the author's environment, and answers the requests that the front sends.

``python -m muster_serving.process.worker FD FOLDER OPTIONS``, where FD is a Unix socket
(:mod:`muster_serving.process.frames`) and OPTIONS a JSON object: ``trusted`` (what may be loaded though it can run
code), ``memory_gib`` (the most that the process may take), ``parent`` (the process with which it dies). It runs on
Python 3.10 and needs numpy, and what the model needs.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from muster_serving.errors import ModelError, PredictionError, ServingError
from muster_serving.process.frames import ANSWER, FAILED, READY, REFUSED, Line, Part

_PR_SET_PDEATHSIG = 1
_GIB = 1 << 30


def main() -> None:
    """Load, say so, and answer until the front hangs up."""
    number, folder, options = int(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    sys.argv = sys.argv[:1]
    _die_with(options["parent"])
    os.register_at_fork(after_in_child=lambda: _die_with(os.getppid()))
    memory_gib = options["memory_gib"]
    most = int(memory_gib * _GIB)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    line = Line(socket.socket(fileno=number))
    try:
        model = Model(
            folder,
            trusted=tuple(options["trusted"]),
            memory=f"the {memory_gib:g} GiB that one worker may take: raise memory_gib of the deployment's resources",
        )
    except ModelError as error:
        line.send([(REFUSED, str(error).encode())])
        return
    gc.collect()
    gc.freeze()  # what is loaded stays: no collection looks through it again
    line.send([(READY, b"")])
    while (requests := line.receive()) is not None:
        line.send(model.answer(requests))


class Model:
    """One loaded version.

    :param memory: how much it may take, and what gives it more, for messages.
    """

    def __init__(self, folder: Path, *, trusted: Sequence[str], memory: str) -> None:
        """Load it. :raises ModelError: it cannot be served; the message says why."""
        self._memory = memory
        try:  # here, since the author's image may lack numpy
            from muster_serving.predictors import load
            from muster_serving.process.layout import Layout
            from muster_serving.signature import SIGNATURE, Signature

            self.signature = Signature.load(folder / SIGNATURE)
            self._predict = load(folder, self.signature, trusted)
        except ServingError:
            raise
        except ModuleNotFoundError as error:
            traceback.print_exc()
            raise ModelError(
                f"it imports {error.name}, which its image lacks: add it to the image's requirements, or name an "
                "image that has it, image=…"
            ) from error
        except MemoryError as error:
            raise ModelError(f"loading it takes more than {self._memory}") from error
        except Exception as error:  # the author's code may raise anything
            traceback.print_exc()
            raise ModelError(f"it cannot be loaded: {_told(error)}{_place(error, folder)}") from error
        self._folder = folder
        self._inputs = Layout(self.signature.inputs.values())
        self._outputs = Layout(self.signature.outputs.values())

    def answer(self, requests: Sequence[Part]) -> list[tuple[int, bytes]]:
        """Compute requests together; where that fails, each alone, so that a bad one fails alone."""
        if len(requests) > 1:
            together = self._together(requests)
            if together is not None:
                return together
        return [self._alone(rows, data) for rows, data in requests]

    def _together(self, requests: Sequence[Part]) -> list[tuple[int, bytes]] | None:
        sizes = [rows for rows, _ in requests]
        total = sum(sizes)
        try:
            if self._inputs.joins:
                inputs = self._inputs.unpack(b"".join(data for _, data in requests), total)
            else:
                inputs = _joined([self._inputs.unpack(data, rows) for rows, data in requests])
            outputs = self._run(inputs, total)
        except PredictionError:
            return None
        answers = []
        at = 0
        for rows in sizes:
            mine = {name: array[at : at + rows] for name, array in outputs.items()}
            answers.append((ANSWER, self._outputs.pack(mine, rows)))
            at += rows
        return answers

    def _alone(self, rows: int, data: bytes | memoryview) -> tuple[int, bytes]:
        try:
            outputs = self._run(self._inputs.unpack(data, rows), rows)
        except PredictionError as error:
            return FAILED, str(error).encode()
        return ANSWER, self._outputs.pack(outputs, rows)

    def _run(self, inputs: dict[str, Any], rows: int) -> dict[str, Any]:
        """Ask the predictor, and check its answer. :raises PredictionError: it failed, or breaks the signature."""
        try:
            answer = self._predict(inputs)
            return {
                name: column.answer(given, rows)
                for (name, column), given in zip(
                    self.signature.outputs.items(), self._named(answer), strict=True
                )
            }
        except PredictionError:
            raise
        except MemoryError as error:
            raise PredictionError(f"the model needs more than {self._memory}") from error
        except Exception as error:  # the author's code may raise anything
            traceback.print_exc()
            raise PredictionError(f"the model failed: {_told(error)}{_place(error, self._folder)}") from error

    def _named(self, answer: Any) -> list[Any]:
        """Return the outputs in the signature's order."""
        wanted = list(self.signature.outputs)
        if not isinstance(answer, Mapping):
            raise PredictionError(
                f"the model answered {type(answer).__name__}, expected arrays by name: {', '.join(wanted)}"
            )
        if set(answer) != set(wanted):
            found = ", ".join(sorted(map(str, answer))) or "nothing"
            raise PredictionError(
                f"the model answered {found:.200}, the signature's outputs are {', '.join(wanted)}"
            )
        return [answer[name] for name in wanted]


def _joined(several: list[dict[str, Any]]) -> dict[str, Any]:
    import numpy as np

    return {name: np.concatenate([one[name] for one in several]) for name in several[0]}


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error!s:.300}" if str(error) else type(error).__name__


def _place(error: Exception, folder: Path) -> str:
    """Name the last line of the version's own files that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(folder)]
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""


def _die_with(parent: int) -> None:
    """Have the kernel end this process when `parent` ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it ended before the kernel was told


if __name__ == "__main__":
    main()
