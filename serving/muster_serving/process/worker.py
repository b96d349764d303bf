"""The process of a model: it loads a version in the author's environment, and answers the requests that the front sends.

``python -m muster_serving.process.worker FD BEGUN FOLDER OPTIONS``, where FD is a Unix socket
(:mod:`muster_serving.process.frames`), BEGUN a file in memory where it counts the frames that it begins, so that those that it had
not begun when it dies can go to another, and OPTIONS a JSON object: ``trusted`` (what may be loaded though it can run
code), ``stream`` (whether it answers in parts), ``memory_gib`` (the most that the process may take), ``parent`` (the process
with which it dies). It runs on Python 3.10 and needs numpy, and what the model needs.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import json
import mmap
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster_serving.errors import ModelError, PredictionError, RequestError, ServingError
from muster_serving.process.frames import (
    ANSWER,
    FAILED,
    PART,
    READY,
    REFUSED,
    ROWS,
    SPENT,
    STOP,
    WRONG,
    Part,
    WorkerLine,
)

if TYPE_CHECKING:
    from muster_serving.column import Array

_PR_SET_PDEATHSIG = 1
_GIB = 1 << 30
_MEMORY_OF_A_TASK = (
    "there is: raise memory_gib of the task's resources, or have fewer processes at once (cpus)"
)
_END = object()


def main() -> None:
    """Load, say so, and answer until the front hangs up."""
    number, begun, folder, options = (
        int(sys.argv[1]),
        memoryview(mmap.mmap(int(sys.argv[2]), 8)).cast("Q"),
        Path(sys.argv[3]),
        json.loads(sys.argv[4]),
    )
    sys.argv = sys.argv[:1]
    _die_with(options["parent"])
    os.register_at_fork(after_in_child=lambda: _die_with(os.getppid()))
    memory_gib = options["memory_gib"]
    most = int(memory_gib * _GIB)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    line = WorkerLine(socket.socket(fileno=number))
    try:
        model = Model(
            folder,
            trusted=tuple(options["trusted"]),
            stream=options["stream"],
            memory=f"the {memory_gib:g} GiB that one worker may take: raise memory_gib of the deployment's resources",
        )
    except ModelError as error:
        line.send([(REFUSED, str(error).encode())])
        return
    gc.collect()
    gc.freeze()  # what is loaded stays: no collection looks through it again
    line.send([(READY, b"")])
    try:
        while (requests := line.receive()) is not None:
            begun[0] += 1
            if options["stream"]:
                _answer_in_parts(model, *requests[0], line)
            else:
                line.send(model.answer(requests))
    except (
        MemoryError
    ):  # one that is too large to be read has begun, too: else it would end the next process as well
        begun[0] += 1
        raise


def _answer_in_parts(model: Model, rows: int, data: bytes | memoryview, line: WorkerLine) -> None:
    """Send each part when the front asks for it; close the predictor's generator where it wants no more."""
    last = ANSWER, b""
    try:
        with closing(model.parts(rows, data)) as parts:
            for part in parts:
                line.send([(PART, part)])
                told = line.receive()
                if told is None:
                    return
                if told[0][0] == STOP:
                    break
    except ServingError as error:
        last = _failure(error)
    line.send([last])


