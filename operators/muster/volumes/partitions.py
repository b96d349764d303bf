"""Which partition each version of a volume is in: a selector reads the records of the versions that it names, and no others.

::

    b3:<BLAKE3 of all that follows>
    {"job": "<job_id>", "runs": [[1, 12, "2013-01"], [13, 13, null]]}

That is ``hints/<volume>/partitions``, with first and last number of each run. Where a person deleted a volume's folder its numbers begin again, so
the file names the job of its last version, and counts while that version is this job's. Else no number is given twice, and a committed version never
changes its partition: what the file says stays true, and versions that it lacks are read beside it. It may be deleted, and one that is torn, or
of another shape, counts as none. A commit makes its folder; a reader writes the file only where the folder is its own user's, since it
would keep that user's commits out of one that it made itself.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from muster.volumes.durability import read_whole, write_whole
from muster.volumes.layout import Layout
from muster.volumes.manifest import digest_of

MOST_UNREAD = 64
"""A reader that had to read this many records or more rewrites the file."""

_NAME = "partitions"


class Known(NamedTuple):
    """Partitions by number, and the job that made the highest number."""

    partitions: Mapping[int, str | None]
    job_id: str

    def joined(self, read: Mapping[int, str | None], job_id: str) -> Known:
        """Return this with what was read now.

        :param job_id: the job that made the highest number of `read`.
        """
        newer = max(read) > max(self.partitions, default=0)
        return Known({**self.partitions, **read}, job_id if newer else self.job_id)


NOTHING = Known({}, "")


def read(layout: Layout, volume: str, numbers: Sequence[int]) -> Known | None:
    """Return what is known of some numbers of a volume, ascending.

    None where no file can be read that says it, or the last version that it knows is none of them.
    """
    try:
        digest, _, body = read_whole(layout.hints(volume) / _NAME).partition(b"\n")
        if digest.decode() != digest_of(body):
            return None
        document = json.loads(body)
        known = Known(_expanded(document["runs"], numbers), document["job"])
        return known if known.job_id and max(known.partitions) == document["runs"][-1][1] else None
    except (ValueError, LookupError, TypeError, OSError):
        return None


def _expanded(runs: Sequence[tuple[int, int, str | None]], numbers: Sequence[int]) -> dict[int, str | None]:
    """Return the partitions of the numbers that runs hold. :raises ValueError: one is no text."""
    found: dict[int, str | None] = {}
    for first, last, partition in runs:
        if not isinstance(partition, str | None):
            raise ValueError(f"{partition!r} is no partition")
        found |= dict.fromkeys(numbers[bisect_left(numbers, first) : bisect_right(numbers, last)], partition)
    return found


def write(layout: Layout, volume: str, known: Known) -> None:
    """Replace what is known of a volume, where its folder of hints is this user's.

    :raises OSError: there is no such folder, or it cannot be written.
    """
    path = layout.hints(volume) / _NAME
    if path.parent.stat().st_uid != os.geteuid():
        return
    runs: list[list[int | str | None]] = []
    for number, partition in sorted(known.partitions.items()):
        if runs and runs[-1][1:] == [number - 1, partition]:
            runs[-1][1] = number
        else:
            runs.append([number, number, partition])
    body = json.dumps({"job": known.job_id, "runs": runs}).encode()
    write_whole(path, b"%s\n%s" % (digest_of(body).encode(), body), durable=False)
