"""Series of a job over time: the numbers that its ranks print, and the resources that its replicas use.

Two kinds of lines add points. Both have the numbers that :mod:`muster.core.progress` describes::

    [rank 0] muster: epoch=3/10 loss=0.41
    [use main-0] muster: cpu_cores=1.52 memory_gib=3.2

User code of a rank prints the first. A worker writes the second about its replica; it is not in the log. In a rank's
line the first number with a total, or else the one called ``step`` or ``epoch``, is the step of the other numbers.

Limits of a job: 2,000 points of a name over all ranks, 32,000 points in all, 256 names, 64 ranks of a name. A name with
more points is thinned evenly: every second point is dropped, and so is every second later one. The newest point of
each rank is always kept. Of more than 2,000 lines a second an evenly spread sample is read. Numbers that are not finite
are counted and have no point.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.core.progress import LONGEST_LINE, RANK_LINE, Progress, numbers

MOST_POINTS = 2000
MOST_POINTS_IN_ALL = 32_000
MOST_NAMES = 256
MOST_SOURCES = 64
LINES_A_SECOND = 2000
FORMAT = 1

_TOLD_NAMES_LEFT_OUT = 100
_MARK, _USE_MARK = b"] muster: ", b"[use "
_USE = re.compile(rb"^\[use ([a-z0-9][a-z0-9.-]{0,79})\] (muster: [a-z][^\n]*)$", re.MULTILINE)
_USE_LINES = re.compile(rb"(?:^\[use [^\n]*\n?)+", re.MULTILINE)
_STEPS = ("step", "epoch")
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The points of one name from one source: `seconds`, `values` and `steps` belong together by position.

    :param source: the rank, such as ``0``, or the replica, such as ``main-0``, for what it uses.
    :param seconds: since the job's start, in order.
    :param steps: the step of each point, where its line had one; empty where no line had. It falls where a gang
        restarts from its checkpoint.
    :param step_name: what counts the steps, such as ``epoch``.
    :param told: how many finite numbers the source printed; more than the points if they were thinned.
    :param not_finite: how many were NaN or infinite.
    """

    name: str
    source: str
    seconds: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    steps: tuple[float | None, ...] = ()
    step_name: str = ""
    told: int = 0
    not_finite: int = 0


@dataclass(frozen=True, kw_only=True)
class Series:
    """All series of a job.

    :param start: what `seconds` count from, in seconds since the epoch; 0 where there is no point.
    :param numbers: of the ranks, by user code. `use`: of the replicas, by their workers.
    :param names_left_out: names beyond the limit, at most 100 of them.
    :param numbers_left_out: how many numbers of these, and of ranks beyond the limit, were printed.
    :param lines_left_out: lines that came too fast to be read.
    """

    start: float = 0.0
    numbers: tuple[Curve, ...] = ()
    use: tuple[Curve, ...] = ()
    names_left_out: tuple[str, ...] = ()
    numbers_left_out: int = 0
    lines_left_out: int = 0


def has_numbers(lines: bytes) -> bool:
    """Whether these lines may have points: one quick search, since most lines have none."""
    return _MARK in lines


def segments(lines: bytes) -> Iterator[tuple[bytes, bool]]:
    """Cut lines into stretches, in order, each with whether it belongs in the log."""
    end = 0
    for found in _USE_LINES.finditer(lines) if _USE_MARK in lines else ():
        if found.start() > end:
            yield lines[end : found.start()], True
        yield found[0], False
        end = found.end()
    if end < len(lines):
        yield lines[end:], True


@dataclass
class _Points:
    """The points of one name and source: those that are kept, in columns, and the newest."""

    seconds: array[float] = field(default_factory=lambda: array("d"))
    steps: array[float] = field(default_factory=lambda: array("d"))  # NaN where there is none
    values: array[float] = field(default_factory=lambda: array("d"))
    told: int = 0
    not_finite: int = 0
    last: tuple[float, float, float] | None = None  # the newest, where it is not among those

    def add(self, point: tuple[float, float, float], *, kept: bool) -> None:
        self.last = None if kept else point
        if kept:
            for column, number in zip((self.seconds, self.steps, self.values), point, strict=True):
                column.append(number)

    def thin(self) -> None:
        if self.last is None and self.seconds and len(self.seconds) % 2 == 0:
            self.last = (self.seconds[-1], self.steps[-1], self.values[-1])
        self.seconds, self.steps, self.values = self.seconds[::2], self.steps[::2], self.values[::2]

    def columns(self) -> tuple[list[float], list[float | None], list[float]]:
        seconds, steps, values = (
            list(column) + ([self.last[i]] if self.last else [])
            for i, column in enumerate((self.seconds, self.steps, self.values))
        )
        return [round(second, 3) for second in seconds], list(map(_json, steps)), values


