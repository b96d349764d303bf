"""Progress and links that user code prints while it runs.

One line on stdout, from any rank, in one of two forms; the last line for a name counts::

    muster: epoch=3/10 loss=0.412 rows=120000
    muster: link MLflow=https://mlflow.example/#/experiments/1/runs/9f2c

At most 8 names, ``[a-z][a-z0-9_]{0,31}``, each with a finite number, or a number and its total.
At most 5 links, to http or https, each with a title of 1 to 40 characters. Any other line that
begins with ``muster:`` is an ordinary line. A script need not print either.

MLflow itself prints where a run is shown when it ends it on a server; that is the link ``MLflow``, too::

    🏃 View run rare-wolf-12 at: https://mlflow.example/#/experiments/1/runs/9f2c

Numbers that are not finite (``loss=nan``) are no progress; :mod:`muster.core.series` counts them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from muster.core.errors import SpecError

MOST_NUMBERS = 8
MOST_LINKS = 5
LONGEST_LINE = 2400

_NUMBER = r"[-+]?(?:(?:\d{1,20}(?:\.\d{0,20})?|\.\d{1,20})(?:[eE][-+]?\d{1,3})?|(?i:nan|inf(?:inity)?))"
_NAME, _A_NUMBER = re.compile(r"[a-z][a-z0-9_]{0,31}"), re.compile(_NUMBER, re.ASCII)
_PAIR = re.compile(rf"([a-z][a-z0-9_]{{0,31}})=({_NUMBER})(?:/({_NUMBER}))?", re.ASCII)
_PAIRS = re.compile(rf"muster: ({_PAIR.pattern}(?: {_PAIR.pattern}){{0,{MOST_NUMBERS - 1}}})", re.ASCII)
# No user and password before the host: they would be shown to all users.
_URL = r"https?://[A-Za-z0-9.\-_\[\]:]{1,255}(?:[/?#][!#-&(-;=?-\[\]_a-z~]{0,2000})?"
_LINK = re.compile(rf"muster: link ([^\s=][^=]{{0,39}})=({_URL})", re.ASCII)
MLFLOW = "MLflow"
_MLFLOW = re.compile(rf"\U0001f3c3 View run .{{1,500}} at: ({_URL})")
RANK_LINE = re.compile(rb"^\[rank (\d{1,6})\] (muster: [a-z][^\n]*)$", re.MULTILINE)
_LOGGED = re.compile(rb"^\[rank \d+\] (muster: [a-z].*)$", re.MULTILINE)
_RUN = "\U0001f3c3 View run ".encode()
_LOGGED_LINK = re.compile(rb"^\[rank \d+\] ((?:muster: link |" + _RUN + rb").*)$", re.MULTILINE)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A number that user code reported, and its total where it gave one."""

    value: float
    total: float | None = None

    @property
    def sensible(self) -> bool:
        """Whether the number, and its total where it has one, are finite, and the total is above 0."""
        if not math.isfinite(self.value):
            return False
        return self.total is None or (math.isfinite(self.total) and self.total > 0)

    def __str__(self) -> str:
        """``3/10``, or ``0.412``."""
        return _text(self.value) if self.total is None else f"{_text(self.value)}/{_text(self.total)}"


