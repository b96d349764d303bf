"""What the acts of both releases use, wherever each of them has it."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def either(name: str, *modules: str) -> Any:
    """A function, from the first of these modules that this release has."""
    for module in modules:
        try:
            return getattr(import_module(module), name)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(f"no {name} in {', '.join(modules)}")


roll_back = either("roll_back", "muster.backends.releases.manual", "muster.backends.releases.byhand")
zipapp = either("zipapp", "muster.images.worker_archive", "muster.backends.worker_archive")
Input = either("Input", "muster.core.data", "muster.core.job")
Output = either("Output", "muster.core.data", "muster.core.job")
Pinned = either("Pinned", "muster.core.data", "muster.core.job")
Origin = either("Origin", "muster.core.origin", "muster.core.job")
