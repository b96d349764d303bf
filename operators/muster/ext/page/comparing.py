"""Two or more versions side by side: metrics, params, inputs, code, files and the schemas of their tables."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from muster.core.address import pinned
from muster.core.errors import MusterError, SpecError
from muster.core.wire import plain
from muster.ext.page import snapshots
from muster.ext.page.graph import Permitted
from muster.volumes.base import Record
from muster.volumes.lineage import compare
from muster.volumes.parquet import read_schema
from muster.volumes.protocols import LocalStore

MOST = 6
MOST_FILES = 200
_MOST_SCHEMAS = 5
MOST_BYTES = 64 << 20
"""Of a table whose schema is compared: a store behind a service sends the whole file."""


def side_by_side(
    store: LocalStore, addresses: Sequence[str], *, permitted: Permitted, readable: Callable[[str], bool]
) -> dict[str, Any]:
    """Compare versions with the oldest of them, oldest first.

    :param permitted: whether the user may see the versions of a Dag; `readable`: also their files.
    :return: ``versions``; ``metrics``, ``params``, ``inputs`` and ``made`` as rows ``[name, [value, …]]``; and for each
        version after the first ``code``, ``files`` and ``schemas``: what differs from the first.
    """
    if not 2 <= len(addresses) <= MOST:
        raise SpecError(f"{len(addresses)} versions were given: 2 to {MOST} can be compared")
    records = sorted(
        store.records(list(addresses)), key=lambda record: record.created
    )  # before and after, however named
    jobs = {*store.ledger.jobs()}
    shown = [record if permitted(record.origin.dag_id) else None for record in records]
    exact = [pinned(record.volume, record.number) for record in records]
    return {
        "versions": [_named(*each, jobs) for each in zip(exact, records, shown, strict=True)],
        "metrics": _rows([dict(r.metrics) if r else {} for r in shown]),
        "params": _rows([plain(r.params) if r else {} for r in shown]),
        "inputs": _rows([_inputs(r) if r else {} for r in shown]),
        "made": _rows([_made(r) if r else {} for r in shown]),
        "differences": [
            _difference(store, exact[0], records[0], address, record, readable=readable)
            for address, record in zip(exact[1:], records[1:], strict=True)
        ],
    }


def _named(address: str, record: Record, shown: Record | None, jobs: Container[str]) -> dict[str, Any]:
    return {
        "address": address,
        "volume": record.volume,
        "number": record.number,
        "partition": record.partition,
        "created": record.created,
        "digest": record.digest,
        "job_id": shown.job_id if shown and shown.job_id in jobs else "",
    }


def _rows(several: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    names = dict.fromkeys(name for each in several for name in each)
    return [[name, [each.get(name) for each in several]] for name in names]


def _inputs(record: Record) -> dict[str, Any]:
    return {name: [version.address for version in given] for name, given in record.inputs.items()}


def _made(record: Record) -> dict[str, Any]:
    fields = ("entrypoint", "image", "image_digest", "code")
    return {name: getattr(record, name) for name in fields} | {"run": record.origin.run_id}


def _difference(
    store: LocalStore,
    first: str,
    before: Record,
    address: str,
    after: Record,
    *,
    readable: Callable[[str], bool],
) -> dict[str, Any]:
    dags = {before.origin.dag_id, after.origin.dag_id}
    if not all(map(readable, dags)):
        return {"address": address, "code": None, "files": None, "schemas": []}
    old, new = store.manifest(first), store.manifest(address)
    files = compare(old, new)
    changed: dict[str, list[int | None]] = {
        **{path: [None, size] for path, size in files.added.items()},
        **{path: [size, None] for path, size in files.removed.items()},
        **{path: list(sizes) for path, sizes in files.changed.items()},
    }
    tables = [path for path, sizes in sorted(files.changed.items()) if _has_schema(path, sizes)][
        :_MOST_SCHEMAS
    ]
    schemas = [
        (path, _schema(store, f"{first}/{path}"), _schema(store, f"{address}/{path}")) for path in tables
    ]
    return {
        "address": address,
        "code": snapshots.changes(store, before.code, after.code),
        "files": {
            "changed": [[path, *changed[path]] for path in sorted(changed)[:MOST_FILES]],
            "in_all": len(changed),
            "same": files.same_files,
        },
        "schemas": [{"path": p, "columns": _rows([was, now])} for p, was, now in schemas if was != now],
    }


def _has_schema(path: str, sizes: tuple[int, int]) -> bool:
    return path.endswith(".parquet") and max(sizes) <= MOST_BYTES


def _schema(store: LocalStore, address: str) -> dict[str, str]:
    try:
        return {each.name: each.type for each in read_schema(store.path(address)).columns}
    except MusterError:  # gc deleted it, or it is no table: its files' hashes differ, which is said
        return {}
