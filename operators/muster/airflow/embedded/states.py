"""The states of a run's task instances, as they were when they were last read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from muster.airflow.upstream.internals import DagRun

NONE = "none"
FINISHED = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})


class States:
    """The states of one run's instances; reading some tasks costs one query, however many tasks the Dag has."""

    def __init__(self, run: DagRun, session: Session) -> None:
        self._of_run = (run.dag_id, run.run_id)
        self._session = session
        self._found: dict[str, dict[int, str]] = {}

    def read(self, names: Collection[str] | None = None) -> set[str]:
        """Read the instances of some tasks, or of all, and return the tasks of which one has ended since."""
        from sqlalchemy import select

        from muster.airflow.upstream.internals import TaskInstance as Task

        dag_id, run_id = self._of_run
        query = select(Task.task_id, Task.map_index.label("map_index"), Task.state).where(
            Task.dag_id == dag_id, Task.run_id == run_id
        )
        if names is not None:
            query = query.where(Task.task_id.in_(names))
        found: dict[str, dict[int, str]] = {}
        for name, index, state in self._session.execute(query.order_by(Task.task_id, Task.map_index)):
            found.setdefault(name, {})[index] = str(state or NONE)
        before, self._found = self._found, {**self._found, **found}
        return {
            name
            for name, states in found.items()
            for index, state in states.items()
            if state in FINISHED and before.get(name, {}).get(index) not in FINISHED
        }

    def of(self, name: str) -> str:
        """Return the state of a task; of a mapped one, failed if an instance has, else that of its first without success."""
        states = self.each(name)
        if "failed" in states:
            return "failed"
        return next((state for state in states if state != "success"), "success" if states else NONE)

    def one(self, name: str, map_index: int) -> str:
        """Return the state of an instance; -1 is a task that is not mapped."""
        return self._found.get(name, {}).get(map_index, NONE)

    def each(self, name: str) -> Collection[str]:
        """Return the states of a task's instances."""
        return self._found.get(name, {}).values()

    def instances(self, name: str) -> Mapping[int, str]:
        """Return the state of each instance of a mapped task by index, once Airflow has expanded it."""
        return {index: state for index, state in self._found.get(name, {}).items() if index >= 0}

    def ended(self, names: Collection[str] | None = None) -> bool:
        """Whether all instances of some tasks, or of all, have ended."""
        return all(
            state in FINISHED
            for name in (self._found if names is None else names)
            for state in self.each(name)
        )
