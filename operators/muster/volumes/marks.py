"""The marks on versions: pins, leases and retirement.

No mark is part of a version, whose files never change.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from blake3 import blake3

from muster.core.address import Address
from muster.volumes import tombstones
from muster.volumes.base import Version
from muster.volumes.catalog import Catalog
from muster.volumes.commit_records import committed_marks, has_content, named
from muster.volumes.durability import locked, sync_folder, translated, write_whole
from muster.volumes.layout import Layout


class Marks:
    """The marks on the versions of one store."""

    def __init__(self, layout: Layout, catalog: Catalog) -> None:
        self._layout, self._catalog = layout, catalog

    def pin(self, address: str, *, reason: str) -> Version:
        """Keep a version from gc under a reason; idempotent."""
        with translated(f"pin {address}"), self.steady():
            version = self._catalog.one(address)
            folder = self._layout.version(version.volume, version.number) / "pins"
            folder.mkdir(exist_ok=True)
            write_whole(folder / pin_name(reason), reason)
        return self._catalog.one(version.address)

    def unpin(self, address: str, *, reason: str) -> Version:
        """Remove one reason."""
        version = self.any(address)
        (self._layout.version(version.volume, version.number) / "pins" / pin_name(reason)).unlink(
            missing_ok=True
        )
        return self.any(version.address)

    def lease(self, addresses: Iterable[str], *, holder: str) -> None:
        """Keep versions from gc while `holder` reads them."""
        folder = self._layout.leases(holder)
        with translated(f"lease for {holder}"), self.steady():
            versions = [self._catalog.one(address) for address in addresses]
            folder.mkdir(exist_ok=True)
            for version in versions:
                (folder / f"{version.volume.replace('/', ':')}@{version.number}").touch()

    def release(self, holder: str) -> None:
        """Release all leases of `holder`."""
        self._layout.delete(self._layout.leases(holder))  # in one step: gc may read it, or do the same

    def retire(self, address: str, *, reason: str) -> Version:
        """Hide a version from every selector; a damaged one is deleted by the next gc."""
        version = self.any(address)
        with translated(f"retire {address}"):
            folder = self._layout.version(version.volume, version.number)
            folder.mkdir(parents=True, exist_ok=True)  # a damaged version may lack its folder
            write_whole(folder / "RETIRED", reason)
        return self.any(version.address)

    def reinstate(self, address: str) -> Version:
        """Let selectors find a retired version again."""
        version = self.any(address)
        with translated(f"reinstate {address}"):
            folder = self._layout.version(version.volume, version.number)
            for mark in committed_marks(self._layout, folder):
                mark.unlink(missing_ok=True)
            (folder / "RETIRED").unlink(missing_ok=True)
            sync_folder(folder)
        return self.any(version.address)

    @contextmanager
    def steady(self) -> Iterator[None]:
        """Keep gc from deleting versions in the block: it takes the same lock exclusively, and deletes nothing of a read-only disk."""
        with ExitStack() as held:
            try:
                held.enter_context(locked(self._layout.root / "gc.lock", shared=True))
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
            yield

    def any(self, address: str) -> Version:
        """Return one version, even a damaged one if it is named by number."""
        wanted = Address.parse(address)
        if wanted.value.isdigit():
            place = wanted.volume, int(wanted.value)
            lost = not has_content(self._layout.version(*place)) and place[1] in named(self._layout, place[0])
            lost = lost and tombstones.find(self._layout, *place) is None
            if lost or self._catalog.is_damaged(*place):
                return self._catalog.remains(*place)
        return self._catalog.one(address)


def pin_name(reason: str) -> str:
    """Return a file name for a reason, which may hold any text."""
    return blake3(reason.encode()).hexdigest()[:32]
