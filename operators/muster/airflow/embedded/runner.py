"""``muster run``: a Dag under a real Airflow in this process, from params to what it left behind."""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from muster.airflow.embedded.home import EmbeddedHome, quieten
from muster.airflow.embedded.result import Deployed, Listener, RunResult, Silent, Stage
from muster.core.errors import MusterError, SpecError
from muster.core.settings import Settings

if TYPE_CHECKING:
    from airflow.models.dagrun import DagRun
    from sqlalchemy.orm import Session

    from muster.airflow.embedded.interruption import Interruption
    from muster.airflow.embedded.load import Loaded
    from muster.airflow.embedded.loop import Loop
    from muster.backends.base import Backend

Resume = Literal["keep", "strict"]


def run_dag(
    dag_id: str,
    *,
    params: Mapping[str, Any] | None = None,
    resume: Resume | None = None,
    listener: Listener | None = None,
    settings: Settings | None = None,
    dags: Path | None = None,
) -> RunResult:
    """Run a Dag to its end and return what became of each task; a failed task does not raise.

    It makes this process an Airflow (see :class:`~muster.airflow.embedded.home.EmbeddedHome`), so
    one process runs the Dags of one home.

    :param params: values for the Dag's Params, or texts as a command line gives them.
    :param resume: go on with the last run from the first task that did not succeed. ``keep`` leaves
        the others as they are and warns where their code changed; ``strict`` runs these again.
    :param dags: the folder of Dags; ``./dags`` where it is not given.
    :raises MusterError: nothing was started: no such Dag, a wrong param, an image that cannot be built …
    """
    listener = listener or Silent()
    home = EmbeddedHome(settings=settings or Settings.load(), dags=(dags or Path("dags")).absolute())
    home.enter()
    from sqlalchemy.exc import OperationalError

    try:
        return _Runner(dag_id, home, listener).run(params or {}, resume)
    except OperationalError as error:
        raise MusterError(
            f"Airflow's database {home.database} cannot be used: {error.orig}; its disk has "
            f"{shutil.disk_usage(home.root).free >> 20} MiB free: make room there, then run again"
        ) from error


