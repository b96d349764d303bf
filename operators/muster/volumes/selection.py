"""Selects the versions that an address names, and says why there are none; reads no file itself.

To select, it looks at no other version; to say why there are none, it looks for what there is.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from muster.core.address import Address, Select
from muster.core.errors import NotFound
from muster.volumes.base import Version

_SHOWN = 6  # of many partitions or numbers, the last ones are named in an error

Look = Callable[[int], Version | None]
"""Returns the version of a number; None where its data is gone or damaged."""


def select(wanted: Address, partitions: Mapping[int, str | None], look: Look) -> tuple[Version, ...]:
    """Return the versions that an address names by partition, or as the latest; none where it names none.

    Retired ones are not found. Several are sorted by partition.

    :param partitions: of each number of the volume. :param look: is asked for what may be named, newest first.
    """
    if wanted.select is Select.LATEST:
        groups = [sorted(partitions, key=lambda number: (partitions[number] or "", number))]
    else:
        named = _by_partition(partitions)
        chosen = filter(wanted.admits, sorted(named)) if wanted.many else [wanted.value]
        groups = [named[partition] for partition in chosen if partition in named]
    newest = (_selectable(group, partitions, look) for group in groups)
    return tuple(version for version in newest if version is not None)


def by_digest(wanted: Address, digests: Mapping[int, str], look: Look) -> tuple[Version, ...]:
    """Return the newest version whose digest an address names, retired or not; none where it names none.

    :param digests: of each number of the volume, as far as they can be read. :param look: is asked for what has such a digest.
    :raises NotFound: it is the beginning of several.
    """
    named: dict[str, list[int]] = {}
    for number, digest in sorted(digests.items(), reverse=True):
        if digest.startswith(wanted.value):
            named.setdefault(digest, []).append(number)
    newest = (next(filter(None, map(look, numbers)), None) for numbers in named.values())
    found = [version for version in newest if version is not None]
    if len(found) > 1:
        several = ", ".join(f"@{version.number} {version.digest[:19]}" for version in found[:5])
        raise NotFound(f"digest {wanted.value} is the beginning of several: {several}; give more digits")
    return tuple(found)


def nothing(wanted: Address, partitions: Mapping[int, str | None], look: Look, *, newest: Version) -> str:
    """Return the message that an address names no version, and what there is.

    :param newest: the newest one whose data is there. For the others see :func:`select`.
    """
    if wanted.select is Select.DIGEST:
        return f"no version of {wanted.volume} has the digest {wanted.value}: `muster volumes log` lists them"
    if wanted.select is Select.LATEST:
        return (
            f"every version of {wanted.volume} is retired: name one by its number, such as {newest.address}"
        )
    named = _by_partition(partitions)
    live = (name for name in sorted(named, reverse=True) if _selectable(named[name], partitions, look))
    there = list(islice(live, _SHOWN + 1))[::-1]
    if not there:
        return f"{wanted.volume} has no partitions, so {wanted.value!r} selects nothing: use {wanted.volume}@latest"
    shown = ", ".join(there[-_SHOWN:])
    return (
        f"no partition of {wanted.volume} is {wanted.value!r}; there are {'… ' * (len(there) > _SHOWN)}{shown}: "
        "check the name, or run the stage for that partition"
    )


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


def _selectable(numbers: Sequence[int], partitions: Mapping[int, str | None], look: Look) -> Version | None:
    """Return the last of some numbers that is not retired, and of the partition that it is said to be."""
    versions = filter(None, map(look, reversed(numbers)))
    return next((v for v in versions if v.retired is None and v.partition == partitions[v.number]), None)


def _by_partition(partitions: Mapping[int, str | None]) -> dict[str, list[int]]:
    """Return the numbers of each partition, ascending, without those of none."""
    named: dict[str, list[int]] = {}
    for number, partition in sorted(partitions.items()):
        if partition is not None:
            named.setdefault(partition, []).append(number)
    return named


def _some(items: Sequence[object]) -> str:
    shown = ", ".join(map(str, items[-_SHOWN:]))
    return shown if len(items) <= _SHOWN else f"… {shown} ({len(items)} in all)"
