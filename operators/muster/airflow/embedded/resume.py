"""What changed since the tasks that a resumed run keeps: their own imported files, told by their versions' records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from muster.airflow.embedded.load import Loaded
from muster.core.errors import NotFound
from muster.volumes.base import Record, Store


def changed(loaded: Loaded, results: Mapping[str, Any], store: Store) -> dict[str, str]:
    """Return what is different now, in a few words, by task; only tasks of which something is.

    :param results: what the tasks of the run returned.
    """
    found = {}
    for operator in loaded.operators():
        for record in _records(results.get(operator.task_id), store):
            what = operator.changed_since(record, loaded.folder, store)
            if what:
                found[operator.task_id] = what
                break
    return found


def _records(result: Any, store: Store) -> Iterator[Record]:
    """The record of each commit that a task made."""
    versions = result.get("versions", {}) if isinstance(result, Mapping) else {}
    for addresses in versions.values():
        for address in [addresses] if isinstance(addresses, str) else addresses[:1]:
            try:
                yield store.record(address)
            except NotFound:
                continue
