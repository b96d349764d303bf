"""Processes that are forked from a clean one, which has imported what they need: a start takes some 10 ms.

Python has one such process for all, and takes the last list of modules that it was given: each has to name all of them.
"""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

_IMPORTED: list[str] = []


def forks(module: str) -> ForkServerContext:
    """Return the context that starts them, and have the clean process import `module`; call it where a module is imported."""
    context = multiprocessing.get_context("forkserver")
    _IMPORTED.append(module)
    context.set_forkserver_preload(list(_IMPORTED))
    return context
