"""Why a task that a resumed run would keep might be run again, told by what it returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.airflow.embedded.load import Loaded
from muster.backends.base import Backend


@dataclass(frozen=True, kw_only=True)
class Stale:
    """Why a result may not be what a run of the task would give now.

    :param changed: what it was made from and reads differently now; "" where it has been overtaken.
    :param overtaken: what has taken the place of what it stands for.
    """

    changed: str = ""
    overtaken: str = ""

    def __str__(self) -> str:
        return f"{self.changed} changed since it ran" if self.changed else self.overtaken


def stale(loaded: Loaded, results: Mapping[str, Sequence[Any]], backend: Backend) -> dict[str, Stale]:
    """Return the tasks whose results are, by task.

    :param results: what the instances of each task of the run returned.
    """
    found = {}
    for operator in loaded.operators():
        for result in results.get(operator.task_id, ()):
            if not isinstance(result, Mapping):
                continue
            if overtaken := operator.overtaken(result, backend):
                found[operator.task_id] = Stale(overtaken=overtaken)
            elif changed := operator.changed_since(result, loaded.folder, backend.store):
                found[operator.task_id] = Stale(changed=changed)
    return found
