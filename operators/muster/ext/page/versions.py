"""The page's volumes and versions; only what is on the screen is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from muster.airflow.page.route import task
from muster.core.address import pinned
from muster.core.errors import MusterError, NotFound, SpecError
from muster.core.wire import plain
from muster.ext.page import snapshots
from muster.ext.page.graph import Permitted, draw, draw_forward
from muster.ext.page.uses import Descendant, Uses
from muster.volumes.base import Record, Version
from muster.volumes.lineage import Ancestor, ancestors, compare
from muster.volumes.listing import Listing
from muster.volumes.parquet import read_schema
from muster.volumes.protocols import LocalStore, Store

_MOST_ANCESTORS = 400
_MOST_DESCENDANTS = 100
MOST_FILES = 500
_MOST_LOOKED_AT = 300
MOST_COLUMNS = 6
MOST_CHOSEN = 30
BASELINE = "_baseline"
"""What ends the name of the metric that another is compared with."""


def volumes(store: Store, names: Iterable[str]) -> list[dict[str, Any]]:
    """Return these volumes, each with its newest version."""
    return [_volume(store, name) for name in names]


def _volume(store: Store, name: str) -> dict[str, Any]:
    try:
        newest = store.newest(name, limit=1)
        return {
            "volume": name,
            "versions": store.count(name),
            "newest": _facts(newest[0]) if newest else None,
        }
    except MusterError as error:
        return {"volume": name, "versions": None, "newest": None, "error": str(error)}


@dataclass(frozen=True, kw_only=True)
class VersionsQuery:
    """Which versions of a volume are asked for, and what of each.

    :param before: only those below this number.
    :param by_partition: the newest version of each partition, the last partition first, of the newest
        :data:`_MOST_LOOKED_AT` versions; else every version, the newest first.
    :param columns: names of metrics and params; a few of the newest version's metrics where none are given.
    """

    before: int | None = None
    limit: int = 50
    by_partition: bool = False
    columns: Sequence[str] = ()


def versions(store: Store, volume: str, look: VersionsQuery, *, permitted: Permitted) -> dict[str, Any]:
    """Return some versions of a volume, with the values of the chosen columns if the user may see them.

    :raises NotFound: there is no such volume; the message lists the volumes.
    """
    most = _MOST_LOOKED_AT if look.by_partition else look.limit
    found = store.newest(volume, limit=most, before=look.before)
    if not found and look.before is None:
        store.resolve(volume)  # raises the error that lists the volumes
    looked_at = len(found)
    if look.by_partition:
        found = newest_of_each(found)[: look.limit]
    read = store.records([version.address for version in found])
    records = [record if permitted(record.origin.dag_id) else None for record in read]
    known, searches = {*store.ledger.jobs()}, {*store.logs("searches")}
    names = {"metrics": _names(records, "metrics"), "params": _names(records, "params")}
    chosen = [*look.columns] or columns(names["metrics"])
    return {
        "volume": volume,
        "total": store.count(volume),
        "looked_at": looked_at,
        "names": names,
        "columns": chosen,
        "versions": [_row(*each, chosen, known, searches) for each in zip(found, records, strict=True)],
    }


def newest_of_each(found: Sequence[Version]) -> list[Version]:
    """Return the newest version of each partition that is not retired, the last partition first.

    Versions without a partition are left out, where there are others.

    :param found: newest first.
    """
    newest: dict[str, Version] = {}
    for version in found:
        if version.partition is not None and version.retired is None:
            newest.setdefault(version.partition, version)
    return [newest[partition] for partition in sorted(newest, reverse=True)] or list(found)


def columns(metrics: Sequence[str]) -> list[str]:
    """Choose the metrics that are shown first: a few in the author's order, each beside its baseline."""
    known, chosen = set(metrics), list[str]()
    for name in metrics:
        pair = [each for each in (name, name + BASELINE) if each in known and each not in chosen]
        if len(chosen) + len(pair) <= MOST_COLUMNS:
            chosen += pair
    return chosen


