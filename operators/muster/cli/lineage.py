"""Where a version comes from, as people and scripts read it: for ``muster volumes log`` and ``show``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import typer

from muster.cli.screen import digest, safe, say, size, when
from muster.core.job import Pinned
from muster.core.wire import plain
from muster.volumes.base import Record, Version


def document(version: Version, record: Record) -> dict[str, Any]:
    """Return one version with its record, for ``--json``."""
    return {**plain(version), "address": version.address, "record": plain(record)}


def show(version: Version, record: Record) -> None:
    """Print one version and its record, a line for each thing that is known."""
    title = typer.style(f"{version.volume}@{version.number}", bold=True)
    facts = [
        version.partition and f"partition {version.partition}",
        digest(version.digest, digits=12),
        f"{size(version.size_bytes)} in {version.files} file{'s' * (version.files != 1)}",
        when(version.created),
    ]
    say("  ".join([title, *(safe(fact) for fact in facts if fact)]))
    for name, text in _lines(version, record):
        say(f"  {typer.style(name.ljust(8), dim=True)}  {safe(text)}")


def values(pairs: Mapping[str, Any], *, digits: int = 6) -> str:
    """Write params or metrics on one line: ``auc=0.724103 epochs=5``."""
    return " ".join(
        f"{name}={value:.{digits}g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in pairs.items()
    )


def _lines(version: Version, record: Record) -> Iterator[tuple[str, str]]:
    known = {
        "run": " / ".join(filter(None, (record.origin.dag_id, record.origin.run_id, record.origin.task_id))),
        "job": f"{record.job_id} ({record.job_name}, output {record.output})" if record.job_name else "",
        "code": f"{digest(record.code, digits=12)}  {record.entrypoint}"
        if record.code
        else record.entrypoint,
        "image": f"{record.image}  {digest(record.image_digest, digits=12)}" if record.image else "",
    }
    yield from ((name, text) for name, text in known.items() if text)
    for name, versions in record.inputs.items():
        yield "input", f"{name} = {_inputs(versions)}"
    rest = {
        "params": values(record.params),
        "metrics": values(record.metrics),
        "pinned": ", ".join(version.pins),
        "retired": version.retired or "",
        "note": record.note,
    }
    yield from ((name, text) for name, text in rest.items() if text)


def _inputs(versions: Iterable[Pinned]) -> str:
    return ", ".join(_input(version) for version in versions) or "no version"


def _input(version: Pinned) -> str:
    name = version.address.removeprefix("volume://")
    partition = f", {version.partition}" if version.partition else ""
    return f"{name} ({digest(version.digest)}{partition})"
