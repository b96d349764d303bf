"""Opens the store of this machine, or a cluster's, with the mirror that its settings name to read from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from muster.core.settings import Settings
from muster.volumes.folder import FolderStore
from muster.volumes.protocols import LocalStore

if TYPE_CHECKING:
    from muster.volumes.service.client import ServiceStore

K = TypeVar("K", bound=LocalStore)


def folder_store(settings: Settings) -> FolderStore:
    """Open the store of this machine."""
    return _opening(FolderStore, settings)(settings.store, compare=settings.compare)


def service_store(
    url: str, settings: Settings, *, token: str | Callable[[], str], cache: Path, patience_seconds: float
) -> ServiceStore:
    """Open the store behind a service; the parameters are the client's."""
    from muster.volumes.service.client import ServiceStore

    opening = _opening(ServiceStore, settings)
    return opening(url, token=token, cache=cache, patience_seconds=patience_seconds)


def _opening(kind: type[K], settings: Settings) -> Callable[..., K]:
    """Return what opens a store of this class, one that reads from the mirror where the settings name one.

    :raises SpecError: no extension reads mirrors.
    """
    if not settings.mirror:
        return kind
    from muster.core.extensions import only

    reads: Callable[[type[K], Settings], Callable[..., K]] = only(
        lambda each: each.reading,
        needed_by=f"MUSTER_MIRROR, or `mirror` under [muster], names {settings.mirror}",
    )
    return reads(kind, settings)
