"""Addresses of versions: the one place that parses them.

========================================  ================================================
``volume://flights/features``             the newest: newest partition, then highest number
``volume://flights/features@latest``      the same
``volume://flights/features@7``           version 7
``volume://flights/features@2013-03``     the newest version of partition 2013-03
``volume://flights/features@b3:9f2c…``    the version with that digest (8 or more hex digits)
``volume://flights/features@*``           many: the newest version of every partition
``volume://flights/features@<2013-10``    many: the same, of the partitions before 2013-10;
                                          also ``<=``, ``>``, ``>=``, joined by commas
========================================  ================================================

``/a/path`` after the selector names a file inside a version. The scheme may be left out.
Partitions compare as text, so write months as ``2013-03``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby

from muster.core.errors import SpecError
from muster.core.names import check_partition, check_volume

SCHEME = "volume://"

_DIGEST = re.compile(r"b3:[0-9a-f]{8,64}\Z")
_BOUND = re.compile(r"(<=|>=|<|>)(.+)\Z", re.DOTALL)
_COMPARE: dict[str, Callable[[str, str], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Select(str, Enum):
    """How an address picks among a volume's versions."""

    LATEST = "latest"
    NUMBER = "number"
    PARTITION = "partition"
    DIGEST = "digest"
    MANY = "many"


@dataclass(frozen=True)
class Address:
    """One parsed address. Build it with :meth:`parse`."""

    volume: str
    select: Select = Select.LATEST
    value: str = ""
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read one address.

        :raises SpecError: the volume, the selector or the path is not one of the forms above.
        """
        if not isinstance(text, str) or not text:
            raise SpecError(f"address {text!r}: expected text such as 'volume://flights/features@7'")
        rest = text.removeprefix(SCHEME)
        if "://" in rest:
            raise SpecError(
                f"address {text!r:.120}: expected a version of a volume, such as 'volume://flights/features@7', found the "
                "address of something else. Let a job of its own fetch it into an output, or `muster volumes put` it"
            )
        volume, at, tail = rest.partition("@")
        check_volume(volume)
        selector, slash, path = tail.partition("/")
        if at and not selector:
            raise SpecError(f"address {text!r:.120}: nothing follows the @")
        inside = path.split("/") if slash else []
        if any(part in ("", ".", "..") for part in inside) or not path.isprintable():
            raise SpecError(f"address {text!r:.120}: the path inside a version must be plain and relative")
        select, value = _selector(text, selector)
        return cls(volume=volume, select=select, value=value, path=path)

    @property
    def many(self) -> bool:
        """Whether it may name several versions and so arrives as a list of paths."""
        return self.select is Select.MANY

    def admits(self, partition: str) -> bool:
        """Whether a selector of many takes in `partition`."""
        bounds = [] if self.value == "*" else self.value.split(",")
        return all(_COMPARE[sign](partition, limit) for sign, limit in map(_bound, bounds))

    def __str__(self) -> str:
        selector = self.value or self.select.value
        return f"{SCHEME}{self.volume}@{selector}" + (f"/{self.path}" if self.path else "")


def pinned(volume: str, number: int) -> str:
    """Write the address of exactly one version, ``volume://flights/features@7``."""
    return f"{SCHEME}{volume}@{number}"


def short(address: str) -> str:
    """Write an address for people, ``flights/model@7``."""
    return address.removeprefix(SCHEME)


def shown(addresses: Sequence[str]) -> str:
    """Write the addresses of versions for people: ``flights/features@1…@12, flights/report@3``; none is empty."""
    by_volume: dict[str, list[str]] = {}
    for address in addresses:
        by_volume.setdefault(short(address).rpartition("@")[0], []).append(address)
    return ", ".join(_span([short(each) for each in many]) for many in by_volume.values())


_MOST_RUNS = 6


def _span(names: Sequence[str]) -> str:
    """Write versions of one volume: ``…`` stands only between numbers that follow each other."""
    volume, numbers = names[0].rpartition("@")[0], [name.rpartition("@")[2] for name in names]
    if len(names) < 3 or not all(map(str.isdigit, numbers)):
        return ", ".join(names)
    steps = groupby(enumerate(sorted(map(int, numbers))), key=lambda each: each[1] - each[0])
    runs = [[number for _, number in step] for _, step in steps]
    told = [f"@{run[0]}" + (f"…@{run[-1]}" if run[1:] else "") for run in runs]
    left = f" and {len(runs) - _MOST_RUNS} more" if len(runs) > _MOST_RUNS else ""
    return volume + ", ".join(told[:_MOST_RUNS]) + left


def _selector(text: str, selector: str) -> tuple[Select, str]:
    if selector in ("", Select.LATEST.value):
        return Select.LATEST, ""
    if selector.isascii() and selector.isdigit():
        if selector.startswith("0") or len(selector) > 12:
            raise SpecError(f"address {text!r:.120}: versions are numbered 1, 2, 3 …, found {selector[:20]}")
        return Select.NUMBER, selector
    if selector.startswith("b3:"):
        if not _DIGEST.match(selector):
            raise SpecError(f"address {text!r:.120}: a digest is b3: and 8 to 64 hex digits")
        return Select.DIGEST, selector
    if selector == "*":
        return Select.MANY, selector
    if selector[0] in "<>":
        for part in selector.split(","):
            _bound(part)
        return Select.MANY, selector
    return Select.PARTITION, check_partition(selector)


def _bound(part: str) -> tuple[str, str]:
    match = _BOUND.match(part)
    if not match:
        raise SpecError(f"selector {part!r:.80}: expected <, <=, > or >= and a partition, such as '<2013-10'")
    return match[1], check_partition(match[2])
