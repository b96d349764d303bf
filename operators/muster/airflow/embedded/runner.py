"""``muster run``: a Dag under a real Airflow in this process, from params to results."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from muster.airflow.embedded.home import EmbeddedHome, quieten
from muster.airflow.embedded.preload import no_collections
from muster.airflow.embedded.questions import check
from muster.airflow.embedded.result import Deployed, Listener, RunResult, Silent
from muster.airflow.embedded.stages import Stages
from muster.airflow.upstream import internals
from muster.core.address import shown
from muster.core.errors import MusterError, NotFound, SpecError
from muster.core.names import nearest
from muster.core.origin import Origin
from muster.core.settings import Settings
from muster.volumes.task_notes import EVERY_SECONDS

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from muster.airflow.embedded.load import Loaded
    from muster.airflow.upstream.internals import DagRun
    from muster.backends.base import Backend
    from muster.volumes.protocols import Ledger, Store

Resume = Literal["keep", "strict"]
# After a note that failed: the run does nothing else while it waits for the store.
_AGAIN_SECONDS = 5 * EVERY_SECONDS


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The requested run: a new one, or the last one, continued from its present state or from a task.

    :param params: values for the Dag's Params, or texts from a command line.
    :param resume: continue the last run from the first task that did not succeed. ``keep`` leaves
        the others unchanged and warns where their code changed; ``strict`` runs these again.
    :param start: a task of the last run to run again, with all that follows it; earlier tasks are kept.
    :param only: a task to run again alone; tasks after it wait for the next resume.
    :param no_cache: make every stage anew, also those that earlier runs made of the same.
    :param serial: run one task after the other, each with this process's stdout and stderr; otherwise those that
        Airflow would run side by side do, and what they print is told to the listener.
    :param answers: options by the stage that asks a person for one; the listener is asked for others.
    :param run_id: id of a new run, which this process holds.
    """

    params: Mapping[str, Any] = field(default_factory=dict)
    resume: Resume | None = None
    start: str | None = None
    only: str | None = None
    no_cache: bool = False
    serial: bool = False
    answers: Mapping[str, str] = field(default_factory=dict)
    run_id: str = ""

    def __post_init__(self) -> None:
        if self.start is not None and self.only is not None:
            raise SpecError("--from and --only name where one run begins: give one of the two")
        if self.goes_on and self.no_cache:
            raise SpecError(
                "a resumed run keeps what it made: leave --no-cache out, or start a new run, or name a stage with --from"
            )
        if self.goes_on and self.params:
            raise SpecError("a resumed run keeps its params: leave --param out, or start a new run")

    @property
    def goes_on(self) -> bool:
        """Whether the last run is continued."""
        return self.resume is not None or self.again is not None

    @property
    def again(self) -> str | None:
        """The task that runs again in any case."""
        return self.start if self.only is None else self.only


def run_dag(
    dag_id: str,
    wanted: Wanted | None = None,
    *,
    listener: Listener | None = None,
    settings: Settings | None = None,
    dags: Path | None = None,
) -> RunResult:
    """Run a Dag to its end and return the result of each task; a failed task does not raise.

    It makes this process an Airflow (see :class:`~muster.airflow.embedded.home.EmbeddedHome`), so
    one process runs the Dags of one home.

    :param dags: the folder of Dags; ``./dags`` by default.
    :raises MusterError: nothing was started: no such Dag, a wrong param, an image that cannot be built …
    """
    listener, wanted = listener or Silent(), wanted or Wanted()
    home = EmbeddedHome(settings=settings or Settings.load(), dags=(dags or Path("dags")).absolute())
    home.check()
    kept = _all_kept(dag_id, home, wanted)
    if kept is not None:
        return _show_kept(kept, listener)
    with suppress(OSError):  # the error is reported where the run is noted
        home.settings.make_home()
    begun = home.kept(dag_id).begin()
    if wanted.goes_on:
        result = _run(dag_id, home, listener, wanted)
    else:
        with home.notes.asking(dag_id, wanted.params) as run_id:
            result = _run(dag_id, home, listener, replace(wanted, run_id=run_id))
    home.kept(dag_id).end(result, begun)
    return result


def needs_airflow(dag_id: str, home: EmbeddedHome, wanted: Wanted) -> bool:
    """Whether a run has to start Airflow: all but a resume that keeps everything."""
    return _all_kept(dag_id, home, wanted) is None


def _all_kept(dag_id: str, home: EmbeddedHome, wanted: Wanted) -> RunResult | None:
    """Return the last run if a resume would keep all of it, without Airflow; None if Airflow must be asked."""
    if not wanted.goes_on or wanted.again is not None:
        return None
    result = home.kept(dag_id).recall()
    if (
        result is None
        or not home.database.exists()
        or home.notes.left(dag_id)
        or home.notes.held(result.run_id)
    ):
        return None
    return result


