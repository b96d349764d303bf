"""Opens the store of this machine, or a cluster's, with the mirror that its settings name to read from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.core.address import Address
from muster.core.errors import MusterError, NotFound
from muster.core.settings import Settings
from muster.volumes.base import Record, Version
from muster.volumes.folder import FolderStore
from muster.volumes.listing import Listing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from muster.ext.mirrors.base import Home
    from muster.volumes.service.client import ServiceStore

    Base = FolderStore
else:
    Base = object


class ReadsMirror(Base):
    """Makes a store read versions from its mirror that it lacks, by number or digest; nothing is written there."""

    def __init__(self, *args: Any, settings: Settings, **rules: Any) -> None:
        from muster.ext.mirrors.elsewhere import Elsewhere

        super().__init__(*args, **rules)
        self._settings = settings
        self.elsewhere = Elsewhere(self._open_mirror, settings.cache / "mirrored")

    def _open_mirror(self) -> Home:
        """Open the mirror. :raises Conflict: it is another store's, which gives the same numbers to other data."""
        from muster.ext.mirrors.base import check_mirror
        from muster.ext.mirrors.opening import home_of, open_home

        mirror = open_home(self._settings.mirror, self._settings)
        try:
            check_mirror(
                mirror,
                home_of(self),
                advice="nothing is read from it; let MUSTER_MIRROR, or `mirror` under [muster], name a mirror of this store",
            )
        except MusterError:
            mirror.close()
            raise
        return mirror

    def resolve(self, address: str) -> tuple[Version, ...]:
        """Return the versions that an address names now."""
        from muster.ext.mirrors.elsewhere import version_of

        try:
            return super().resolve(address)
        except NotFound as lacks:
            return (version_of(self.elsewhere.find(address, lacks=lacks)),)

    def record(self, address: str) -> Record:
        """Return one version's record."""
        try:
            return super().record(address)
        except NotFound as lacks:
            return self.elsewhere.find(address, lacks=lacks).origin

    def records(self, addresses: Sequence[str]) -> list[Record]:
        """Return the record of each address, in their order."""
        try:
            return super().records(addresses)
        except NotFound:
            return [self.record(address) for address in addresses]

    def manifest(self, address: str) -> Listing:
        """Return every file of one version by its path."""
        try:
            return super().manifest(address)
        except NotFound as lacks:
            return self.elsewhere.find(address, lacks=lacks).entries

    def path(self, address: str) -> Path:
        """Return the folder of one version's data, or the file that the address names in it."""
        try:
            return super().path(address)
        except NotFound as lacks:
            found = self.elsewhere.find(address, lacks=lacks)
            return self.elsewhere.path(found, Address.parse(address).path)

    def lease(self, addresses: Iterable[str], *, holder: str) -> None:
        """Keep versions from gc while `holder` reads them; those of the mirror need no lease."""
        super().lease(filter(self._is_here, addresses), holder=holder)

    def _is_here(self, address: str) -> bool:
        try:
            return bool(super().resolve(address))
        except NotFound as lacks:
            self.elsewhere.find(address, lacks=lacks)
            return False

    def close(self) -> None:
        """Close open connections."""
        self.elsewhere.close()
        super().close()


class MirroredFolderStore(ReadsMirror, FolderStore):
    """A store in a folder that has a mirror."""


def folder_store(settings: Settings) -> FolderStore:
    """Open the store of this machine."""
    if not settings.mirror:
        return FolderStore(settings.store, compare=settings.compare)
    return MirroredFolderStore(settings.store, compare=settings.compare, settings=settings)


def service_store(
    url: str, settings: Settings, *, token: str, cache: Path, patience_seconds: float
) -> ServiceStore:
    """Open the store behind a service; the parameters are the client's."""
    from muster.volumes.service.client import ServiceStore

    kind: Callable[..., ServiceStore] = ServiceStore
    if settings.mirror:
        kind = partial(type("MirroredServiceStore", (ReadsMirror, ServiceStore), {}), settings=settings)
    return kind(url, token=token, cache=cache, patience_seconds=patience_seconds)
