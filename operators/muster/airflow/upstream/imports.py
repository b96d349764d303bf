"""Has svcs, with which Airflow makes its execution API, import FastAPI alone of the web frameworks that it could serve."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from muster.airflow.upstream.patch import Patch

PATCH = Patch(
    "svcs",
    ("26.",),
    0.3,
    "`import svcs` imports aiohttp, Flask, Pyramid and Starlette wherever they are installed: import each at its first use.",
)


@contextmanager
def no_aiohttp() -> Iterator[None]:
    """Have nothing import svcs' part for aiohttp in the block."""
    name = "svcs.aiohttp"
    if PATCH.off or name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # the import system's own way to say so
    try:
        yield
    finally:
        del sys.modules[name]
