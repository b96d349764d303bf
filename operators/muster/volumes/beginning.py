"""What a new version begins with: the last one of its volume and partition."""

from __future__ import annotations

from muster.core.job import Input, Output
from muster.volumes.base import Version
from muster.volumes.protocols import Versions

_PAGE = 50


def begin_with_last(
    store: Versions, volume: str, partition: str | None, *, name: str
) -> tuple[Input, Output]:
    """Return an input with the last version that is not retired, and an output that begins with it and comes after all there are.

    :param name: the input's.
    """
    after = store.last(volume, partition)  # first: what comes meanwhile is refused at the commit
    version = last_live(store, volume, partition)
    given = Input(versions=() if version is None else (version.pinned,), many=True)
    return given, Output(volume=volume, partition=partition, after=after, base=name)


def last_live(store: Versions, volume: str, partition: str | None) -> Version | None:
    """Return the newest version of a volume's partition that is not retired; None where there is none."""
    before: int | None = None
    while page := store.newest(volume, limit=_PAGE, before=before):
        for version in page:
            if version.partition == partition and version.retired is None:
                return version
        before = page[-1].number
    return None
