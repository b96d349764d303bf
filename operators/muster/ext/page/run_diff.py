"""Two runs of Dags side by side: what differs between their stages, as ``muster runs diff`` says it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster.core.origin import stage_title
from muster.core.wire import plain
from muster.ext.page import snapshots
from muster.ext.page.runs import brief
from muster.volumes import runs
from muster.volumes.differences import StageDifference, stages
from muster.volumes.protocols import LocalStore

RunName = tuple[str, str]
"""A Dag's id and a run's."""


def differences(
    store: LocalStore, old: RunName, new: RunName, *, readable: Callable[[str], bool]
) -> dict[str, Any]:
    """Return what differs between two runs, stage by stage; of the code by file and line.

    :param readable: whether the user may read the code of a Dag, by its id.
    :raises NotFound: the store knows no such run.
    """
    before, after = runs.run(store, *old), runs.run(store, *new)
    with_code = all(readable(dag_id) for dag_id, _ in (old, new))
    return {
        "old": brief(before),
        "new": brief(after),
        "stages": [_stage(store, each, with_code=with_code) for each in stages(before, after)],
    }


def _stage(store: LocalStore, each: StageDifference, *, with_code: bool) -> dict[str, Any]:
    code = next(((fact.old, fact.new) for fact in each.facts if fact.name == "code"), (None, None))
    return {
        "stage": stage_title(each.task_id, each.map_index),
        "only": each.only,
        "facts": plain(each.facts),
        "seconds": list(each.seconds),
        "code": snapshots.changes(store, *code) if with_code else None,
    }
