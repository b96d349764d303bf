"""Shows the origin of a version, to people and scripts, for ``muster volumes log`` and ``show``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import typer

from muster.cli.screen import Table, digest, safe, say, size, when
from muster.core.address import pinned
from muster.core.data import Pinned
from muster.core.errors import NotFound
from muster.core.names import nearest
from muster.core.text import shortened
from muster.core.wire import plain
from muster.volumes.base import Record, Version
from muster.volumes.lineage import Ancestor

LONGEST = 60
SHOWN = 3  # versions of one input on one line; `muster volumes show` lists them all


def document(record: Record, version: Version | None) -> dict[str, Any]:
    """Return one version with its record, for ``--json``; `version` is None where gc deleted its data."""
    known = (
        plain(version)
        if version
        else {"volume": record.volume, "number": record.number, "digest": record.digest}
    )
    return {
        **known,
        "address": pinned(record.volume, record.number),
        "deleted": version is None,
        "record": plain(record),
    }


def show(record: Record, version: Version | None) -> None:
    """Print one version and its record, one line for each known fact."""
    facts = [
        record.partition and f"partition {record.partition}",
        digest(record.digest, digits=12),
        _amount(version) if version else "data deleted by gc",
        when(record.created),
    ]
    title = typer.style(f"{record.volume}@{record.number}", bold=True)
    say("  ".join([title, *(safe(fact) for fact in facts if fact)]))
    for name, text in (*_made(record), *(_kept(version) if version else ())):
        line(name, text)


def line(name: str, text: object) -> None:
    """Print one fact of a version."""
    say(f"  {typer.style(name.ljust(9), dim=True)}  {safe(text)}")


def trace(ancestors: Iterable[Ancestor]) -> Iterator[str]:
    """Yield all ancestors of a version, each indented by its depth."""
    for ancestor in ancestors:
        if ancestor.depth:
            name = ancestor.address.removeprefix("volume://")
            made = "" if ancestor.record is None else f"  {_maker(ancestor.record)}"
            yield f"{'  ' * (ancestor.depth - 1)}{name} ({digest(ancestor.digest)}){made}"


def values(pairs: Mapping[str, Any]) -> str:
    """Write params or metrics on one line: ``auc=0.724103 epochs=5``; a long value is cut (``--json`` has it)."""
    return " ".join(f"{name}={_value(value)}" for name, value in pairs.items())


def _value(value: Any) -> str:
    return shortened(f"{value:.6g}" if isinstance(value, float) else str(value), LONGEST)


def _amount(version: Version) -> str:
    return f"{size(version.size_bytes)} in {version.files} file{'s' * (version.files != 1)}"


def _maker(record: Record) -> str:
    return f"by {record.job_name}, code {digest(record.code)}" if record.job_name else record.note


def _made(record: Record) -> Iterator[tuple[str, str]]:
    known = {
        "run": " / ".join(filter(None, (record.origin.dag_id, record.origin.run_id, record.origin.task_id))),
        "job": f"{record.job_id} ({record.job_name}, output {record.output})" if record.job_name else "",
        "code": f"{digest(record.code, digits=12)}  {record.entrypoint}"
        if record.code
        else record.entrypoint,
        "image": f"{record.image}  {digest(record.image_digest, digits=12)}" if record.image else "",
        "interpreter": f"Python {record.interpreter}; not the image's lock" if record.interpreter else "",
    }
    yield from ((name, text) for name, text in known.items() if text)
    for name, versions in record.inputs.items():
        yield "input", f"{name} = {inputs(versions)}"
    rest = {"params": values(record.params), "metrics": values(record.metrics), "note": record.note}
    yield from ((name, text) for name, text in rest.items() if text)


def _kept(version: Version) -> Iterator[tuple[str, str]]:
    if version.pins:
        yield "pinned", ", ".join(version.pins)
    if version.retired is not None:
        yield "retired", version.retired or "yes"


def inputs(versions: Sequence[Pinned]) -> str:
    """Write the versions of one input on one line, short where they are many."""
    if len(versions) > SHOWN:
        return f"{len(versions)} versions, {_input(versions[0])} … {_input(versions[-1])}"
    return ", ".join(map(_input, versions)) or "no version"


def _input(version: Pinned) -> str:
    name = version.address.removeprefix("volume://")
    partition = f", {version.partition}" if version.partition else ""
    return f"{name} ({digest(version.digest)}{partition})"


Row = TypeVar("Row")


def columns_of(columns: str | None, sort: str | None) -> list[str]:
    """Return the names of the columns, that by which the table is sorted included."""
    given = [name.strip() for name in (columns or "").split(",") if name.strip()]
    return list(dict.fromkeys([*given, *([sort] if sort and sort not in given else [])]))


def check_columns(wanted: Sequence[str], records: Sequence[Record]) -> None:
    """Refuse a name that no version has as a metric or param. :raises NotFound: the message names near ones."""
    known = {name for record in records for name in (*record.metrics, *record.params)}
    for name in wanted:
        if records and name not in known:
            near = nearest(name, known)
            there = f"there are {', '.join(sorted(known)[:12])}" if known else "they have none"
            raise NotFound(
                f"no version here has a metric or param {name!r:.80}{f'; did you mean {near}?' if near else ''}; {there}"
            )


def ranked(chosen: Sequence[tuple[Record, Row]], name: str, *, ascending: bool) -> list[tuple[Record, Row]]:
    """Sort versions by a metric or param, the greatest first; texts after numbers, and those without it last."""

    def place(pair: tuple[Record, Row]) -> tuple[bool, Any]:
        value = _of_record(pair[0], name)
        number = isinstance(value, (int, float))
        return number != ascending, value if number else str(value)

    with_it = [pair for pair in chosen if _of_record(pair[0], name) is not None]
    without = [pair for pair in chosen if _of_record(pair[0], name) is None]
    return [*sorted(with_it, key=place, reverse=not ascending), *without]


def table(chosen: Sequence[tuple[Record, Version]], columns: Sequence[str]) -> Table:
    """Return one line a version: its number, partition, time, and the columns; a metric goes before a param of its name."""
    made = Table(["version", "partition", "made", *(f">{name}" for name in columns)])
    for record, version in chosen:
        cells = [_text(_of_record(record, name)) for name in columns]
        made.add(f"@{version.number}", version.partition, when(version.created), *cells)
    return made


def _of_record(record: Record, name: str) -> Any:
    return record.metrics.get(name, record.params.get(name))


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
