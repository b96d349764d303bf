"""Selects the versions that an address names, and says why where there are none; reads no file."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from muster.core.address import Address, Select
from muster.core.errors import NotFound
from muster.volumes.base import Version


def select(wanted: Address, versions: Sequence[Version]) -> tuple[Version, ...]:
    """Return the versions that an address names among a volume's readable versions; at least one.

    Retired versions are found by digest only. Several are sorted by partition.

    :raises NotFound: it names none of them.
    """
    if wanted.select is Select.DIGEST:
        return (_by_digest(wanted, versions),)
    selectable = [version for version in versions if version.retired is None]
    if wanted.many:
        return _many(wanted, selectable)
    if wanted.select is Select.PARTITION:
        chosen = [version for version in selectable if version.partition == wanted.value]
        if not chosen:
            raise NotFound(_no_partition(wanted, selectable))
        return (chosen[-1],)
    if not selectable:
        raise NotFound(
            f"every version of {wanted.volume} is retired: name one by its number, "
            f"such as {versions[-1].address}"
        )
    return (max(selectable, key=lambda version: (version.partition or "", version.number)),)


def no_volume(volume: str, known: Sequence[str], *, where: object) -> str:
    """Return the message that there is no such volume, and which of the `known` ones may be meant.

    :param where: the store's name for its user.
    """
    above = next((name for name in _above(volume) if name in known), None)
    if above is not None:
        inner = volume[len(above) + 1 :]
        return f"no volume {volume}; {above} is one: a file of it is named {above}@latest/{inner}"
    close = difflib.get_close_matches(volume, known, 3) or known[:5]
    if not close:
        return f"no volume {volume}: this store ({where}) holds none yet; run the stage that writes it"
    return (
        f"no volume {volume}; there are {', '.join(close)}: check the name, or run the stage that writes it"
    )


def no_number(volume: str, number: int, numbers: Sequence[int], *, deleted: bool) -> str:
    """Return the message that a volume has no such version, and which `numbers` it has."""
    if deleted:
        return f"{volume}@{number} was deleted by gc; there are {_some(numbers)}. Its record is kept: `muster volumes show`"
    return (
        f"no version {volume}@{number}; there are {_some(numbers)}: `muster volumes log {volume}` lists them"
    )


def _above(volume: str) -> Iterator[str]:
    """Yield every volume that `volume` may be a file of, nearest first."""
    while volume := volume.rpartition("/")[0]:
        yield volume


def _by_digest(wanted: Address, versions: Sequence[Version]) -> Version:
    found = [version for version in versions if version.digest.startswith(wanted.value)]
    if not found:
        raise NotFound(
            f"no version of {wanted.volume} has the digest {wanted.value}: `muster volumes log` lists them"
        )
    if len({version.digest for version in found}) > 1:
        several = ", ".join(f"@{version.number} {version.digest[:19]}" for version in found[:5])
        raise NotFound(f"digest {wanted.value} is the beginning of several: {several}; give more digits")
    return found[-1]


def _many(wanted: Address, versions: Sequence[Version]) -> tuple[Version, ...]:
    newest = {v.partition: v for v in versions if v.partition is not None and wanted.admits(v.partition)}
    if not newest:
        raise NotFound(_no_partition(wanted, versions))
    return tuple(newest[partition] for partition in sorted(newest))


def _no_partition(wanted: Address, versions: Sequence[Version]) -> str:
    there = sorted({version.partition for version in versions if version.partition is not None})
    if not there:
        return f"{wanted.volume} has no partitions, so {wanted.value!r} selects nothing: use {wanted.volume}@latest"
    return (
        f"no partition of {wanted.volume} is {wanted.value!r}; there are {_some(there)}: "
        "check the name, or run the stage for that partition"
    )


def _some(items: Sequence[object]) -> str:
    shown = ", ".join(map(str, items[-6:]))
    return shown if len(items) <= 6 else f"… {shown} ({len(items)} in all)"
