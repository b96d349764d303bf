"""Which partition each version of a volume is in: a selector reads the records of the versions that it names, and no others.

::

    b3:<BLAKE3 of all that follows>
    {"job": "<job_id>", "runs": [[1, 12, "2013-01"], [13, 13, null]]}

That is ``hints/<volume>/partitions``, with first and last number of each run. A committed version never changes its partition, and no number is
given twice, so what it says stays true; versions that it lacks are read beside it. It may be deleted, and a torn one counts as none. Of a volume
whose folder a person deleted the numbers begin again: the file names the job of its last version, and counts while that version is this job's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from muster.volumes.durability import read_whole, write_whole
from muster.volumes.layout import Layout
from muster.volumes.manifest import digest_of

MOST_UNREAD = 64
"""A look that reads so many records writes the file anew."""

_NAME = "partitions"


class Known(NamedTuple):
    """Partitions by number, and the job that made the highest number."""

    partitions: Mapping[int, str | None]
    job_id: str


def read(layout: Layout, volume: str) -> Known | None:
    """Return what is known of a volume; None where no file says it, or a torn one."""
    try:
        data = read_whole(layout.hints(volume) / _NAME)
    except FileNotFoundError:
        return None
    digest, _, body = data.partition(b"\n")
    if digest.decode(errors="replace") != digest_of(body):
        return None
    document = json.loads(body)
    runs = document["runs"]
    found = {number: partition for first, last, partition in runs for number in range(first, last + 1)}
    return Known(found, document["job"])


def write(layout: Layout, volume: str, known: Known) -> None:
    """Replace what is known of a volume. :raises OSError: the store cannot be written."""
    runs: list[list[int | str | None]] = []
    for number, partition in sorted(known.partitions.items()):
        if runs and runs[-1][1:] == [number - 1, partition]:
            runs[-1][1] = number
        else:
            runs.append([number, number, partition])
    body = json.dumps({"job": known.job_id, "runs": runs}).encode()
    path = layout.hints(volume) / _NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, b"%s\n%s" % (digest_of(body).encode(), body), durable=False)
