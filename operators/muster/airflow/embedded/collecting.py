"""Python's garbage collector while Airflow is imported."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """Collect no garbage in the block: imports make objects that stay, and looking through them takes a fifth of the time.

    After it they are passed over by every collection, which would also copy their pages in a fork.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if before:
            gc.enable()
