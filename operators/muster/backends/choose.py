"""Chooses the backend: settings in, one implementation out."""

from __future__ import annotations

import sys
from collections.abc import Callable

from muster.backends.base import Backend
from muster.core.errors import SpecError
from muster.core.job import SecretRef
from muster.core.settings import Settings


def choose_backend(
    settings: Settings | None = None, *, resolve: Callable[[SecretRef], str] | None = None
) -> Backend:
    """Return where jobs run under `settings`, those of this process's environment if none are given.

    :param resolve: returns the value of a secret that this process has, KeyError for others; variables
        of this process if it is not given.
    :raises SpecError: jobs cannot run on this operating system.
    """
    if sys.platform != "linux":
        raise SpecError(
            f"muster runs jobs on Linux, this is {sys.platform}: use WSL2 on Windows, "
            "a Linux virtual machine elsewhere, or a cluster"
        )
    from muster.backends.local.admission import from_environment
    from muster.backends.local.backend import LocalBackend

    return LocalBackend(settings or Settings.load(), resolve=resolve or from_environment)