def _show_kept(result: RunResult, listener: Listener) -> RunResult:
    listener.run_started(result.run_id, [stage.task_id for stage in result.stages])
    for stage in result.stages:
        listener.task_ended(stage)
    return replace(result, resumed=True)


def _run(dag_id: str, home: EmbeddedHome, listener: Listener, wanted: Wanted) -> RunResult:
    with no_collections():
        home.enter()
        from sqlalchemy.exc import OperationalError
    try:
        with no_collections():
            runner = _Runner(dag_id, home, listener, wanted)
        return runner.run()
    except OperationalError as error:
        raise MusterError(
            f"Airflow's database {home.database} cannot be used: {error.orig}; its disk has "
            f"{shutil.disk_usage(home.root).free >> 20} MiB free: make room there, then run again"
        ) from error


class _Runner:
    """One call of :func:`run_dag`, in an entered home."""

    def __init__(self, dag_id: str, home: EmbeddedHome, listener: Listener, wanted: Wanted) -> None:
        from muster.airflow.embedded.load import load
        from muster.airflow.embedded.runs import Runs
        from muster.airflow.site import connect

        self._home = home
        self._listener = listener
        self._wanted = wanted
        quieten(home.log)
        self._loaded: Loaded = load(dag_id, home)
        self._session: Session = internals.settings.get_session()()  # type: ignore[no-untyped-call]
        self._backend: Backend = connect(home.settings)
        self._runs = Runs(self._loaded, home, self._session)
        self._warnings: list[str] = []
        self._overtaken: Collection[str] = ()

    def run(self) -> RunResult:
        wanted = self._wanted
        if not wanted.goes_on:
            return self._begin(wanted.run_id, wanted.params)
        unbegun = self._runs.unbegun()
        if unbegun is None:
            return self._resume(self._runs.last())
        dag_id = self._loaded.dag.dag_id
        if wanted.again is not None:
            raise SpecError(
                f"the last run of Dag {dag_id} was ended before its first stage: `muster run {dag_id} --resume` begins it"
            )
        with self._home.notes.own(unbegun.run_id):
            params = ", ".join(f"{name}={value}" for name, value in unbegun.params.items())
            self._listener.note(
                f"run {unbegun.run_id} was ended before its first stage: it begins now"
                + (f", with {params}" if params else "")
            )
            return self._begin(unbegun.run_id, unbegun.params)

    def _begin(self, run_id: str, params: Mapping[str, Any]) -> RunResult:
        """Run a new run, which this process holds."""
        from muster.airflow.attempts.task_state import NO_CACHE
        from muster.airflow.embedded.load import read_params

        conf = read_params(self._loaded.dag, params)
        conf = {**conf, NO_CACHE: True} if self._wanted.no_cache else conf
        check(self._loaded, self._loaded.order, self._wanted.answers, self._listener)
        with self._backend.place.expecting_jobs():
            self._make_ready(run_id)
            return self._noted(self._runs.begin(run_id, conf))

    def _resume(self, last: DagRun) -> RunResult:
        only = self._wanted.only
        self._check_stage(self._wanted.again)
        names = self._loaded.order if only is None else [only]
        check(self._loaded, names, self._wanted.answers, self._listener)
        with self._home.notes.own(last.run_id), self._backend.place.expecting_jobs():
            self._make_ready(last.run_id)
            return replace(self._noted(last, self._reopen(last)), resumed=True)

    def _check_stage(self, name: str | None) -> None:
        names = self._loaded.order
        if name is not None and name not in names:
            near = nearest(name, names)
            hint = f"; did you mean {near}?" if near else f"; its stages are {', '.join(names)}"
            raise SpecError(f"Dag {self._loaded.dag.dag_id} has no stage {name!r:.80}{hint}")

    def _make_ready(self, run_id: str) -> None:
        from muster.airflow.embedded.load import make_ready

        make_ready(self._loaded, self._home, self._backend, self._listener)
        for lost in self._runs.give_up_lost(self._backend, but=run_id):
            self._listener.note(f"run {lost} was left by a process that died: it is marked failed")

    def _reopen(self, run: DagRun) -> frozenset[str]:
        """Reopen the last run and return the tasks that it keeps."""
        ours, strict = filter(self._loaded.is_musters, self._loaded.order), self._wanted.resume == "strict"
        results: dict[str, list[Any]] = {}
        for name, _, result in self._runs.results(run, list(ours)):
            results.setdefault(name, []).append(result)
        found, overtaken = stale(self._loaded, results, self._backend)
        again = [] if self._wanted.again is None else [self._wanted.again]
        for task_id in self._loaded.followed(again):
            found.pop(task_id, None)
        for task_id, why in found.items():
            self._warn(
                f"{task_id} runs again: {why}"
                if strict
                else f"{task_id} is kept, although {why} (--resume=strict runs it again)"
            )
        self._overtaken = overtaken & found.keys()
        for status in self._runs.pass_over_failures(run, self._backend):
            assert status.verdict is not None
            self._listener.note(
                f"job {status.job_id} ended while no run watched it ({status.verdict.cause.value}: "
                f"{status.verdict.message}): its task runs again"
            )
        return self._runs.reopen(run, again=[*again, *(found if strict else ())])

    def _noted(self, run: DagRun, kept: frozenset[str] = frozenset()) -> RunResult:
        """Run it, and note meanwhile in the store that it goes on."""
        from muster.airflow.embedded.preload import import_all
        from muster.airflow.site import instance

        import_all(self._backend.place.package)
        origin = Origin(instance=instance(self._home.settings), dag_id=run.dag_id, run_id=run.run_id)
        with noted(self._backend.store.ledger, origin, self._warn) as beat:
            return self._go(run, beat, kept)

    def _go(self, run: DagRun, beat: Callable[[], None], kept: frozenset[str]) -> RunResult:
        from muster.airflow.embedded.execution import Interruption
        from muster.airflow.embedded.loop import Loop

        began, only = time.monotonic(), self._wanted.only
        interruption = Interruption(self._listener.note)
        scope = None if only is None else self._loaded.leading_to(only)
        loop = Loop(
            self._loaded,
            run,
            self._session,
            self._listener,
            interruption,
            scope,
            serial=self._wanted.serial,
            beat=beat,
            answers=self._wanted.answers,
            on_lost=lambda *instance: self._runs.end_unless_retried(run, self._backend, *instance),
        )
        stages = Stages(self._loaded, self._runs, run, loop, self._backend, kept)
        self._listener.run_started(run.run_id, self._loaded.order)
        loop.states.read(kept)
        for stage in stages.kept():
            self._listener.task_ended(stage)
        with interruption.listening():
            loop.run(
                lambda task_id: self._listener.task_ended(stages.stage(task_id)),
                lambda *instance: self._listener.instance_ended(stages.instance(*instance)),
            )
        if interruption or loop.left_waiting:
            self._runs.fail(run)
        made = stages.all()
        if interruption:
            state = "interrupted"
        elif only is not None:
            state = "success" if loop.states.of(only) == "success" else "failed"
        else:
            state = str(run.state)
        gone = kept.intersection(self._overtaken)
        results = (result for name, each in stages.results().items() if name not in gone for result in each)
        return RunResult(
            dag_id=run.dag_id,
            run_id=run.run_id,
            state=state,
            seconds=time.monotonic() - began,
            log=str(self._home.log),
            params=self._runs.params(run),
            stages=made,
            deployments=tuple(_deployed(results)),
            warnings=tuple(self._warnings),
            only=only,
        )

    def _warn(self, text: str) -> None:
        self._warnings.append(text)
        self._listener.warning(text)


