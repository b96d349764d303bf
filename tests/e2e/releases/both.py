"""What the acts of both releases use, wherever each of them has it."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import Any


def either(name: str, *modules: str) -> Any:
    """A function or class, from the first of these modules that this release has; ``module:NAME`` where its name is another one."""
    for place in modules:
        module, _, other = place.partition(":")
        with suppress(ModuleNotFoundError, AttributeError):
            return getattr(import_module(module), other or name)
    raise ModuleNotFoundError(f"no {name} in {', '.join(modules)}")


def machine_backend(settings: Any) -> Any:
    """The jobs of this machine: a backend of its own in the earlier release, a place's in this one."""
    try:
        place = either("MachinePlace", "muster.backends.local.place")
    except ModuleNotFoundError:
        return either("LocalBackend", "muster.backends.local.backend")(settings)
    return either("Backend", "muster.backends.base")(place(settings))


roll_back = either("roll_back", "muster.backends.releases.manual", "muster.backends.releases.byhand")
zipapp = either("zipapp", "muster.images.worker_archive", "muster.backends.worker_archive")
Input = either("Input", "muster.core.data", "muster.core.job")
Output = either("Output", "muster.core.data:OutputTarget", "muster.core.data", "muster.core.job")
Pinned = either("Pinned", "muster.core.data", "muster.core.job")
Origin = either("Origin", "muster.core.origin", "muster.core.job")
