"""Which partition each version of a volume is in: a selector reads the records of the versions that it names, and no others.

::

    b3:<BLAKE3 of all that follows>
    {"job": "<job_id>", "runs": [[1, 12, "2013-01"], [13, 13, null]], "uncommitted": {"<job_id>": [[14, 5013]]}}

That is ``hints/<volume>/partitions``, with first and last number of each run. Where a person deleted a volume's folder its numbers begin again, so
the file names the job of its last version, and counts while that version is this job's. Else no number is given twice, and a committed version never
changes its partition: what the file says stays true, and versions that it lacks are read beside it. "uncommitted" has the numbers that a commit gave
out and has not made visible, by its job: no other job can fill them, so they are passed over while this job has no commit record and the last of them is marked
as its own. The file may be deleted, and one that is torn, or
of another shape, counts as none. A commit makes its folder; a reader writes the file only where the folder is its own user's, since it
would keep that user's commits out of one that it made itself.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from muster.core import wire
from muster.core.errors import SpecError
from muster.core.names import check_job_id
from muster.volumes.base import Record
from muster.volumes.commit_records import holder
from muster.volumes.durability import read_whole, write_whole
from muster.volumes.layout import Layout
from muster.volumes.manifest import digest_of

MOST_UNREAD = 64
"""A reader that had to read this many records or more rewrites the file."""

_NAME = "partitions"


class Known(NamedTuple):
    """What is known of the numbers of a volume.

    :ivar partitions: of the committed ones. :ivar job_id: the job that made the highest of these; empty where there is none.
    :ivar uncommitted: of numbers that are not committed, the job that alone may do it.
    """

    partitions: Mapping[int, str | None]
    job_id: str
    uncommitted: Mapping[int, str]

    def joined(self, read: Known) -> Known:
        """Return this with what was read now."""
        newer = max(read.partitions, default=0) > max(self.partitions, default=0)
        return Known(
            {**self.partitions, **read.partitions},
            read.job_id if newer else self.job_id,
            {**self.uncommitted, **read.uncommitted},
        )


NOTHING = Known({}, "", {})


def said(layout: Layout, volume: str, numbers: Sequence[int]) -> Known:
    """Return what the file says of some numbers of a volume, ascending, as far as it is about what is there now."""
    known = read(layout, volume, numbers) or NOTHING
    last = {job_id: number for number, job_id in known.uncommitted.items()}
    going = {job_id for job_id, number in last.items() if _waits(layout, volume, number, job_id)}
    uncommitted = {number: job_id for number, job_id in known.uncommitted.items() if job_id in going}
    if known.partitions:
        with suppress(SpecError, OSError):
            if _maker(layout, volume, max(known.partitions)) == known.job_id:
                return known._replace(uncommitted=uncommitted)
    return Known({}, "", uncommitted)


def read(layout: Layout, volume: str, numbers: Sequence[int]) -> Known | None:
    """Return what the file says, whatever is there now.

    Of partitions it says nothing where it knows more than these numbers. None where no file can be read that says anything.
    """
    try:
        digest, _, body = read_whole(layout.hints(volume) / _NAME).partition(b"\n")
        if digest.decode() != digest_of(body):
            return None
        document = json.loads(body)
        runs, job_id = document["runs"], document["job"]
        partitions = _expanded(runs, numbers)
        if not job_id or not runs or runs[-1][1] not in partitions:
            partitions, job_id = {}, ""
        uncommitted = {
            number: check_job_id(name)
            for name, own in document.get("uncommitted", {}).items()
            for first, last in own
            for number in _between(numbers, first, last)
        }
    except (ValueError, LookupError, TypeError, AttributeError, OSError, SpecError):
        return None
    return Known(partitions, job_id, uncommitted) if partitions or uncommitted else None


def _expanded(runs: Sequence[tuple[int, int, str | None]], numbers: Sequence[int]) -> dict[int, str | None]:
    """Return the partitions of the numbers that runs hold. :raises ValueError: one is no text."""
    found: dict[int, str | None] = {}
    for first, last, partition in runs:
        if not isinstance(partition, str | None):
            raise ValueError(f"{partition!r} is no partition")
        found |= dict.fromkeys(_between(numbers, first, last), partition)
    return found


def _between(numbers: Sequence[int], first: int, last: int) -> Sequence[int]:
    return numbers[bisect_left(numbers, first) : bisect_right(numbers, last)]


def _waits(layout: Layout, volume: str, number: int, job_id: str) -> bool:
    """Whether a number is marked as a job's, and this job has not committed."""
    return holder(layout.version(volume, number)) == job_id and not layout.commit(job_id).exists()


def _maker(layout: Layout, volume: str, number: int) -> str:
    """Return the job that a version's record names. :raises SpecError: it is none. :raises OSError: it cannot be read."""
    return wire.loads(Record, (layout.version(volume, number) / "RECORD.json").read_bytes()).job_id


def awaited(layout: Layout, volume: str, number: int) -> str | None:
    """Return the job that alone may commit a number that is not committed; None where it is not sure that it is the only one.

    The number's mark alone does not tell: for a moment it may stand beside a version that another job committed.
    """
    job_id = holder(layout.version(volume, number))
    try:
        return job_id if _maker(layout, volume, number) == job_id else None
    except FileNotFoundError:
        return job_id  # gc deleted what there was
    except (SpecError, OSError):
        return None


def write(layout: Layout, volume: str, known: Known) -> None:
    """Replace what is known of a volume, where its folder of hints is this user's.

    :raises OSError: there is no such folder, or it cannot be written.
    """
    path = layout.hints(volume) / _NAME
    if path.parent.stat().st_uid != os.geteuid():
        return
    runs: list[list[int | str | None]] = []
    for number, partition in sorted(known.partitions.items()):
        _add(runs, number, partition)
    document: dict[str, object] = {"job": known.job_id, "runs": runs}
    if known.uncommitted:
        jobs: dict[str, list[list[int | str | None]]] = {}
        for number, job_id in sorted(known.uncommitted.items()):
            _add(jobs.setdefault(job_id, []), number)
        document["uncommitted"] = jobs
    body = json.dumps(document).encode()
    write_whole(path, b"%s\n%s" % (digest_of(body).encode(), body), durable=False)


def _add(runs: list[list[int | str | None]], number: int, *what: str | None) -> None:
    """Lengthen the last run by a number, or begin another one."""
    if runs and runs[-1][1:] == [number - 1, *what]:
        runs[-1][1] = number
    else:
        runs.append([number, number, *what])
