"""What changed since the tasks that a resumed run keeps: their own imported files, told by their versions' records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from muster.airflow.embedded.load import Loaded
from muster.core.errors import NotFound
from muster.volumes.base import Record, Store


def changed(loaded: Loaded, results: Mapping[str, Sequence[Any]], store: Store) -> dict[str, str]:
    """Return what is different now, in a few words, by task; only tasks of which something is.

    :param results: what the instances of each task of the run returned.
    """
    operators = {operator.task_id: operator for operator in loaded.operators()}
    found = {}
    for task_id, operator in operators.items():
        for record in _records(results.get(task_id, ()), store):
            what = operator.changed_since(record, loaded.folder, store)
            if what:
                found[task_id] = what
                break
    return found


def _records(results: Sequence[Any], store: Store) -> Iterator[Record]:
    """The record of each commit that a task's instances made."""
    made = [result.get("versions", {}) for result in results if isinstance(result, Mapping)]
    for addresses in (each for versions in made for each in versions.values()):
        for address in [addresses] if isinstance(addresses, str) else addresses[:1]:
            try:
                yield store.record(address)
            except NotFound:
                continue
