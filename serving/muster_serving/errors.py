"""The errors of a model server.

::

    ServingError
    ├── ModelError        a version's folder cannot be served; loading it is refused
    ├── RequestError      the client's fault: the request is wrong, HTTP 4xx, and the message names the field
    └── PredictionError   the version's fault: the model failed on a valid request, or its answer breaks its signature, HTTP 500

Within :data:`READING` any other error is the client's fault, and within :data:`ANSWERING` and :data:`WRITING` the version's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

logger = logging.getLogger("muster.serving")


class ServingError(Exception):
    """Base of the errors of a model server."""


class ModelError(ServingError):
    """A version's folder cannot be served."""


class RequestError(ServingError):
    """A request is wrong. :param status: the HTTP status of the answer."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class PredictionError(ServingError):
    """The model failed on a request that its signature allows."""


def refuse_half_pairs(texts: Sequence[str], where: str) -> None:
    """Refuse a lone surrogate, which Python's JSON accepts and UTF-8 cannot hold. :raises RequestError: one is there."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        ends = accumulate(map(len, texts))
        row = next(row for row, end in enumerate(ends) if error.start < end)
        found = f"{error.object[error.start]!r}{f' at position {row}' if len(texts) > 1 else ''}"
        raise RequestError(
            f"{where}: found {found}, half of a pair of surrogates, which is no character: send whole characters"
        ) from None


class _FaultOf:
    """Says whose fault an error is that no line foresaw; its traceback is in the log. A class, since each request enters it four times.

    :param doing: what failed then.
    :raises RequestError, PredictionError: that `kind`, in its place, or 503 where the memory does not do; the errors of a model
        server pass as they are.
    """

    def __init__(self, kind: type[RequestError | PredictionError], doing: str) -> None:
        self._kind, self._doing = kind, doing

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if kind is None or isinstance(error, ServingError) or not isinstance(error, Exception):
            return
        if isinstance(error, MemoryError):  # no single request is at fault: the next may fit
            message = f"{self._doing} needs more memory than this server has left: try again"
            raise RequestError(message, status=503) from error
        # whatever it is, its client gets an answer of the usual shape
        logger.error("%s failed", self._doing, exc_info=error)
        raise self._kind(f"{self._doing} failed: {type(error).__name__}: {error!s:.200}") from error


READING = _FaultOf(RequestError, "reading the request")
ANSWERING = _FaultOf(PredictionError, "answering the request")
WRITING = _FaultOf(PredictionError, "writing the answer")