def _names(records: Iterable[Record | None], field: str) -> list[str]:
    """Return every name that any of the records has there, in the order of the newest."""
    return list(dict.fromkeys(name for record in records if record for name in getattr(record, field)))


def _row(
    version: Version,
    record: Record | None,
    chosen: Iterable[str],
    jobs: Container[str],
    searches: Container[str],
) -> dict[str, Any]:
    known = {**plain(record.params), **record.metrics} if record else {}
    return {
        **_facts(version),
        "job_id": record.job_id if record and record.job_id in jobs else "",
        "search": _search_of(record, searches) if record else None,
        "note": (record.note or (f"{record.job_id}, deleted by gc" if record.output else ""))
        if record
        else "",
        "run": {"dag_id": record.origin.dag_id, "run_id": record.origin.run_id} if record else None,
        "values": {name: known[name] for name in chosen if name in known},
    }


_OF_SEARCH = re.compile(r"(?:the best trial of )?search ([^\s:]+)(?:: (volume://\S+))?")


def _search_of(record: Record, searches: Container[str]) -> dict[str, Any] | None:
    """Return the search that made a version, and which trial: a search names both in the note of the version that it commits.

    :param searches: the ids of the searches in the store; a note that names another was written by a person.
    """
    told = _OF_SEARCH.fullmatch(record.note)
    if told is None or told[1] not in searches:
        return None
    return {"search_id": told[1], "trial": max(record.origin.trial, -1), "copy_of": told[2] or ""}


def _facts(version: Version) -> dict[str, Any]:
    return {**plain(version), "address": version.address}


def version(store: Store, address: str, *, permitted: Permitted, readable: Permitted) -> dict[str, Any]:
    """Return one version: its facts, its record, its inputs, and its first files.

    A version whose data gc deleted is shown too: its record and the list of its files are kept.

    :param readable: whether the user may read the results of a Dag's tasks, by its id; `files` is
        None if not.
    :raises SpecError: not an address of one version. :raises NotFound: there is none.
    """
    record = store.record(address)
    exact = pinned(record.volume, record.number)
    files = store.manifest(exact)
    shown = permitted(record.origin.dag_id)
    try:
        there: Version | None = store.resolve(exact)[0]
    except NotFound:
        there = None
    return {
        "address": exact,
        "volume": record.volume,
        "number": record.number,
        "digest": record.digest,
        "partition": record.partition,
        "created": record.created,
        "deleted": there is None,
        "size_bytes": there.size_bytes if there else files.size_bytes,
        "retired": there.retired if there else None,
        "pins": list(there.pins) if there else [],
        "record": _made(store, record) if shown else None,
        "files": _listed(files) if readable(record.origin.dag_id) else None,
        "total_files": len(files),
    }


def files(store: Store, address: str, *, under: str = "", text: str = "", offset: int = 0) -> dict[str, Any]:
    """Return one page of a version's files: those of a folder, with its folders, or all whose path holds a text.

    :return: ``folders`` as [name, files, bytes], all of them; ``files`` as [path, bytes]; ``total``, of files.
    """
    prefix = f"{under.rstrip('/')}/" if under else ""
    folders: dict[str, list[int]] = {}
    total, shown = 0, list[list[Any]]()
    for entry in store.manifest(address).values():
        if not entry.path.startswith(prefix):
            continue
        name, slash, _ = entry.path[len(prefix) :].partition("/")
        if slash and not text:
            known = folders.setdefault(name, [0, 0])
            known[0], known[1] = known[0] + 1, known[1] + entry.size_bytes
        elif text.lower() in entry.path[len(prefix) :].lower():
            total += 1
            if offset < total <= offset + MOST_FILES:
                shown.append([entry.path, entry.size_bytes])
    return {
        "total": total,
        "folders": [[name, *known] for name, known in sorted(folders.items())],
        "files": shown,
    }


