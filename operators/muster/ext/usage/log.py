"""The log of usage: a line for each job that has ended, which outlives the job's folder.

::

    STORE/usage/2026-11.jsonl    the jobs that ended in that month (UTC), each an array: see UsageLine
    STORE/usage/open/<job_id>    a job that holds its resources now

A line is written just before the job's end is recorded, so a kill between the two leaves a second line: the last one of a job
counts. gc deletes what is older than :data:`KEPT_DAYS`.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from muster.core.errors import Corrupt, NotFound
from muster.core.job import JobSpec
from muster.core.names import is_label
from muster.core.series import Curve, Series
from muster.core.status import JobStatus
from muster.core.tally import Allotment, Tally
from muster.volumes.durability import locked, translated
from muster.volumes.ledger import FolderLedger

KEPT_DAYS = 400.0
_DAY_SECONDS = 86_400.0


class UsageLine(NamedTuple):
    """One job.

    :param ended: seconds since the epoch; of a job that goes on, now.
    :param gpu_class: the class of card that it asked for, ``any`` for cards without one, empty without cards.
    :param cpus: for each replica, like `gpus` and `memory_gib`: the mean where roles differ.
    :param held: each time in which it held its resources: since, until, replicas, and cards of all of them.
    :param cpu_share: how many cores each replica used in the mean; None where that was not measured.
    :param gpu_share: which part of the time its cards computed, likewise.
    :param made: the addresses of the versions that it made, and `read` of those that they were made from.
    """

    ended: float
    job_id: str
    state: str
    dag: str
    task: str
    run: str
    user: str
    team: str
    gpu_class: str
    cpus: float
    gpus: float
    memory_gib: float
    held: list[tuple[float, float, int, int]]
    cpu_share: float | None
    gpu_share: float | None
    made: list[str]
    read: list[str]


def tallied(
    root: Path, spec: JobSpec, status: JobStatus, tally: Tally, series: Callable[[], Series], recorded: bool
) -> None:
    """Note that a job holds its resources, or write its line before its end is recorded: until then it may go on."""
    mark = root / "usage" / "open" / status.job_id
    if not status.state.ended:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    elif recorded:
        mark.unlink(missing_ok=True)
    else:
        append(root, line_of(spec, status, tally, series(), now=status.ended or time.time()))


def append(root: Path, line: UsageLine) -> None:
    """Write one line whole, or none. It begins with a line break, so that one that a crash cut spoils no other."""
    path = root / "usage" / f"{_month(line.ended)}.jsonl"
    path.parent.mkdir(exist_ok=True)
    data = b"\n" + json.dumps(line, separators=(",", ":")).encode()
    with locked(path.parent / "lock"), path.open("ab", buffering=0) as file:
        if (written := file.write(data)) < len(data):
            file.truncate(file.tell() - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def line_of(spec: JobSpec, status: JobStatus, tally: Tally, series: Series, *, now: float) -> UsageLine:
    """Return what the log says of one job. :param now: until when what goes on counts."""
    times = tally.times
    if not times and status.started is not None:  # nothing looked at it while it ran on a cluster
        gpus = sum(role.replicas * role.resources.gpus for role in spec.roles)
        times = (Allotment(since=status.started, until=status.ended, replicas=spec.replicas, gpus=gpus),)
    cards = [role.resources.gpu_class or ("any",) for role in spec.roles if role.resources.gpus]

    def each(of: str) -> float:
        return sum(role.replicas * float(getattr(role.resources, of)) for role in spec.roles) / spec.replicas

    origin = spec.origin
    return UsageLine(
        ended=round(now, 1),
        job_id=status.job_id,
        state=status.state.value,
        dag=origin.dag_id,
        task=origin.task_id,
        run=origin.run_id,
        user=tally.user,
        team=tally.team,
        gpu_class=",".join(dict.fromkeys(name for names in cards for name in names)),
        cpus=each("cpus"),
        gpus=each("gpus"),
        memory_gib=each("memory_gib"),
        held=[
            (
                round(time.since, 1),
                round(now if time.until is None else time.until, 1),
                time.replicas,
                time.gpus,
            )
            for time in times
        ],
        cpu_share=_mean(curve for curve in series.use if curve.name == "cpu_cores"),
        gpu_share=_mean(curve for curve in series.use if re.fullmatch(r"gpu\d+_share", curve.name)),
        made=list(status.addresses),
        read=[pinned.address for given in spec.origins.values() for pinned in given.versions],
    )


def read(root: Path, ledger: FolderLedger, *, since: float, now: float) -> list[UsageLine]:
    """Return the jobs that have ended since then, and those that hold their resources now."""
    found: dict[str, UsageLine] = {}
    with translated("read the log of usage"):
        for path in sorted((root / "usage").glob("*.jsonl")):
            if path.stem >= _month(since):
                found.update((line[1], line) for line in _lines(path) if line[0] >= since)
        for mark in _marks(root):
            with suppress(NotFound, Corrupt):  # gc deleted it; what cannot be read is fsck's to tell
                if not (status := ledger.status(mark.name)).state.ended:
                    spec, tally = ledger.spec(mark.name), ledger.tally(mark.name)
                    found[mark.name] = line_of(spec, status, tally, ledger.series(mark.name), now=now)
    return list(found.values())


def prune(root: Path) -> None:
    """Delete the months that are over for :data:`KEPT_DAYS`, and the marks of jobs whose process was killed at their end."""
    oldest = _month(time.time() - KEPT_DAYS * _DAY_SECONDS)
    for path in (root / "usage").glob("*.jsonl"):
        if path.stem < oldest:
            path.unlink(missing_ok=True)
    for mark in _marks(root):
        if not (root / "jobs" / mark.name).is_dir():
            mark.unlink(missing_ok=True)


def _marks(root: Path) -> Iterator[Path]:
    """Return the marks of jobs, without what NFS or a file browser leaves beside them."""
    return (path for path in (root / "usage" / "open").glob("*") if is_label(path.name) and path.is_file())


def _lines(path: Path) -> Iterator[UsageLine]:
    """Read a month, without lines that a crash cut. What a later release adds to a line is behind what is known here."""
    texts = path.read_bytes().split(b"\n")
    try:
        documents = json.loads(b"[%s]" % b",".join(filter(None, texts)))
    except ValueError:
        documents = []
        for text in texts:
            with suppress(ValueError):
                documents.append(json.loads(text))
    width = len(UsageLine._fields)
    return (
        UsageLine._make(each[:width]) for each in documents if isinstance(each, list) and len(each) >= width
    )


def _month(seconds: float) -> str:
    return time.strftime("%Y-%m", time.gmtime(max(0.0, seconds)))


def _mean(curves: Iterator[Curve]) -> float | None:
    means = [fmean(curve.values) for curve in curves if curve.values]
    return round(fmean(means), 4) if means else None
