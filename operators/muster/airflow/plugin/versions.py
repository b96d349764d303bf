"""The page's volumes and versions; only what is on the screen is read."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from muster.airflow.plugin.graph import Permitted, draw
from muster.airflow.plugin.task import task
from muster.core.address import pinned
from muster.core.errors import MusterError, NotFound
from muster.core.wire import plain
from muster.volumes.base import Record, Version
from muster.volumes.lineage import ancestors
from muster.volumes.manifest import Entry
from muster.volumes.protocols import Store

MOST_ANCESTORS = 400
MOST_FILES = 500


def volumes(store: Store) -> list[dict[str, Any]]:
    """Return every volume with its newest version."""
    return [_volume(store, name) for name in store.volumes()]


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


def versions(
    store: Store, volume: str, *, permitted: Permitted, before: int | None, limit: int
) -> dict[str, Any]:
    """Return the newest versions below number `before`, with metrics if the user may see them.

    :raises NotFound: there is no such volume; the message lists the volumes.
    """
    found = store.newest(volume, limit=limit, before=before)
    if not found and before is None:
        store.resolve(volume)  # raises the error that lists the volumes
    return {
        "volume": volume,
        "total": store.count(volume),
        "versions": [_row(store, version, permitted) for version in found],
    }


def _row(store: Store, version: Version, permitted: Permitted) -> dict[str, Any]:
    record = store.record(version.address)
    shown = permitted(record.origin.dag_id)
    return {
        **_facts(version),
        "job_id": record.job_id if shown and record.output else "",
        "note": record.note,
        "metrics": dict(record.metrics) if shown else {},
    }


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
        "size_bytes": sum(entry.size_bytes for entry in files.values()),
        "retired": there.retired if there else None,
        "pins": list(there.pins) if there else [],
        "record": _made(record) if shown else None,
        "files": _listed(files) if readable(record.origin.dag_id) else None,
        "total_files": len(files),
        "lineage": lineage(store, exact, permitted=permitted),
    }


def _listed(files: Mapping[str, Entry]) -> list[dict[str, Any]]:
    return [
        {"path": path, "size_bytes": files[path].size_bytes} for path in islice(sorted(files), MOST_FILES)
    ]


def _made(record: Record) -> dict[str, Any]:
    return {
        "job_id": record.job_id if record.output else "",
        "job_name": record.job_name,
        "output": record.output,
        "origin": plain(record.origin),
        **task(record.origin),
        "inputs": {name: [v.address for v in given] for name, given in record.inputs.items()},
        "params": plain(record.params),
        "metrics": dict(record.metrics),
        "image": record.image,
        "entrypoint": record.entrypoint,
        "code": record.code,
        "siblings": list(record.siblings),
        "note": record.note,
    }


def lineage(store: Store, address: str, *, permitted: Permitted) -> dict[str, Any]:
    """Return a version's lineage as far as the user may see it, as a picture's nodes and edges.

    :raises NotFound: there is no such version.
    """
    walk = ancestors(store, address, through=lambda record: permitted(record.origin.dag_id))
    found = list(islice(walk, MOST_ANCESTORS + 1))
    picture = draw(found[:MOST_ANCESTORS], permitted=permitted)
    return {**picture, "complete": len(found) <= MOST_ANCESTORS}
