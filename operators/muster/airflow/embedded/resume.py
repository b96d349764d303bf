"""What changed since the tasks that a resumed run keeps, told by what each of them returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from muster.airflow.embedded.load import Loaded
from muster.volumes.base import Store


def changed(loaded: Loaded, results: Mapping[str, Sequence[Any]], store: Store) -> dict[str, str]:
    """Return what is different now, in a few words, by task; only tasks of which something is.

    :param results: what the instances of each task of the run returned.
    """
    operators = {operator.task_id: operator for operator in loaded.operators()}
    found = {}
    for task_id, operator in operators.items():
        kept = (result for result in results.get(task_id, ()) if isinstance(result, Mapping))
        told = (operator.changed_since(result, loaded.folder, store) for result in kept)
        what = next(filter(None, told), "")
        if what:
            found[task_id] = what
    return found