def stale(
    loaded: Loaded, results: Mapping[str, Sequence[Any]], backend: Backend
) -> tuple[dict[str, str], set[str]]:
    """Return why results of tasks may differ from those of a new run; and the tasks whose result was replaced since.

    :param results: the results of each task's instances.
    """
    found, overtaken = dict[str, str](), set[str]()
    for operator in loaded.operators():
        for result in results.get(operator.task_id, ()):
            if not isinstance(result, Mapping):
                continue
            if replaced := operator.overtaken(result, backend):
                found[operator.task_id] = replaced
                overtaken.add(operator.task_id)
            elif changed := operator.changed_since(result, loaded.folder, backend.store) or _retired(
                result, backend.store
            ):
                found[operator.task_id] = f"{changed} since it ran"
                overtaken.discard(operator.task_id)
    return found, overtaken


def _retired(result: Mapping[str, Any], store: Store) -> str:
    """Say which version of a result was retired, and why; empty where none was."""
    from muster.airflow.authoring.references import texts_in

    for address in dict.fromkeys(texts_in(result.get("versions", {}))):
        with suppress(NotFound):  # the task that reads it says so
            for version in store.resolve(address):
                if version.retired is not None:
                    return f"{shown([address])} was retired ({version.retired})"
    return ""


def _deployed(results: Iterable[Any]) -> Iterator[Deployed]:
    fields = ("name", "url", "version", "curl")
    for result in results:
        if isinstance(result, Mapping) and all(field in result for field in fields):
            yield Deployed(**{field: result[field] for field in fields})


@contextmanager
def noted(ledger: Ledger, run: Origin, warn: Callable[[str], None]) -> Iterator[Callable[[], None]]:
    """Note that a run goes on until the context ends; yield what is to be called again and again meanwhile.

    :param warn: told once where the store takes no note.
    """
    due, failed = 0.0, False

    def note(*, going: bool = True) -> None:
        nonlocal due, failed
        if going and time.monotonic() < due:
            return
        try:
            ledger.note_run(run, going=going)
            due = time.monotonic() + EVERY_SECONDS
        except MusterError as error:
            if not failed:
                warn(f"`muster runs` and the page do not show that this run goes on: {error}")
            due, failed = time.monotonic() + _AGAIN_SECONDS, True

    note()
    try:
        yield note
    finally:
        note(going=False)
