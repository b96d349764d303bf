"""Errors on the wire: ``{"error": "Conflict", "message": …}``, and back to the error that was raised.

The class's name decides, not the HTTP status, which is for people, proxies and ``curl``.
"""

from __future__ import annotations

import json
import os

from muster.core import errors
from muster.core.errors import (
    BadOutput,
    Conflict,
    Corrupt,
    MusterError,
    NotFound,
    SpecError,
    StoreError,
    Unavailable,
)
from muster.volumes.service.tokens import TokenRefused


class Over(Conflict):
    """The job has ended: not only this start of the gang, but no start goes on."""


class ServiceBusy(Unavailable):
    """The answer is being prepared, which takes long: a later retry gets it."""


_STATUS: tuple[tuple[type[MusterError], int], ...] = (
    (TokenRefused, 401),
    (NotFound, 404),
    (Over, 410),
    (Conflict, 409),
    (BadOutput, 422),
    (SpecError, 400),
    (Corrupt, 500),
    (Unavailable, 503),
)


def status_of(error: MusterError) -> int:
    """Return the HTTP status nearest to an error."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def document(error: MusterError) -> dict[str, str | int]:
    """Return an error as JSON: the nearest class of :mod:`muster.core.errors`, and the disk's errno."""
    known = next(kind for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
    said: dict[str, str | int] = {"error": known.__name__, "message": str(error)}
    if isinstance(error.__cause__, OSError) and error.__cause__.errno:
        said["errno"] = error.__cause__.errno
    return said


def read(body: bytes, *, status: int, where: str) -> MusterError:
    """Return the error that an answer stands for; an answer of something else than the service is quoted."""
    try:
        said = json.loads(body)
        kind = getattr(errors, said["error"])
        if issubclass(kind, MusterError):
            error: MusterError = kind(str(said["message"]))
            if isinstance(number := said.get("errno"), int):
                error.__cause__ = OSError(number, os.strerror(number))
            return error
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # a page of a proxy, or of another server
    start = body[:120].decode(errors="replace")
    return StoreError(
        f"{where} answered HTTP {status} {start!r}: is that the address of muster's store service, "
        "and is it of the same release?"
    )
