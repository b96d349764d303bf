"""Gives out the numbers of a volume's versions, and keeps hints that save a commit from listing a volume.

``hints/<volume>/newest`` holds the highest number given out, and ``hints/<volume>/<partition>`` the
newest version of a partition. So a commit costs the same in a volume of ten thousand versions as in a new one.
The folder of hints may be deleted at any time, and a wrong hint, or one that cannot be read or written, costs one
listing of the volume's folder and a look at the commit records: a number is not given twice, even if its folder was deleted by hand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from blake3 import blake3

from muster.core.errors import StoreError
from muster.volumes import tombstones
from muster.volumes.catalog import Catalog
from muster.volumes.commit_records import named
from muster.volumes.durability import (
    link_text,
    read_whole,
    symlink,
    write_whole,
)
from muster.volumes.layout import MIRROR, Layout

LOOK_BACK = 24  # versions to read in search of the same partition

_NEWEST = "newest"


def reserve(layout: Layout, volume: str, *, claim: str, note: Path) -> int:
    """Take the next number of a volume for `claim`, or find the one it reserved before a crash.

    A number is reserved by a symbolic link ``.<n>`` to nowhere, whose text names the claim: created in one
    step, by one process only. It outlives a job that is given up, so the number is never reused.

    :param note: a file of this claim alone, to which the number is written before it is reserved. It is read
        after the hint. If another machine does the same for the same job and its note is not there yet, it
        has reserved no number up to the hint's, and both end up with the same number.
    :raises StoreError: the store is a mirror.
    """
    if (layout.root / MIRROR).exists():
        raise StoreError(
            f"{layout.root} is a mirror, whose numbers another store gives out: write to that store; or delete "
            f"{layout.root / MIRROR} to have this one be a store of its own, and no mirror any more"
        )
    home = layout.volume(volume)
    home.mkdir(parents=True, exist_ok=True)
    top = _hinted(layout, volume, _NEWEST)
    with suppress(FileNotFoundError, ValueError):
        noted = int(read_whole(note))
        if _has(layout, volume, noted, claim):
            return noted
    if top is None or top < tombstones.last(layout, volume) or not is_top(home, top):
        taken = layout.taken(volume)
        for number, taker in taken.items():
            if taker == claim and _has(layout, volume, number, claim):
                return number
        gone = tombstones.last(layout, volume)
        top = max([0, *taken, *layout.numbers(volume), *named(layout, volume), gone])
    number = top + 1
    while not _take(layout, volume, number, claim, note):
        number += 1
    _hint(layout, volume, _NEWEST, number)
    return number


def newest(catalog: Catalog, layout: Layout, volume: str, partition: str | None) -> Path | None:
    """Return the folder of the version whose files a new one is likely to share, or None.

    Never a retired one, which may be damaged. Without a hint, the newest few versions are searched.
    """
    top = _hinted(layout, volume, _key(partition)) or _hinted(layout, volume, _NEWEST)
    if top is None:
        top = max(layout.numbers(volume), default=0)
    for number in range(top, max(0, top - LOOK_BACK), -1):
        version = catalog.readable(volume, number)
        if version is not None and version.partition == partition and version.retired is None:
            return layout.version(volume, number)
    return None


def remember(layout: Layout, volume: str, partition: str | None, number: int) -> None:
    """Hint at the newest version of a partition, once it is visible."""
    _hint(layout, volume, _key(partition), number)


def hinted(layout: Layout) -> Iterator[tuple[str, int]]:
    """Yield the volume and number of every version that :func:`newest` may give."""
    top = layout.root / "hints"
    for folder in top.iterdir() if top.is_dir() else ():
        volume = folder.name.replace(":", "/")
        names = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
        for number in {_hinted(layout, volume, name) for name in names}:
            if number is not None:
                yield volume, number


def _has(layout: Layout, volume: str, number: int, claim: str) -> bool:
    """Whether a claim has a number. A mark on that of a folded version is of a kill in :func:`_take`, and taken away."""
    mark = layout.volume(volume) / f".{number}"
    if link_text(mark) == claim and tombstones.find(layout, volume, number):
        mark.unlink(missing_ok=True)
    return link_text(mark) == claim and tombstones.lost_in(layout, volume, number) is None


def _take(layout: Layout, volume: str, number: int, claim: str, note: Path) -> bool:
    folder = layout.version(volume, number)
    mark = folder.with_name(f".{number}")
    write_whole(note, str(number), durable=False)
    try:
        symlink(claim, mark)
    except FileExistsError:
        return False
    # Reserved, published and its mark removed meanwhile; or even folded: its folder went after its tombstone came.
    if folder.exists() or number <= tombstones.last(layout, volume):
        mark.unlink(missing_ok=True)
        return False
    return True


def is_top(home: Path, number: int) -> bool:
    """Whether a number was given out and the next one was not."""
    here, after = (
        os.path.lexists(home / str(each)) or os.path.lexists(home / f".{each}")
        for each in (number, number + 1)
    )
    return here and not after


def _hinted(layout: Layout, volume: str, name: str) -> int | None:
    with suppress(OSError):  # none, or one that is not ours to read
        text = read_whole(layout.hints(volume) / name)
        return int(text) if text.isdigit() else None  # one that a power cut damaged is ignored
    return None


def _hint(layout: Layout, volume: str, name: str, number: int) -> None:
    path = layout.hints(volume) / name
    with suppress(OSError):  # the next commit lists the volume
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, str(number), durable=False)


def _key(partition: str | None) -> str:
    return f"partition-{blake3((partition or '').encode()).hexdigest()[:32]}"
