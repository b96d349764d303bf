"""The errors of a model server.

::

    ServingError
    ├── ModelError        a version's folder cannot be served; loading it is refused
    ├── RequestError      the client's fault: the request is wrong, HTTP 4xx, and the message names the field
    └── PredictionError   the version's fault: the model failed on a valid request, or its answer breaks its signature, HTTP 500

:func:`fault_of` decides whose fault any other error is: the client's while a request is read, the version's from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate

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


@contextmanager
def fault_of(kind: type[RequestError | PredictionError], doing: str) -> Iterator[None]:
    """Say whose fault an error is that no line foresaw; its traceback is in the log.

    :param doing: what failed then, such as "reading the request".
    :raises RequestError, PredictionError: that `kind`, in its place, or 503 where the memory does not do; the errors of a model
        server pass as they are.
    """
    try:
        yield
    except ServingError:
        raise
    except MemoryError as error:  # no one request is at fault: the next may fit
        raise RequestError(
            f"{doing} needs more memory than this server has left: try again", status=503
        ) from error
    except Exception as error:  # whatever it is, its client gets an answer of the usual shape
        logger.exception("%s failed", doing)
        raise kind(f"{doing} failed: {type(error).__name__}: {error!s:.200}") from error
