"""The stages of a run for people and JSON: each is made when its task ends, of what its own rows hold."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from muster.airflow.attempts.watcher import called
from muster.airflow.embedded.load import Loaded, plain
from muster.airflow.embedded.result import Instance, Stage

if TYPE_CHECKING:
    from muster.airflow.embedded.loop import Loop, Ran
    from muster.airflow.embedded.runs import Runs
    from muster.airflow.upstream.internals import DagRun
    from muster.backends.base import Backend


class Stages:
    """The stages of one run.

    :param kept: the tasks that a resume keeps.
    """

    def __init__(
        self, loaded: Loaded, runs: Runs, run: DagRun, loop: Loop, backend: Backend, kept: Collection[str]
    ) -> None:
        self._loaded = loaded
        self._runs = runs
        self._run = run
        self._loop = loop
        self._backend = backend
        self._kept = kept
        self._results: dict[str, dict[int, Any]] = {}
        self._taken: dict[str, set[int]] = {}
        self._instances: dict[tuple[str, int], Instance] = {}
        self._stages: dict[str, Stage] = {}

    def kept(self) -> Iterable[Stage]:
        """Yield the stages that a resume keeps, in order."""
        names = [name for name in self._loaded.order if name in self._kept]
        self._read(names)
        return map(self._stage, names)

    def instance(self, task_id: str, map_index: int) -> Instance:
        """Return one instance of a mapped task, which has ended."""
        self._read([task_id], map_index)
        return self._instance(task_id, map_index)

    def stage(self, task_id: str) -> Stage:
        """Return a task that has ended."""
        if not self._loop.states.instances(task_id):
            self._read([task_id])  # of a mapped one, each instance was read when it ended
        return self._stage(task_id)

    def all(self) -> tuple[Stage, ...]:
        """Return the stages of the Dag, in order, as they stand now."""
        states = self._loop.states
        states.read()
        changed = [
            name
            for name in self._loaded.order
            if name not in self._stages or self._stages[name].state != states.of(name)
        ]
        self._read([name for name in changed if states.of(name) == "success"])
        for name in changed:
            self._stage(name)
        return tuple(self._stages[name] for name in self._loaded.order)

    def results(self) -> Mapping[str, Iterable[Any]]:
        """Return the results of the tasks of :meth:`all`, in the order of their maps."""
        return {name: self._results_of(name) for name in self._loaded.order}

    def _read(self, names: Collection[str], map_index: int | None = None) -> None:
        ours = [name for name in names if self._loaded.is_musters(name)]
        if not ours:
            return
        for name, index, result in self._runs.results(self._run, ours, map_index):
            self._results.setdefault(name, {})[index] = result
        for name, index in self._runs.taken(self._run, ours, map_index):
            self._taken.setdefault(name, set()).add(index)

    def _results_of(self, task_id: str) -> list[Any]:
        return [result for _, result in sorted(self._results.get(task_id, {}).items())]

    def _instance(self, task_id: str, map_index: int) -> Instance:
        state = self._loop.state(task_id, map_index)
        ran = self._loop.ran(task_id, map_index)
        result = self._results.get(task_id, {}).get(map_index) if state == "success" else None
        made: Mapping[str, Any] = result if isinstance(result, Mapping) else {}
        job_id, kept = made.get("job_id"), map_index in self._taken.get(task_id, ())
        found = Instance(
            map_index=map_index,
            label=called(task_id, map_index, ran.arguments),
            state=state,
            arguments={name: plain(value) for name, value in ran.arguments.items()},
            seconds=ran.seconds,
            overhead_seconds=None if kept else self._overhead(job_id, ran),
            job_id=job_id,
            versions=_gathered([made]),
            metrics=made.get("metrics", {}),
            message=ran.message,
            kept=kept,
        )
        self._instances[task_id, map_index] = found
        return found

    def _stage(self, task_id: str) -> Stage:
        state, seconds = self._loop.states.of(task_id), self._loop.seconds(task_id)
        states = {index: self._loop.state(task_id, index) for index in self._loop.states.instances(task_id)}
        if state == "failed" and "failed" not in (states.values() or (self._loop.state(task_id, -1),)):
            state = "cancelled"
        known = {index: self._instances.get((task_id, index)) for index in states}
        if any(each is None for each in known.values()):
            self._read([task_id])  # an earlier process of the run made them
        instances = tuple(
            each if each is not None and each.state == states[index] else self._instance(task_id, index)
            for index, each in known.items()
        )
        told = [each.message for each in instances if each.state == state]
        taken = self._taken.get(task_id, set())
        stage = Stage(
            task_id=task_id,
            state=state,
            seconds=seconds,
            kept=task_id in self._kept or (len(taken) == max(len(states), 1) and state == "success"),
            message=next(filter(None, told), self._loop.ran(task_id, -1).message),
            instances=instances,
        )
        results = [each for each in self._results_of(task_id) if isinstance(each, Mapping)]
        if results and state == "success":
            alone = results[0] if len(results) == 1 else {}  # muster jobs shows the jobs of a mapped task
            job_id, overheads = alone.get("job_id"), [each.overhead_seconds for each in instances]
            spent = [each for each in overheads if each is not None]
            stage = replace(
                stage,
                job_id=job_id,
                overhead_seconds=sum(spent)
                if spent
                else None
                if taken
                else self._overhead(job_id, self._loop.ran(task_id, -1)),
                versions=_gathered(results),
                metrics=alone.get("metrics", {}),
            )
        self._stages[task_id] = stage
        return stage

    def _overhead(self, job_id: str | None, ran: Ran) -> float | None:
        """Return the seconds of an instance outside its job, which may have begun before it: under a run that was killed."""
        if job_id is None or ran.seconds is None or ran.began is None:
            return None
        if self._backend.store.ledger.spec(job_id).origin.trial >= 0:
            return None  # a search's: it ran many jobs, some of them at once
        status = self._backend.status(job_id)
        ended = status.ended or 0
        return ran.seconds - max(0.0, ended - max(status.started or ended, ran.began))


def _gathered(results: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return the versions by output of all instances of a task, in the order of the map."""
    found: dict[str, tuple[str, ...]] = {}
    for result in results:
        for name, value in result.get("versions", {}).items():
            found[name] = found.get(name, ()) + ((value,) if isinstance(value, str) else tuple(value))
    return found