class Model:
    """One loaded version.

    :param memory: how much it may take, and what gives it more, for messages.
    :param stream: whether it is asked for :meth:`parts`.
    :ivar inputs: the records of its inputs, and :ivar outputs: those of its outputs.
    """

    def __init__(self, folder: Path, *, trusted: Sequence[str], memory: str, stream: bool = False) -> None:
        """Load it. :raises ModelError: it cannot be served; the message says why."""
        self._memory = memory
        try:  # here, since the author's image may lack numpy
            from muster_serving.predictors import load
            from muster_serving.process.layout import RecordLayout
            from muster_serving.signature import SIGNATURE, ModelSignature

            self.signature = ModelSignature.load(folder / SIGNATURE)
            self._predict = load(folder, self.signature, trusted)
        except ServingError:
            raise
        except ModuleNotFoundError as error:
            traceback.print_exc()
            what = "every worker needs numpy" if error.name == "numpy" else f"it imports {error.name}"
            raise ModelError(
                f"{what}, which its image lacks: add it to the image's requirements, or name an "
                "image that has it, image=…"
            ) from error
        except MemoryError as error:
            raise ModelError(f"loading it takes more than {self._memory}") from error
        except Exception as error:  # the author's code may raise anything
            traceback.print_exc()
            raise ModelError(f"it cannot be loaded: {_told(error)}{_place(error, folder)}") from error
        if inspect.isgeneratorfunction(self._predict) and not stream:
            raise ModelError(
                "predict yields its answer in parts: deploy it with stream=True; no ScoreOperator scores it"
            )
        self._folder = folder
        self.inputs = RecordLayout(self.signature.inputs.values())
        self.outputs = RecordLayout(self.signature.outputs.values())

    def answer(self, requests: Sequence[Part]) -> list[tuple[int, bytes]]:
        """Compute requests together; where that fails, each alone, so that a bad one fails alone."""
        if len(requests) > 1:
            together = self._together(requests)
            if together is not None:
                return together
        return [self._alone(rows, data) for rows, data in requests]

    def parts(self, rows: int, data: bytes | memoryview) -> Iterator[bytes]:
        """Compute a request part by part: yield the rows of each, and the bytes of its outputs.

        :raises PredictionError: the predictor failed, or a part breaks the signature.
        """
        given: Any = None
        try:
            with self._failing():
                given = self._predict(self.inputs.unpack(data, rows))
            given = iter((given,)) if isinstance(given, Mapping) else given
            if not isinstance(given, Iterator):
                raise PredictionError(
                    f"the model answered {type(given).__name__}, expected an iterator of arrays by name"
                )
            number = 0
            while (part := self._next(given)) is not None:
                number += 1
                yield part
            if not number:
                raise PredictionError("the model yielded no part, expected one or more")
        finally:
            if close := getattr(given, "close", None):
                with self._failing():
                    close()

    def _next(self, given: Iterator[Any]) -> bytes | None:
        """Return the next part as bytes; None where there is none."""
        with self._failing():
            part = next(given, _END)
            if part is _END:
                return None
            rows = _rows(next(iter(self.signature.outputs)), self._named(part)[0])
            return ROWS.pack(rows) + self.outputs.pack(self._checked(part, rows), rows)

    def _together(self, requests: Sequence[Part]) -> list[tuple[int, bytes]] | None:
        sizes = [rows for rows, _ in requests]
        total = sum(sizes)
        try:
            if self.inputs.joins:
                inputs = self.inputs.unpack(b"".join(data for _, data in requests), total)
            else:
                inputs = _joined([self.inputs.unpack(data, rows) for rows, data in requests])
            outputs = self._run(inputs, total)
        except ServingError:
            return None
        answers = []
        at = 0
        for rows in sizes:
            mine = {name: array[at : at + rows] for name, array in outputs.items()}
            answers.append((ANSWER, self.outputs.pack(mine, rows)))
            at += rows
        return answers

    def _alone(self, rows: int, data: bytes | memoryview) -> tuple[int, bytes]:
        try:
            outputs = self._run(self.inputs.unpack(data, rows), rows)
        except ServingError as error:
            return _failure(error)
        return ANSWER, self.outputs.pack(outputs, rows)

    def _run(self, inputs: dict[str, Any], rows: int) -> dict[str, Any]:
        """Ask the predictor, and check its answer. :raises PredictionError: it failed, or breaks the signature."""
        with self._failing():
            answer = self._predict(inputs)
            if isinstance(answer, Iterator):
                raise PredictionError(
                    f"the model answered {type(answer).__name__}: where it answers in parts, deploy it with stream=True"
                )
            return self._checked(answer, rows)

    def _checked(self, answer: Any, rows: int) -> dict[str, Any]:
        return {
            name: column.answer(given, rows)
            for (name, column), given in zip(self.signature.outputs.items(), self._named(answer), strict=True)
        }

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Say what went wrong in the predictor.

        :raises PredictionError: something did. :raises RequestError: a value has no place among an input's categories.
        """
        try:
            yield
        except ServingError:
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


class AlonePredictor:
    """A version in the process of its caller, without a front: rows are scored as a worker answers them."""

    def __init__(self, folder: Path, *, trusted: Sequence[str]) -> None:
        """Load it. :raises ModelError: it cannot be loaded; the message says why."""
        self._model = Model(folder, trusted=trusted, memory=_MEMORY_OF_A_TASK)
        self.signature = self._model.signature

    def predict(self, columns: Mapping[str, list[Any] | Array], rows: int) -> dict[str, Array]:
        """Answer as :meth:`muster_serving.process.predictor.ProcessPredictor.predict` does, for the same arguments."""
        ((kind, data),) = self._model.answer([(rows, self._model.inputs.pack_values(columns, rows))])
        if kind != ANSWER:
            raise (RequestError if kind == WRONG else PredictionError)(data.decode())
        return self._model.outputs.unpack(data, rows)


def _failure(error: ServingError) -> tuple[int, bytes]:
    kind = WRONG if isinstance(error, RequestError) else FAILED
    if isinstance(error.__cause__, MemoryError):
        kind = SPENT
    return kind, str(error).encode("utf-8", "backslashreplace")


def _rows(name: str, given: Any) -> int:
    """Return how many rows a part has, by its first output. :raises PredictionError: none."""
    import numpy as np

    shape = list(np.shape(given))
    if not shape or not shape[0]:
        raise PredictionError(f"output {name!r}: a part has shape {shape}, expected one row or more")
    return int(shape[0])


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
