"""Imports KServe's SDK in half of its time: without pandas, without its client of Kubernetes, without garbage collections.

Nothing here uses the two: :class:`~muster_serving.front.Front` reads all requests itself. Collections would look again
and again through what the imports make and what stays.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

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

Model = kserve.Model
ModelServer = kserve.ModelServer

__all__ = ["Model", "ModelServer", "RESTServer", "app"]