@dataclass(frozen=True, kw_only=True)
class Told:
    """The progress and links reported so far."""

    progress: Mapping[str, Progress] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("progress", "links"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def then(self, later: Told) -> Told:
        """Return this updated by `later`; of too many names the oldest go."""
        return Told(
            progress=_newest(self.progress, later.progress, MOST_NUMBERS),
            links=_newest(self.links, later.links, MOST_LINKS),
        )


def parse(line: str) -> Told | None:
    """Parse one line as its rank wrote it; None where it is an ordinary line."""
    if len(line) > LONGEST_LINE or not line.isprintable():
        return None
    if run := _MLFLOW.fullmatch(line):
        return Told(links={MLFLOW: run[1]})
    if not line.startswith("muster: "):
        return None
    if link := _LINK.fullmatch(line):
        return Told(links={link[1].strip(): link[2]})
    progress = numbers(line)
    return Told(progress=progress) if progress and all(each.sensible for each in progress.values()) else None


def numbers(line: str) -> dict[str, Progress]:
    """Return the numbers in one line as its rank wrote it, also those that are not finite; none in another line."""
    if len(line) > LONGEST_LINE or not (pairs := _PAIRS.fullmatch(line)):
        return {}
    return {
        name: Progress(value=float(value), total=float(total) if total else None)
        for name, value, total in _PAIR.findall(pairs[1])
    }


class Pattern:
    r"""Finds numbers in lines that a script writes for people, so that it need not be changed.

    Each group is a number's name: ``Epoch (?P<epoch>\d+)|accuracy: (?P<accuracy>[\d.]+)``. Where a line holds one, the groups that stand
    before it in the expression keep what an earlier line said, as a script tells the epoch first.

    :raises SpecError: it is no regular expression, or its groups are no names of numbers.
    """

    def __init__(self, expression: str) -> None:
        try:
            self._expression = re.compile(expression)
        except (re.error, TypeError) as error:
            raise SpecError(
                f"metric_pattern is {expression!r:.120}: no regular expression ({error})"
            ) from error
        self.names = tuple(self._expression.groupindex)
        wrong = [name for name in self.names if not _NAME.fullmatch(name)]
        if wrong or not 1 <= len(self.names) <= MOST_NUMBERS:
            raise SpecError(
                f"metric_pattern is {expression!r:.120}: need 1 to {MOST_NUMBERS} groups, each named as its number, (?P<epoch>\\d+)"
                + (f"; {wrong[0]!r:.60} is no such name, [a-z][a-z0-9_]*" if wrong else "")
            )
        self._last: dict[str, str] = {}

    def told(self, line: str) -> str:
        """Return the line of progress that one line of the script stands for; empty where there is no number in it."""
        if len(line) > LONGEST_LINE:
            return ""
        found = {
            name: text
            for match in self._expression.finditer(line)
            for name, text in match.groupdict().items()
            if text is not None and _A_NUMBER.fullmatch(text)
        }
        if not found:
            return ""
        self._last |= found
        end = max(self.names.index(name) for name in found) + 1
        return "muster: " + " ".join(
            f"{name}={self._last[name]}" for name in self.names[:end] if name in self._last
        )


def heard(log: bytes) -> Told:
    """Parse the whole lines of a job's log, which have ``[rank N]`` before each line.

    Only the newest few lines of either form are parsed, however many there are.
    """
    if b"] muster: " not in log and _RUN not in log:
        return Told()
    found: Iterable[bytes] = (
        *_LOGGED_LINK.findall(log)[-MOST_LINKS:],
        *_LOGGED.findall(log)[-4 * MOST_NUMBERS :],
    )
    told = Told()
    for line in found:
        told = told.then(parse(line.decode("utf-8", "replace")) or Told())
    return told


def lines_of_ranks(log: bytes) -> list[tuple[int, str]]:
    """Return the whole lines of a job's log that may tell numbers, each with its rank."""
    if b"] muster: " not in log:
        return []
    return [(int(rank), line.decode("utf-8", "replace")) for rank, line in RANK_LINE.findall(log)]


def use_lines(replica: str, use: Mapping[str, float]) -> str:
    """Return the lines, without the last one's end, with which a worker tells what its replica uses."""
    pairs = [f"{name}={value:.6g}" for name, value in use.items()]
    groups = (pairs[first : first + MOST_NUMBERS] for first in range(0, len(pairs), MOST_NUMBERS))
    return "\n".join(f"[use {replica}] muster: {' '.join(group)}" for group in groups)


def _newest(before: Mapping[str, T], later: Mapping[str, T], most: int) -> dict[str, T]:
    return dict(list({**before, **later}.items())[-most:])


def _text(number: float) -> str:
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else f"{number:.6g}"
