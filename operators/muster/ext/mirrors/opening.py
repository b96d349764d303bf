"""Opens the homes of versions by their names: this store, and what a mirror's target or source is called."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster.core.errors import NotFound, SpecError
from muster.core.settings import Settings
from muster.ext.mirrors.base import Home
from muster.ext.mirrors.folder import FolderHome
from muster.ext.mirrors.open_layout import OpenHome
from muster.volumes.folder import FolderStore
from muster.volumes.layout import MARKER, MIRROR
from muster.volumes.protocols import LocalStore

VARIABLE = "MUSTER_MIRROR_TOKEN"
PATIENCE_SECONDS = 60.0


def home_of(store: LocalStore) -> Home:
    """Return a store as a home of versions."""
    if isinstance(store, FolderStore):
        return FolderHome(store)
    from muster.ext.mirrors.service_home import ServiceHome
    from muster.volumes.service.client import ServiceStore

    if not isinstance(store, ServiceStore):
        raise SpecError(f"{type(store).__name__} is neither a folder nor a store service: it has no mirror")
    return ServiceHome(store)


def open_home(
    name: str,
    settings: Settings,
    *,
    make: bool = False,
    plain: bool = False,
    token: str = "",
    options: Mapping[str, Any] | None = None,
) -> Home:
    """Open a mirror.

    :param name: a folder; the address of a store service, ``http://…``, whose operator's token is in
        ``MUSTER_MIRROR_TOKEN``; or a URL that fsspec knows, ``s3://bucket/prefix``.
    :param make: a folder may be new. :param plain: a folder has the open layout.
    :param token: of a store service, where the variable is not to be read. :param options: of fsspec's file system.
    :raises SpecError: it cannot be a mirror. :raises NotFound: there is none, and `make` is not set.
    """
    if name.startswith(("http://", "https://")):
        return _service(name, settings, token or os.environ.get(VARIABLE, ""))
    if "://" in name:
        opened = OpenHome(name, options)
        if make and opened.objects.folder is not None:
            _check_apart(opened.objects.folder, settings)
        return opened
    root = Path(name).expanduser().absolute()
    for path in (root, *root.parents):
        if path.is_file():
            raise SpecError(f"{path} is a file: name a folder")
    if make:
        _check_apart(root, settings)
    if plain or _is_open(root):
        return OpenHome(f"file://{root}")
    if not make and not (root / MARKER).is_file():
        raise NotFound(f"{root} is no mirror: it holds neither a store nor a {MIRROR}")
    return FolderHome(FolderStore(root))


def _check_apart(root: Path, settings: Settings) -> None:
    """Refuse a new mirror in this machine's store, or around it: what is lost with the one is lost with the other."""
    if not settings.store.is_dir():  # the store is elsewhere
        return
    mirror, store = root.resolve(), settings.store.resolve()
    if mirror == store:
        raise SpecError(f"{root} cannot be a mirror of itself: name another place")
    for folder, name in ((store, "the store"), (settings.home.resolve(), "muster's folder")):
        if mirror.is_relative_to(folder) or folder.is_relative_to(mirror):
            what = "lies in" if mirror.is_relative_to(folder) else "holds"
            raise SpecError(
                f"{root} {what} {name} {folder}, and what deletes one deletes both: name a place beside it, best on another disk"
            )


def _service(url: str, settings: Settings, token: str) -> Home:
    from muster.ext.mirrors.service_home import ServiceHome
    from muster.volumes.service.client import ServiceStore

    if not token:
        raise SpecError(
            f"{VARIABLE} is not set: it holds the token of an operator of {url}, which `python -m muster.volumes.service --key KEY "
            "--print-token DAYS` prints there"
        )
    cache = settings.cache / "stores" / "mirror"
    store = ServiceStore(url, token=token, cache=cache, patience_seconds=PATIENCE_SECONDS)
    return ServiceHome(store, owned=True)


def _is_open(root: Path) -> bool:
    try:
        return bool(json.loads((root / MIRROR).read_bytes()).get("layout") == "open")
    except (FileNotFoundError, NotADirectoryError, ValueError, AttributeError):
        return False
