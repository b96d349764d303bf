"""The errors of a model server.

::

    ServingError
    ├── ModelError        a version's folder cannot be served; loading it is refused
    ├── RequestError      the request is wrong: HTTP 4xx, and the message names the field
    └── PredictionError   the model failed on a valid request, or its answer breaks its signature: HTTP 500
"""

from __future__ import annotations


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
