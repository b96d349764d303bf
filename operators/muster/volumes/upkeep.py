"""Notes of the last fsck, gc and sweep of a folder store, for metrics and the page: ``STORE/upkeep/<kind>.json``."""

from __future__ import annotations

import logging
import time

from muster.core.errors import Corrupt, SpecError
from muster.core.wire import dumps, loads
from muster.volumes.base import Checked, UpkeepKind, UpkeepNote
from muster.volumes.durability import read_whole, write_whole
from muster.volumes.layout import Layout

_LOG = logging.getLogger(__name__)


def note(layout: Layout, work: UpkeepKind, *, checked: Checked | None = None) -> None:
    """Note that upkeep of one kind has just ended well.

    A disk that takes no note fails no upkeep: it is logged, and the note of the run before stays.
    """
    path = layout.upkeep / f"{work.value}.json"
    try:
        path.parent.mkdir(exist_ok=True)
        write_whole(path, dumps(UpkeepNote(work=work, at=time.time(), checked=checked)))
    except OSError as error:
        _LOG.warning("that %s has run cannot be noted in %s: %s", work.value, path, error)


def notes(layout: Layout) -> list[UpkeepNote]:
    """Return the last note of each kind; none of a kind that never ran, or whose note a power cut took.

    :raises Corrupt: a note cannot be read.
    """
    found = []
    for work in UpkeepKind:
        path = layout.upkeep / f"{work.value}.json"
        try:
            if data := read_whole(path):
                found.append(loads(UpkeepNote, data))
        except FileNotFoundError:
            continue
        except SpecError as error:
            raise Corrupt(
                f"{path} cannot be read: {error}; delete it, the next {work.value} writes it anew"
            ) from error
    return found
