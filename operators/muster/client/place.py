"""Opens the store that a program uses: the same one as the command does."""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import TYPE_CHECKING

from muster.core.errors import NotFound
from muster.core.settings import Settings

if TYPE_CHECKING:
    from muster.volumes.protocols import LocalStore

_opened: dict[Settings, LocalStore] = {}


def open_store(*, make: bool = False) -> LocalStore:
    """Return the store of this machine, or of the cluster that MUSTER_CLUSTER names; opened once, and kept open.

    :param make: create this machine's store if there is none.
    :raises NotFound: there is none.
    """
    settings = Settings.load()
    if not make:
        check_home(settings)
    if settings not in _opened:
        from muster.backends.base import LOOK_SECONDS
        from muster.backends.choose import open_place

        _opened[settings] = open_place(settings, patience_seconds=LOOK_SECONDS).store
    return _opened[settings]


def check_home(settings: Settings) -> None:
    """Refuse a home without a store; a cluster's store is not asked before its first use. :raises NotFound: there is none."""
    from muster.backends.choose import open_place

    if not open_place(settings).used:
        from muster.volumes.layout import MARKER

        if (settings.home / MARKER).is_file():
            raise NotFound(
                f"{settings.home} is a store itself, and MUSTER_HOME names the folder above one that is called "
                f"{settings.store.name}: {_above(settings.home, settings.store.name)}"
            )
        raise NotFound(
            f"nothing is kept in {settings.home} yet: run `muster demo` or `muster run`, "
            "go to the folder that holds the .muster you mean, or set MUSTER_HOME"
        )


def _above(store: Path, name: str) -> str:
    if store.name == name:
        return f"set it to {store.parent}"
    return f"make a folder with a link to it (`ln -s {store} FOLDER/{name}`), and set it to FOLDER"


def close() -> None:
    """Close the stores that are open; the next use opens one again."""
    while _opened:
        _opened.popitem()[1].close()


atexit.register(close)