@dataclass
class _Name:
    """All points of one name; every `stride`-th of each source is kept."""

    stride: int = 1
    step_name: str = ""
    sources: dict[str, _Points] = field(default_factory=dict)

    def kept(self) -> int:
        """How many points there may be, with the newest of each source."""
        return sum(len(points.seconds) + 1 for points in self.sources.values())

    def thin(self, most: int) -> None:
        while self.kept() > most and any(len(points.seconds) > 1 for points in self.sources.values()):
            self.stride *= 2
            for points in self.sources.values():
                points.thin()


@dataclass
class _News:
    """What one batch of lines adds for a name and source."""

    told: int = 0
    not_finite: int = 0
    kept: list[list[float | None]] = field(default_factory=list)
    last: list[float | None] | None = None

    def add(self, point: list[float | None], *, kept: bool) -> None:
        self.told += 1
        self.last = None if kept else point
        if kept:
            self.kept.append(point)


class Folding:
    """The series of one job, folded from its lines as they come.

    :param start: when the job started, in seconds since the epoch.
    """

    def __init__(self, start: float) -> None:
        self.start = start
        self._names: dict[tuple[str, bool], _Name] = {}  # by name, and whether it is a replica's use
        self._left_out: dict[str, None] = {}
        self._numbers_left_out = self._lines_left_out = 0
        self._second = 0.0  # of the newest points; it never falls, whatever the clock does
        self._may_read, self._read_at = float(LINES_A_SECOND), 0.0

    def take(self, lines: bytes, *, at: float) -> list[Any] | None:
        """Add the points of whole lines that arrived now. Return what :meth:`replay` needs; None if there are none.

        :param at: now, in seconds since the epoch.
        """
        news: dict[tuple[str, str, bool], _News] = {}
        before = self._left()
        for source, text in self._some(lines, at):
            self._read(news, source, text, is_use=False)
        for source, text in _USE.findall(lines)[:LINES_A_SECOND] if _USE_MARK in lines else ():
            self._read(news, source, text, is_use=True)
        if not news and self._left() == before:
            return None
        told = [[*key, each.told, each.not_finite, each.kept, each.last] for key, each in news.items()]
        steps = {name: self._names[name, False].step_name for name, _, is_use in news if not is_use}
        record = [max(self._second, round(at - self.start, 3)), self._left(), steps, told]
        self.replay(record)
        return record

    def replay(self, record: list[Any]) -> None:
        """Add what a :meth:`take` of an earlier process added."""
        self._second, (self._numbers_left_out, self._lines_left_out, left), steps, told = record
        self._left_out |= dict.fromkeys(left)
        for name, source, is_use, count, not_finite, kept, last in told:
            points = self._of(name, is_use).sources.setdefault(source, _Points())
            points.told += count
            points.not_finite += not_finite
            for step, value in kept:
                points.add((self._second, _number(step), value), kept=True)
            if last is not None:
                points.add((self._second, _number(last[0]), last[1]), kept=False)
        for name, step_name in steps.items():
            self._of(name, False).step_name = step_name
        most = min(MOST_POINTS, MOST_POINTS_IN_ALL // max(1, len(self._names)))
        for entry in self._names.values():
            entry.thin(most)

    def snapshot(self) -> dict[str, Any]:
        """Return all of it, for JSON; see :meth:`restored`."""
        return {
            "format": FORMAT,
            "start": self.start,
            "second": self._second,
            "left_out": self._left(),
            "names": [
                [name, is_use, entry.stride, entry.step_name, _columns(entry)]
                for (name, is_use), entry in self._names.items()
            ],
        }

    @classmethod
    def restored(cls, document: Mapping[str, Any]) -> Folding:
        """Return the series of a :meth:`snapshot`. :raises ValueError: a later release wrote it."""
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']!r:.20}, this muster reads {FORMAT}")
        made = cls(float(document["start"]))
        made._second = float(document["second"])
        made._numbers_left_out, made._lines_left_out, left = document["left_out"]
        made._left_out = dict.fromkeys(left)
        for name, is_use, stride, step_name, sources in document["names"]:
            entry = made._names[name, is_use] = _Name(stride, step_name)
            for source, (told, not_finite, seconds, steps, values, last) in sources.items():
                points = entry.sources[source] = _Points(told=told, not_finite=not_finite)
                for second, step, value in zip(seconds, steps, values, strict=True):
                    points.add((second, _number(step), value), kept=True)
                if last is not None:
                    points.add((last[0], _number(last[1]), last[2]), kept=False)
        return made

    def series(self) -> Series:
        """Return the series as they are now, by name and source."""
        curves: dict[bool, list[Curve]] = {False: [], True: []}
        for (name, is_use), entry in sorted(self._names.items()):
            for source, points in sorted(entry.sources.items(), key=lambda each: _order(each[0])):
                curves[is_use].append(_curve(name, source, entry.step_name, points))
        return Series(
            start=self.start if self._names else 0.0,
            numbers=tuple(curves[False]),
            use=tuple(curves[True]),
            names_left_out=tuple(self._left_out),
            numbers_left_out=self._numbers_left_out,
            lines_left_out=self._lines_left_out,
        )

    def _some(self, lines: bytes, at: float) -> list[tuple[bytes, bytes]]:
        """Return the lines of ranks with numbers; of too many an evenly spread sample."""
        self._may_read += max(0.0, at - self._read_at) * LINES_A_SECOND
        self._may_read, self._read_at = min(self._may_read, LINES_A_SECOND), at
        count = lines.count(_MARK)
        most = int(self._may_read)
        found = RANK_LINE.findall(lines) if count <= most else self._sample(lines, most)
        if count > most:
            self._lines_left_out += count - len(found)
        self._may_read -= len(found)
        return found

    def _sample(self, lines: bytes, most: int) -> list[tuple[bytes, bytes]]:
        """Return the line that follows a random place in each of `most` equal parts of `lines`."""
        found: dict[int, tuple[bytes, bytes]] = {}
        size = len(lines) / max(1, most)
        for part in range(most):
            place = int((part + part * _GOLDEN % 1) * size)  # no pattern of the lines falls in step with it
            if line := RANK_LINE.search(lines, place, int((part + 1) * size) + LONGEST_LINE):
                found[line.start()] = (line[1], line[2])
        return list(found.values())

    def _read(
        self, news: dict[tuple[str, str, bool], _News], source: bytes, text: bytes, *, is_use: bool
    ) -> None:
        told, origin = numbers(text.decode("utf-8", "replace")), source.decode()
        step_name = "" if is_use else _step(told)
        for name, number in told.items():
            entry = self._taken(name, origin, is_use)
            if entry is None:
                self._numbers_left_out += 1
                continue
            if step_name != name:
                entry.step_name = entry.step_name or step_name
            stepped = step_name and step_name != name and step_name == entry.step_name
            new = news.setdefault((name, origin, is_use), _News())
            if math.isfinite(number.value):
                place = entry.sources[origin].told + new.told
                new.add(
                    [told[step_name].value if stepped else None, number.value], kept=place % entry.stride == 0
                )
            else:
                new.not_finite += 1

    def _taken(self, name: str, source: str, is_use: bool) -> _Name | None:
        """Return the entry of this name and source; None if a limit leaves no room for it."""
        entry = self._names.get((name, is_use))
        if entry is None:
            if len(self._names) >= MOST_NAMES:
                if len(self._left_out) < _TOLD_NAMES_LEFT_OUT:
                    self._left_out[name] = None
                return None
            entry = self._of(name, is_use)
        if source not in entry.sources:
            if len(entry.sources) >= MOST_SOURCES:
                return None
            entry.sources[source] = _Points()
        return entry

    def _of(self, name: str, is_use: bool) -> _Name:
        return self._names.setdefault((name, is_use), _Name())

    def _left(self) -> list[Any]:
        return [self._numbers_left_out, self._lines_left_out, list(self._left_out)]


def _step(told: Mapping[str, Progress]) -> str:
    """Return the name of the number that counts a line's steps; empty if there is none."""
    with_total = (name for name, number in told.items() if number.total is not None and number.sensible)
    by_name = (name for name in _STEPS if name in told and told[name].sensible)
    return next(with_total, None) or next(by_name, "")


def _curve(name: str, source: str, step_name: str, points: _Points) -> Curve:
    seconds, steps, values = points.columns()
    stepped = any(step is not None for step in steps)
    return Curve(
        name=name,
        source=source,
        seconds=tuple(seconds),
        values=tuple(values),
        steps=tuple(steps) if stepped else (),
        step_name=step_name if stepped else "",
        told=points.told,
        not_finite=points.not_finite,
    )


def _columns(entry: _Name) -> dict[str, list[Any]]:
    return {
        source: [
            points.told,
            points.not_finite,
            list(points.seconds),
            list(map(_json, points.steps)),
            list(points.values),
            [points.last[0], _json(points.last[1]), points.last[2]] if points.last else None,
        ]
        for source, points in entry.sources.items()
    }


def _order(source: str) -> tuple[str, int]:
    """Ranks by number, then replicas by role and index."""
    stem = source.rstrip("0123456789")
    return stem, int(source[len(stem) :] or 0)


def _json(step: float) -> float | None:
    return None if math.isnan(step) else step


def _number(step: float | None) -> float:
    return math.nan if step is None else float(step)
