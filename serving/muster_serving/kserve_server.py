"""KServe's SDK around the server, which the image ``kserve`` holds: what a KServe cluster runs by default.

KServe keeps the model repository, and answers its own pages. :class:`~muster_serving.front.Front` answers predictions
and all other pages, which is faster than KServe's own path: ``benchmarks/serving.py`` measures both.

The SDK is imported in half of its time: without pandas, without its client of Kubernetes, without garbage collections. Nothing
here uses the two, since the front reads all requests itself. Collections would look again and again through what the imports
make and what stays.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from muster_serving.front import App
from muster_serving.revisions import Revisions

# What the SDK takes from each at its import: a name in an annotation, and one that it exports.
_UNUSED = {"pandas": "DataFrame", "kserve.api.kserve_client": "KServeClient"}


@contextmanager
def _without(unused: dict[str, str]) -> Iterator[None]:
    """Import no such module in the block; each has the one name as an empty class."""
    stand_ins = {}
    for module, name in unused.items():
        if module not in sys.modules:
            stand_ins[module] = sys.modules[module] = ModuleType(module)
            setattr(stand_ins[module], name, type(name, (), {}))
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        for module in stand_ins:
            del sys.modules[module]


with _without(_UNUSED):
    import kserve
    from kserve.model_server import app
    from kserve.protocol.rest.server import RESTServer


class _DeployedModel(kserve.Model):  # type: ignore[misc]
    """A deployment as a model of KServe's repository."""

    def __init__(self, revisions: Revisions) -> None:
        super().__init__(revisions.name)
        self._revisions = revisions

    async def healthy(self) -> bool:
        """Whether a revision serves."""
        return self._revisions.serving is not None


class _Pages(RESTServer):  # type: ignore[misc]
    """KServe's own endpoints without its TimingMiddleware, which takes a seventh of each request's time."""

    def _add_middlewares(self, app: Any) -> None:
        """Add none."""


def framework(revisions: Revisions) -> App:
    """Return KServe's application, whose repository has the deployment as its one model."""
    server = kserve.ModelServer(http_port=0, workers=1, enable_grpc=False)
    # an access log costs each request 200 microseconds
    logging.getLogger("kserve").setLevel(logging.WARNING)
    server.register_model(_DeployedModel(revisions))
    _Pages(app, server.dataplane, server.model_repository_extension, http_port=0).create_application()
    made: App = app
    return made
