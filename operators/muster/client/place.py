"""Which store a program speaks to: the same as the command."""

from __future__ import annotations

from functools import lru_cache

from muster.core.errors import NotFound
from muster.core.settings import Settings
from muster.volumes.protocols import LocalStore


def open_store(*, make: bool = False) -> LocalStore:
    """Return the store of this machine, or of the cluster that MUSTER_CLUSTER names; opened once, and kept open.

    :param make: create this machine's store if there is none.
    :raises NotFound: there is none.
    """
    settings = Settings.load()
    if not make:
        check_home(settings)
    return _opened(settings)


def check_home(settings: Settings) -> None:
    """Refuse a place without a store; that of a cluster is asked when it is used. :raises NotFound: there is none."""
    if settings.cluster is None and not settings.store.is_dir():
        raise NotFound(
            f"nothing is kept in {settings.home} yet: run `muster demo` or `muster run`, "
            "go to the folder that holds the .muster you mean, or set MUSTER_HOME"
        )


@lru_cache(maxsize=8)
def _opened(settings: Settings) -> LocalStore:
    from muster.backends.choose import LOOK_SECONDS, choose_store

    return choose_store(settings, patience_seconds=LOOK_SECONDS)
