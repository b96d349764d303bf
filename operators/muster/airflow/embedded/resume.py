"""Finds results that a resumed run would keep although they are out of date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from muster.airflow.authoring.references import texts_in
from muster.airflow.embedded.load import Loaded
from muster.backends.base import Backend
from muster.core.address import shown
from muster.core.errors import NotFound
from muster.volumes.protocols import Store


@dataclass(frozen=True, kw_only=True)
class StaleResult:
    """Why a result may differ from that of a new run of the task.

    :param changed: what has changed, ``flights/etl.py changed``; "" if the result was overtaken.
    :param overtaken: what has replaced the result.
    """

    changed: str = ""
    overtaken: str = ""

    def __str__(self) -> str:
        return f"{self.changed} since it ran" if self.changed else self.overtaken


def stale(loaded: Loaded, results: Mapping[str, Sequence[Any]], backend: Backend) -> dict[str, StaleResult]:
    """Return the tasks with stale results, and why.

    :param results: the results of each task's instances.
    """
    found = {}
    for operator in loaded.operators():
        for result in results.get(operator.task_id, ()):
            if not isinstance(result, Mapping):
                continue
            if overtaken := operator.overtaken(result, backend):
                found[operator.task_id] = StaleResult(overtaken=overtaken)
            elif changed := operator.changed_since(result, loaded.folder, backend.store) or _retired(
                result, backend.store
            ):
                found[operator.task_id] = StaleResult(changed=changed)
    return found


def _retired(result: Mapping[str, Any], store: Store) -> str:
    """Say which version of a result was retired, and why; empty where none was."""
    for address in dict.fromkeys(texts_in(result.get("versions", {}))):
        with suppress(NotFound):  # the task that reads it says so
            for version in store.resolve(address):
                if version.retired is not None:
                    return f"{shown([address])} was retired ({version.retired})"
    return ""
