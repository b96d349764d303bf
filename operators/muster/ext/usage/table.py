"""Adds up the lines of the log: who held how many GPU- and CPU-hours, and what was made of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from operator import add

from muster.core.address import SCHEME
from muster.core.errors import SpecError
from muster.ext.usage.log import UsageLine

HOURS = ("held", "used", "wasted", "unmeasured")
"""Held is asked times time, and is used, wasted or not measured. A job that used more CPU than it asked for has wasted none."""
_HOUR_SECONDS = 3600.0
NONE = "-"


@dataclass(frozen=True, kw_only=True)
class UsageRow:
    """What some jobs held, in hours of one card and of one core: each of :data:`HOURS`.

    :param keys: the value of each column that the table was asked by.
    """

    keys: tuple[str, ...]
    jobs: int
    gpu: tuple[float, ...]
    cpu: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class UsageQuestion:
    """What a table is asked for.

    :param by: columns of :data:`COLUMNS`, one or more.
    :param since: seconds since the epoch; what was held before does not count.
    :param models: by its address what each version is called. Where there are some, only the jobs count that one of these was
        made by, or from: all of its lineage, as far as the log goes back.
    """

    by: tuple[str, ...]
    since: float
    models: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.by:
            if name not in COLUMNS:
                known = ", ".join(COLUMNS)
                raise SpecError(f"{name!r} is no column of usage: name one or more of {known}")


def _volumes(line: UsageLine) -> tuple[str, ...]:
    names = (address.removeprefix(SCHEME).rpartition("@")[0] for address in line.made)
    return tuple(dict.fromkeys(names)) or (NONE,)


COLUMNS: Mapping[str, Callable[[UsageLine], Collection[str]]] = {
    "dag": lambda line: (line.dag or NONE,),
    "task": lambda line: (line.task or NONE,),
    "team": lambda line: (line.team or NONE,),
    "user": lambda line: (line.user or NONE,),
    "class": lambda line: (line.gpu_class or "cpu",),
    "state": lambda line: (line.state,),
    "volume": _volumes,
    "model": lambda _: (),  # of those that were asked for
}
"""The values that a job has in each column."""


def usage(lines: Sequence[UsageLine], question: UsageQuestion, *, now: float) -> list[UsageRow]:
    """Return a row for each value, the most wasted first.

    A job that made versions of several volumes counts for each of these in equal parts. One that several models were made from
    counts for each of them whole.
    """
    models = _lineages(lines, question.models)
    sums: dict[tuple[str, ...], tuple[float, ...]] = {}
    for line in lines:
        mine = models.get(line.job_id, ())
        if question.models and not mine:
            continue
        numbers = (1.0, *_hours(line, since=question.since, now=now))
        values = [mine if column == "model" else COLUMNS[column](line) for column in question.by]
        if "volume" in question.by:
            share = len(values[question.by.index("volume")])
            numbers = (1.0, *(each / share for each in numbers[1:]))
        for keys in product(*values):
            before = sums.get(keys)
            sums[keys] = numbers if before is None else tuple(map(add, before, numbers))
    return _rows(sums)


def without(rows: Iterable[UsageRow], columns: int) -> list[UsageRow]:
    """Return the rows without their first columns, as one where they differ in these alone."""
    sums: dict[tuple[str, ...], tuple[float, ...]] = {}
    for row in rows:
        keys, numbers = row.keys[columns:], (row.jobs, *row.gpu, *row.cpu)
        sums[keys] = tuple(map(add, sums.get(keys, (0.0,) * len(numbers)), numbers))
    return _rows(sums)


def document(columns: Sequence[str], row: UsageRow) -> dict[str, str | float]:
    """Return a row as JSON values, by the names of its columns and hours."""
    names = [f"{what}_hours_{name}" for what in ("gpu", "cpu") for name in HOURS]
    numbers = (round(each, 4) for each in (*row.gpu, *row.cpu))
    return dict(zip((*columns, "jobs", *names), (*row.keys, row.jobs, *numbers), strict=True))


def _rows(sums: Mapping[tuple[str, ...], tuple[float, ...]]) -> list[UsageRow]:
    rows = [UsageRow(keys=keys, jobs=int(of[0]), gpu=of[1:5], cpu=of[5:]) for keys, of in sums.items()]
    return sorted(rows, key=lambda row: (-row.gpu[2], -row.cpu[2], row.keys))


def _hours(line: UsageLine, *, since: float, now: float) -> tuple[float, ...]:
    """Return the hours of cards, and then of cores."""
    replicas, cards = 0.0, 0.0
    for begun, ended, count, gpus in line.held:
        seconds = max(0.0, min(ended, now) - max(begun, since))
        replicas += seconds * count
        cards += seconds * gpus
    return *_parts(cards, 1.0, line.gpu_share), *_parts(replicas, line.cpus, line.cpu_share)


def _parts(seconds: float, asked: float, used: float | None) -> tuple[float, float, float, float]:
    held = seconds * asked / _HOUR_SECONDS
    if used is None:
        return held, 0.0, 0.0, held
    spent = seconds * used / _HOUR_SECONDS
    return held, spent, max(0.0, held - spent), 0.0


def _lineages(lines: Iterable[UsageLine], models: Mapping[str, str]) -> dict[str, dict[str, None]]:
    """Return, by job, the models that it made, or made something of that they were made from."""
    makers = {address: line for line in lines for address in line.made} if models else {}
    found: dict[str, dict[str, None]] = {}
    for address, name in models.items():
        waiting, seen = [address], {address}
        while waiting:
            maker = makers.get(waiting.pop())
            if maker is not None:
                found.setdefault(maker.job_id, {})[name] = None
                waiting += set(maker.read) - seen
                seen.update(maker.read)
    return found
