"""Versions as a table of chosen metrics and params, sorted by one of them: for ``muster volumes log --sort --columns``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from muster.cli.screen import Table, when
from muster.core.errors import NotFound
from muster.core.names import nearest

if TYPE_CHECKING:
    from muster.volumes.base import Record, Version

V = TypeVar("V")


def names(columns: str | None, sort: str | None) -> list[str]:
    """Return the names of the columns, that by which the table is sorted included."""
    given = [name.strip() for name in (columns or "").split(",") if name.strip()]
    return list(dict.fromkeys([*given, *([sort] if sort and sort not in given else [])]))


def check(wanted: Sequence[str], records: Sequence[Record]) -> None:
    """Refuse a name that no version has as a metric or param. :raises NotFound: the message names near ones."""
    known = {name for record in records for name in (*record.metrics, *record.params)}
    for name in wanted:
        if records and name not in known:
            near = nearest(name, known)
            there = f"there are {', '.join(sorted(known)[:12])}" if known else "they have none"
            raise NotFound(
                f"no version here has a metric or param {name!r:.80}{f'; did you mean {near}?' if near else ''}; {there}"
            )


def ranked(chosen: Sequence[tuple[Record, V]], name: str, *, ascending: bool) -> list[tuple[Record, V]]:
    """Sort versions by a metric or param, the greatest first; texts after numbers, and those without it last."""

    def place(pair: tuple[Record, V]) -> tuple[bool, Any]:
        value = _value(pair[0], name)
        number = isinstance(value, (int, float))
        return number != ascending, value if number else str(value)

    with_it = [pair for pair in chosen if _value(pair[0], name) is not None]
    without = [pair for pair in chosen if _value(pair[0], name) is None]
    return [*sorted(with_it, key=place, reverse=not ascending), *without]


def table(chosen: Sequence[tuple[Record, Version]], columns: Sequence[str]) -> Table:
    """Return one line a version: its number, partition, time, and the columns; a metric goes before a param of its name."""
    made = Table(["version", "partition", "made", *(f">{name}" for name in columns)])
    for record, version in chosen:
        cells = [_text(_value(record, name)) for name in columns]
        made.add(f"@{version.number}", version.partition, when(version.created), *cells)
    return made


def _value(record: Record, name: str) -> Any:
    return record.metrics.get(name, record.params.get(name))


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