class _Runner:
    """One call of :func:`run_dag`, in an entered home."""

    def __init__(self, dag_id: str, home: EmbeddedHome, listener: Listener) -> None:
        from airflow.settings import get_session

        from muster.airflow.embedded.load import load
        from muster.airflow.embedded.runs import Runs
        from muster.airflow.site import connect

        self._home = home
        self._listener = listener
        quieten(home.log)
        self._loaded: Loaded = load(dag_id, home)
        self._session: Session = get_session()()  # type: ignore[no-untyped-call]
        self._backend: Backend = connect(home.settings)
        self._runs = Runs(self._loaded, home, self._session)
        self._warnings: list[str] = []
        self._overtaken: Collection[str] = ()

    def run(self, given: Mapping[str, Any], resume: Resume | None) -> RunResult:
        from muster.airflow.embedded.load import make_ready, read_params

        last = self._runs.last() if resume else None
        if last is not None and given:
            raise SpecError("a resumed run keeps its params: leave --param out, or start a new run")
        conf = read_params(self._loaded.dag, given)
        run_id = last.run_id if last else self._runs.new_id()
        with self._runs.own(run_id):
            make_ready(self._loaded, self._home, self._backend, self._listener)
            for lost in self._runs.give_up_lost(self._backend, but=run_id):
                self._listener.note(f"run {lost} was left by a process that died: it is marked failed")
            if last is None:
                return self._go(self._runs.begin(run_id, conf), kept=frozenset())
            kept = self._reopen(last, strict=resume == "strict")
            return self._go(last, kept=kept)

    def _reopen(self, run: DagRun, *, strict: bool) -> frozenset[str]:
        """Let the last run go on and return the tasks that it keeps."""
        from muster.airflow.embedded.resume import stale

        found = stale(self._loaded, self._runs.results(run), self._backend)
        for task_id, why in found.items():
            self._warn(
                f"{task_id} runs again: {why}"
                if strict
                else f"{task_id} is kept, although {why} (--resume=strict runs it again)"
            )
        self._overtaken = [task_id for task_id, why in found.items() if why.overtaken]
        for status in self._runs.pass_over_failures(run, self._backend):
            assert status.verdict is not None
            self._listener.note(
                f"job {status.job_id} ended while nobody watched ({status.verdict.cause.value}: "
                f"{status.verdict.message}): its task runs again"
            )
        return self._runs.reopen(run, again=found if strict else ())

    def _go(self, run: DagRun, *, kept: frozenset[str]) -> RunResult:
        from muster.airflow.embedded.api import serve_newest_only
        from muster.airflow.embedded.interruption import Interruption
        from muster.airflow.embedded.loop import Loop

        serve_newest_only()
        began = time.monotonic()
        interruption = Interruption(self._listener.note)
        loop = Loop(self._loaded, run, self._session, self._listener, interruption)
        self._listener.run_started(run.run_id, self._loaded.order)
        for task_id in self._loaded.order:
            if task_id in kept:
                self._listener.task_ended(self._stage(run, loop, task_id, kept))
        self._attend(interruption)
        with interruption.listening():
            loop.run(lambda task_id: self._listener.task_ended(self._stage(run, loop, task_id, kept)))
        if interruption:
            self._runs.fail(run)
        return self._result(run, loop, kept, "interrupted" if interruption else str(run.state), began)

    def _attend(self, interruption: Interruption) -> None:
        """Hear the lines of every job, and end a job when the run is stopped: nobody else would."""
        from muster.airflow.operators.base import MusterOperator

        MusterOperator.listener = self._listener
        MusterOperator.stopping = interruption.__bool__

    def _stage(self, run: DagRun, loop: Loop, task_id: str, kept: frozenset[str]) -> Stage:
        states = self._runs.states(run)
        results = [each for each in self._runs.results(run).get(task_id, []) if isinstance(each, Mapping)]
        seconds = loop.seconds(task_id)
        stage = Stage(
            task_id=task_id,
            state=states.get(task_id, "none"),
            seconds=seconds,
            kept=task_id in kept,
            message=loop.failure(task_id),
        )
        if not results or stage.state != "success":
            return stage
        alone = results[0] if len(results) == 1 else {}  # the jobs of a mapped task are told by muster jobs
        job_id = alone.get("job_id")
        return replace(
            stage,
            job_id=job_id,
            overhead_seconds=self._overhead(job_id, seconds),
            versions=_gathered(results),
            metrics=alone.get("metrics", {}),
        )

    def _overhead(self, job_id: str | None, seconds: float | None) -> float | None:
        if job_id is None or seconds is None:
            return None
        status = self._backend.status(job_id)
        ran = (status.ended or 0) - (status.started or status.ended or 0)
        return seconds - ran

    def _result(self, run: DagRun, loop: Loop, kept: frozenset[str], state: str, began: float) -> RunResult:
        results = self._runs.results(run)
        gone = kept.intersection(self._overtaken)
        made = (result for name in results if name not in gone for result in results[name])
        return RunResult(
            dag_id=run.dag_id,
            run_id=run.run_id,
            state=state,
            seconds=time.monotonic() - began,
            log=str(self._home.log),
            params=self._runs.params(run),
            stages=tuple(self._stage(run, loop, name, kept) for name in self._loaded.order),
            deployments=tuple(_deployed(made)),
            warnings=tuple(self._warnings),
        )

    def _warn(self, text: str) -> None:
        self._warnings.append(text)
        self._listener.warning(text)


def _gathered(results: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """The versions by output that all instances of a task left, in the order of the map."""
    found: dict[str, tuple[str, ...]] = {}
    for result in results:
        for name, value in result.get("versions", {}).items():
            found[name] = found.get(name, ()) + _addresses(value)
    return found


def _addresses(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _deployed(results: Iterable[Any]) -> Iterator[Deployed]:
    fields = ("name", "url", "version", "curl")
    for result in results:
        if isinstance(result, Mapping) and all(field in result for field in fields):
            yield Deployed(**{field: result[field] for field in fields})