def _listed(files: Listing) -> list[dict[str, Any]]:
    return [
        {"path": entry.path, "size_bytes": entry.size_bytes} for entry in islice(files.values(), MOST_FILES)
    ]


def _made(store: Store, record: Record) -> dict[str, Any]:
    search = _search_of(record, store.logs("searches"))
    trained = _record(store, search["copy_of"]) if search and search["copy_of"] else None
    job_id = trained.job_id if trained else record.job_id if record.output and not search else ""
    return {
        "job_id": job_id,
        "job_known": job_id in store.ledger.jobs(),
        "search": search,
        "job_name": record.job_name,
        "output": record.output,
        "origin": plain(record.origin),
        **task(record.origin),
        "inputs": {name: [v.address for v in given] for name, given in record.inputs.items()},
        "params": plain(record.params),
        "metrics": dict(record.metrics),
        "image": record.image,
        "image_digest": record.image_digest,
        "entrypoint": record.entrypoint,
        "code": record.code,
        "siblings": list(record.siblings),
        "note": record.note,
    }


def lineage(store: Store, address: str, uses: Uses, *, permitted: Permitted) -> dict[str, Any]:
    """Return a version's lineage in both directions, as far as the user may see it: a picture's nodes and edges.

    :param uses: by the jobs that the user may see.
    :raises NotFound: there is no such version.
    """
    walk = ancestors(store, address, through=lambda record: permitted(record.origin.dag_id))
    found = list(islice(walk, _MOST_ANCESTORS + 1))
    back = draw(found[:_MOST_ANCESTORS], permitted=permitted)
    made = list(islice(uses.descendants(found[0].address), _MOST_DESCENDANTS + 1))
    forward = draw_forward(
        [found[0], *_known(store, made[:_MOST_DESCENDANTS])], _arrows(made), permitted=permitted
    )
    return {
        "nodes": back["nodes"] + forward["nodes"][1:],
        "edges": back["edges"] + forward["edges"],
        "rows": max(back["rows"], forward["rows"]),
        "complete": len(found) <= _MOST_ANCESTORS and len(made) <= _MOST_DESCENDANTS,
    }


def _known(store: Store, made: Iterable[Descendant]) -> list[Ancestor]:
    """Return each version of a walk forward once, as the drawing takes it."""
    once = {each.address: each for each in made}
    return [
        Ancestor(address=each.address, digest="", depth=each.depth, record=_record(store, each.address))
        for each in once.values()
    ]


def _record(store: Store, address: str) -> Record | None:
    try:
        return store.record(address)
    except MusterError:  # it is damaged, which its own page says
        return None


def _arrows(made: Sequence[Descendant]) -> dict[tuple[str, str], set[str]]:
    arrows: dict[tuple[str, str], set[str]] = {}
    for each in made[:_MOST_DESCENDANTS]:
        arrows.setdefault((each.parent, each.address), set()).add(each.name)
    return arrows


MOST = 6
_MOST_COMPARED = 200
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
    # before and after, however named
    records = sorted(store.records(list(addresses)), key=lambda record: record.created)
    jobs = {*store.ledger.jobs()}
    shown = [record if permitted(record.origin.dag_id) else None for record in records]
    exact = [pinned(record.volume, record.number) for record in records]
    return {
        "versions": [_named(*each, jobs) for each in zip(exact, records, shown, strict=True)],
        "metrics": _rows([dict(r.metrics) if r else {} for r in shown]),
        "params": _rows([plain(r.params) if r else {} for r in shown]),
        "inputs": _rows([_inputs(r) if r else {} for r in shown]),
        "made": _rows([_maker(r) if r else {} for r in shown]),
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


def _maker(record: Record) -> dict[str, Any]:
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
            "changed": [[path, *changed[path]] for path in sorted(changed)[:_MOST_COMPARED]],
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
