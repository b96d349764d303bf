"""What a new version begins with: the last one of its volume and partition."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from muster.core.address import Address, Select
from muster.core.data import Input, OutputTarget
from muster.core.errors import Corrupt, NotFound
from muster.volumes.base import Version
from muster.volumes.protocols import VersionStore

_PAGE = 50


def begin_with_last(
    store: VersionStore, volume: str, partition: str | None, *, name: str
) -> tuple[Input, OutputTarget]:
    """Return an input with the last version that is not retired, and an output that begins with it and comes after all there are.

    :param name: the input's. :raises Corrupt: all that are left are damaged: what begins anew there could be less than what is lost.
    """
    after = store.last(volume, partition)  # first: what comes meanwhile is refused at the commit
    # After 0 there is none: a selector would look for what it may name to people instead.
    version = _last_live(store, volume, partition) if after else None
    if after and version is None:
        _refuse_damage(store, volume, newest=after)
    given = Input(versions=() if version is None else (version.pinned,), many=True)
    return given, OutputTarget(volume=volume, partition=partition, after=after, base=name)


def replace_last(
    store: VersionStore, volume: str, partition: str | None, *, name: str, keep: int | None
) -> tuple[Version, OutputTarget] | None:
    """Return the last version that is not retired, and an output that begins with it and whose commit retires it; None where there is none.

    :param name: the name of the input with that version.
    :param keep: how many of the versions before it stay; the older ones are retired, too, but pinned ones. None: all stay.
    """
    while True:
        after = store.last(volume, partition)
        base = _last_live(store, volume, partition) if after else None
        if base is None:
            return None
        if base.number <= after:  # else it came between the two
            break
    older = [] if keep is None else list(_live(store, volume, partition, before=base.number))[keep:]
    numbers = sorted([base.number, *(version.number for version in older if not version.pins)])
    return base, OutputTarget(
        volume=volume, partition=partition, after=after, base=name, retires=tuple(numbers)
    )


def _last_live(store: VersionStore, volume: str, partition: str | None) -> Version | None:
    """Return the newest version of a volume's partition that is not retired; None where there is none."""
    if partition is None:
        return next(_live(store, volume, partition), None)
    with suppress(NotFound, Corrupt):  # Corrupt: no version can be read
        return store.resolve(str(Address(volume, Select.PARTITION, partition)))[0]
    return None


def _refuse_damage(store: VersionStore, volume: str, *, newest: int) -> None:
    """Raise Corrupt for the newest version up to a number that is damaged and not retired."""
    for number in range(newest, 0, -1):
        with suppress(NotFound):  # deleted, or retired and damaged
            store.resolve(f"{volume}@{number}")


def _live(
    store: VersionStore, volume: str, partition: str | None, *, before: int | None = None
) -> Iterator[Version]:
    while page := store.newest(volume, limit=_PAGE, before=before, partition=partition):
        for version in page:
            if version.partition == partition and version.retired is None:
                yield version
        before = page[-1].number
