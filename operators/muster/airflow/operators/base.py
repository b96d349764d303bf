"""The base of muster's operators: their common keywords, how they run, wait, defer and stop."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.sdk import BaseOperator, XComArg
from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from muster.airflow.attempts.verdicts import Failed, refusal, translated
from muster.airflow.attempts.waiting import Wait
from muster.airflow.attempts.watcher import arguments, called, watcher
from muster.airflow.authoring.checks import check_delay, check_executor_queue, check_retries, optional
from muster.airflow.authoring.keywords import AuthorKeywords, Keyword, addresses_read, keyword, refusing
from muster.airflow.authoring.references import RunValue, is_known
from muster.airflow.links import left, push_run_link
from muster.airflow.operators.mapping import TaskPartial, begin
from muster.airflow.teams import DagFacts, site_teams
from muster.airflow.upstream.internals import TRIGGER_FAIL_REPR
from muster.core.errors import MusterError, SpecError
from muster.core.names import nearest
from muster.core.status import JobState
from muster.core.text import one_line

if TYPE_CHECKING:
    from airflow.sdk import DAG, Context
    from airflow.triggers.base import BaseTrigger
    from jinja2 import Environment

    from muster.airflow.attempts.keeping import Wish
    from muster.airflow.attempts.run import TaskRun
    from muster.airflow.attempts.watcher import LineListener
    from muster.airflow.authoring.code import DagFolder
    from muster.airflow.lineage import Lineage, TaskLineage
    from muster.backends.base import Backend
    from muster.core.job import JobSpec
    from muster.core.settings import Settings
    from muster.volumes.protocols import LocalStore

RETRIES = 2
RETRY_DELAY = timedelta(seconds=10)
_TEXTS = (
    "entrypoint",
    "command",
    "env",
    "outputs",
    "partition",
    "source",
    "query",
    "until",
    "target",
    "reason",
    "revision",
)


def default_queue(name: str | None = None) -> str:
    """The executor's queue of a task: the one it names, or else the one of Airflow's configuration."""
    from airflow.sdk import conf

    return name or str(conf.get("operators", "default_queue"))


class MusterOperator(BaseOperator, metaclass=AuthorKeywords):
    """The base of muster's operators.

    They retry twice by default: Airflow's own default of no retries would turn a lost heartbeat
    into a failed task, and what must not be retried (an author's error) never is.

    :cvar keywords: what the operator takes, by the author's word.
    :cvar costs: ``module:function`` that tells a plan what the many jobs of a task cost, see
        :class:`muster.backends.forecast.TaskCost`; empty of an operator that runs one job.
    :cvar runs_a_job: whether its work is one job, so that it has started when that has.
    """

    keywords: ClassVar[Mapping[str, Keyword]]
    costs: ClassVar[str] = ""
    runs_a_job: ClassVar[bool] = False

    retries: int | None = keyword(default=RETRIES, check=optional(check_retries), airflow="retries")
    """How often a try that failed is repeated, unless its error would come again."""
    retry_delay: timedelta | float = keyword(  # type: ignore[assignment]  # Airflow makes a timedelta of it
        default=RETRY_DELAY, check=optional(check_delay), airflow="retry_delay"
    )
    """The pause before a retry, as a timedelta or in seconds."""
    airflow_queue: str | None = keyword(
        default=None, check=optional(check_executor_queue), read=default_queue, airflow="queue"
    )
    """The executor's queue, which Airflow itself calls ``queue``."""

    if TYPE_CHECKING:
        # Type checkers take Airflow's keywords from the fields of BaseOperator. Where its constructor takes
        # something else, or an author's word means something else to muster, that is said here.
        task_id: str = keyword()
        params: Any = keyword(init=False)
        queue: str = keyword(init=False)
        resources: Any = keyword(init=False)
        trigger_rule: Any = keyword(default="all_success")
        on_execute_callback: Any = keyword(default=None)
        on_failure_callback: Any = keyword(default=None)
        on_retry_callback: Any = keyword(default=None)
        on_skipped_callback: Any = keyword(default=None)
        on_success_callback: Any = keyword(default=None)
        inlets: Any = keyword(default=None)
        outlets: Any = keyword(default=None)
        _of: DAG | None = keyword(default=None, alias="dag")
        _shown_as: str | None = keyword(default=None, alias="task_display_name")
        _before: Any = keyword(default=None, alias="pre_execute")
        _after: Any = keyword(default=None, alias="post_execute")

    def construct(self, given: dict[str, Any]) -> None:
        """Set the attributes from the author's keywords, have Airflow do the rest, and check what was given.

        :param given: what Airflow's metaclass has completed from the Dag's ``default_args``.
        :raises SpecError: a value is wrong whatever the task's context will be.
        """
        # `queue` and `resources` mean something else to Airflow: what a Dag's default_args hold never reaches it.
        airflows: dict[str, Any] = {"resources": None}
        late = set()
        for each in self.keywords.values():
            value = given.pop(each.parameter, each.default)
            if isinstance(value, RunValue):
                late.add(each.word)
            if each.read is not None:
                with refusing(given.get("task_id", ""), each.word):
                    value = each.read(value)
            if each.airflow:
                airflows[each.airflow] = value
            else:
                setattr(self, each.attribute, value)
        self.later = frozenset(late)
        BaseOperator.__init__(self, **{**given, **airflows})
        self._wait: Wait | None = None
        self._news: Mapping[str, Any] = {}
        self._may_defer = True
        self._called = self.task_id
        self.given: Mapping[str, Any] = {}
        self.check_keywords()
        self.check_together()

    def check_keywords(self) -> None:
        """Check each keyword by itself. :raises SpecError: it names task, keyword, value and rule."""
        for each in self.keywords.values():
            if each.airflow:
                continue
            value = getattr(self, each.attribute)
            with self.refusing(each.word):
                if not each.templated and isinstance(value, (str, XComArg)) and not is_known(value):
                    way = (
                        f"map the task over it, .expand({each.word}=…)"
                        if each.may_be_late
                        else "write its value"
                    )
                    raise SpecError(f"{str(value)!r:.60}: it takes neither Jinja nor a task's result; {way}")
                if each.check is not None:
                    each.check(value)
            if each.each is not None:
                for name, item in value.items():
                    with self.refusing(f"{each.word}[{name!r:.60}]"):
                        each.each(item)

    def check_together(self) -> None:
        """Check the keywords against each other, and announce the assets that the task will change.

        :raises SpecError: they do not fit.
        """

    @classmethod  # type: ignore[misc]  # to type checkers Airflow's is a field
    def partial(cls, **kwargs: Any) -> TaskPartial:
        """Begin a mapped task, with the keywords that all of its instances share."""
        return begin(cls, kwargs, default_queue=default_queue())

    def render_template_fields(self, context: Context, jinja_env: Environment | None = None) -> None:
        """Fill in the templated keywords. A wrong template is the author's error, which no other try mends."""
        from jinja2 import TemplateError

        texts: dict[str, Any] = {}
        try:
            with translated():
                if context[
                    "dag"
                ].render_template_as_native_obj:  # what is text for a job stays text: 007 is no 7
                    names = (word for word in _TEXTS if word in self.template_fields)
                    texts = {word: self._as_text(getattr(self, word), context) for word in names}
                super().render_template_fields(context, jinja_env)
        except TemplateError as error:
            where = self._not_rendered(context, jinja_env)
            raise refusal(SpecError(f"task {self.task_id!r}, {where}: {error}")) from None
        for word, value in texts.items():
            setattr(self, word, value)

    def _as_text(self, value: Any, context: Context) -> Any:
        if isinstance(value, str):
            return context["dag"].get_template_env(force_sandboxed=True).from_string(value).render(**context)
        if isinstance(value, Mapping):
            return {name: self._as_text(item, context) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._as_text(item, context) for item in value]
        return self.render_template(value, context)

    def _not_rendered(self, context: Context, jinja_env: Environment | None) -> str:
        """Return the keyword whose template is wrong."""
        from jinja2 import TemplateError

        for each in self.keywords.values():
            if each.templated:
                try:
                    self.render_template(
                        getattr(self, each.attribute), context, jinja_env or self.get_template_env()
                    )
                except TemplateError:
                    return each.word
        return "a template"

    def execute(self, context: Context) -> Any:
        """Do the operator's work. Muster's errors become Airflow's exceptions here and nowhere else."""
        return self._work(context, first=True)

    def resume(self, context: Context, event: Mapping[str, Any] | None = None) -> Any:
        """Go on after a trigger has waited.

        The work is done again from its beginning: each step finds what it did before. So it does not matter how far
        it had come, nor how the trigger ended.

        :param event: what the trigger reports.
        """
        self._news = event or {}
        return self._work(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on after a deferral, also where the trigger failed or timed out: this process then waits itself."""
        if next_method != TRIGGER_FAIL_REPR:
            return super().resume_execution(next_method, next_kwargs, context)
        told = next_kwargs or {}
        self.log.warning("%s", "".join(told.get("traceback") or ()) or told.get("error"))
        self.log.warning("the trigger failed, so this process itself waits")
        self._may_defer = False
        return self._work(context)

    def _work(self, context: Context, *, first: bool = False) -> Any:
        try:
            with translated():
                if first:
                    self._check_dag(context)
                result = self._perform(context)
        except AirflowSkipException as skip:
            if (by := watcher()) is not None:
                by.skipped(one_line(str(skip)))
            raise
        except Exception as error:
            if why := _why_failed(error):
                self._end(context, JobState.FAILED, why)
                if self.runs_a_job:
                    push_run_link(context["ti"])
            raise
        finally:
            self.operator_extra_links = left(self.operator_extra_links, self, context["ti"])
        if not self.runs_a_job:
            self._end(context, JobState.SUCCEEDED, self.told(result), self.outcome(result))
        return result

    def _perform(self, context: Context) -> Any:
        self._called = self.instance(context["ti"].map_index)
        if (by := watcher()) is not None and by.stopping():
            self.wait.stop()
        self.wait.check()
        read = addresses_read(type(self), lambda each: getattr(self, each.attribute))
        site_teams().admit_use(
            DagFacts.of(context), f"task {self.task_id}", reads=read, writes=self.changes()
        )
        result = self.perform(context)
        self.wait.check()
        return result

    def _end(
        self,
        context: Context,
        state: JobState,
        line: str,
        outputs: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        """Note how the task ended, for ``muster runs``: no job tells it."""
        from muster.airflow.site import connect, origin_of
        from muster.core.settings import Settings
        from muster.volumes.base import TaskEnd

        ti, now, settings = context["ti"], time.time(), Settings.load()
        began = ti.start_date.timestamp() if ti.start_date else now
        try:
            origin = origin_of(ti, settings)
            end = TaskEnd(
                origin=origin, began=began, at=now, state=state, line=one_line(line), outputs=outputs or {}
            )
            connect(settings).store.ledger.end_task(end)
        except MusterError as error:
            self.log.warning("`muster runs` will not show how this task ended: %s", error)

    def told(self, result: Any) -> str:  # noqa: ARG002 - for those below
        """Say what a task without a job did, in a line for people."""
        return ""

    def outcome(self, result: Any) -> Mapping[str, tuple[str, ...]]:  # noqa: ARG002 - for those below
        """Return the versions that a task without a job of its own has made, by output."""
        return {}

    def _check_dag(self, context: Context) -> None:
        """Let the first of a Dag's tasks check the files of all tasks: a later one would fail after hours of work.

        It warns of a misspelt Param: Airflow takes any name in a run's conf, and the run has the Param's default. Not after a deferral: the job has run, and an edit since must not lose it.
        """
        from muster.airflow.authoring.code import DagFolder
        from muster.core.settings import Settings

        if self.listener is not None or any(
            isinstance(each, MusterOperator) for each in self.get_flat_relatives(True)
        ):
            return  # `muster run` has checked them, or a task before this one has
        tasks = [each for each in context["dag"].tasks if isinstance(each, MusterOperator)]
        site_teams().admit_drafts(
            DagFacts.of(context), (each.job_draft(f"task {each.task_id}") for each in tasks)
        )
        folder, settings = DagFolder.of(context["dag"]), Settings.load()
        for each in tasks:
            each.check_files(folder, settings)
        given, params = getattr(context.get("dag_run"), "conf", None) or {}, context["dag"].params
        for name in sorted(set(given) - set(params)):
            if near := nearest(name, set(params) - set(given)):
                self.warn(
                    f"the run's conf has {name!r:.60}, which is no Param; did you mean {near}? It has its default"
                )

    @abstractmethod
    def perform(self, context: Context) -> Any:
        """Do the operator's work and return what goes into XCom."""

    @property
    def listener(self) -> LineListener | None:
        """The ``muster run`` of this process that hears what the task's jobs say; None under an Airflow of its own.

        Under a ``muster run`` a job is ended with its process, since no other process goes on with it.
        """
        by = watcher()
        return by.listener if by is not None else None

    @classmethod
    def output_names(cls, keywords: Mapping[str, Any]) -> tuple[str, ...]:  # noqa: ARG003 - for those below
        """The names in ``.versions`` of an operator with such keywords."""
        return ()

    def images(self, backend: Backend) -> tuple[str, ...]:  # noqa: ARG002 - for those below
        """The images that run there for the operator, so that they can be built before anything starts."""
        return ()

    def check_files(self, folder: DagFolder, settings: Settings) -> None:
        """Refuse errors in the files of the Dag's folder: the code, the image's lock, a suite, smoke requests.

        :raises SpecError: it names the task, the field and the file.
        """

    def check_ready(self, backend: Backend) -> None:
        """Refuse what the backend can never run, before anything is started.

        :raises SpecError: it names the task and the field.
        """

    def doubts(self) -> tuple[str, ...]:
        """Return what a person should know before the task runs: it is shown in the plan and at its start."""
        return ()

    def job_spec(self, task: TaskRun) -> JobSpec | None:  # noqa: ARG002 - for those below
        """Return the job that this task, with its fields rendered, would run; None of an operator that runs none.

        :raises SpecError: as when it runs. :raises NotFound: an input is not there.
        """
        return None

    def job_draft(self, name: str) -> JobSpec | None:  # noqa: ARG002
        """Return such a job as far as the Dag file tells it, with stand-ins for the rest; None likewise."""
        return None

    def wish(self) -> Wish | None:
        """Which earlier versions the task may keep; None: none."""
        return None

    def changes(self) -> Sequence[str]:
        """The volumes that the task itself changes, or sends away, without a job; ``*`` stands for all of them."""
        return ()

    def written(self, spec: JobSpec) -> set[str]:
        """The volumes that the task writes with this job."""
        return {each.volume for each in spec.outputs.values()}

    def changed_since(
        self,
        result: Mapping[str, Any],  # noqa: ARG002 - for those below
        folder: DagFolder,  # noqa: ARG002
        store: LocalStore,  # noqa: ARG002
    ) -> str:
        """Say what has changed since a result was made from it, ``flights/etl.py changed``; empty if nothing has."""
        return ""

    def overtaken(self, result: Mapping[str, Any], backend: Backend) -> str:  # noqa: ARG002 - for those below
        """Say what has replaced a kept result; empty if nothing has."""
        return ""

    def get_openlineage_facets_on_start(self) -> TaskLineage:
        """Name the volumes that the task is to read and write. Airflow's OpenLineage provider calls it, if it is there."""
        return self._named_lineage(self._open_lineage())

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> TaskLineage:
        """Name the versions that the task read and wrote. Airflow's OpenLineage provider calls it, if it is there."""
        return self.task_lineage(self._open_lineage(), task_instance)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> TaskLineage:
        """Name the same for a task that failed; the provider adds its verdict."""
        return self.task_lineage(self._open_lineage(), task_instance)

    def task_lineage(self, lineage: Lineage, ti: Any) -> TaskLineage:
        """Describe what an ended try read and wrote: by its job, or by its keywords where it had none.

        :param lineage: that of the store.
        """
        from muster.airflow.links import job_of

        job_id = job_of(ti)
        return lineage.of_job(job_id, run_id=ti.run_id) if job_id else self._named_lineage(lineage)

    def _named_lineage(self, lineage: Lineage) -> TaskLineage:
        read = addresses_read(type(self), lambda each: getattr(self, each.attribute))
        return lineage.of_names(read, (str(each.uri) for each in self.outlets if hasattr(each, "uri")))

    def _open_lineage(self) -> Lineage:
        from muster.airflow.lineage import Lineage
        from muster.airflow.site import connect, lineage_namespace

        store = connect().store
        return Lineage(store, lineage_namespace(store))

    def instance(self, map_index: int | None) -> str:
        """The task's name for a listener; of a mapped task with the instance and its arguments."""
        return called(self.task_id, map_index, self.arguments)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that distinguish an instance of a mapped task, rendered if the try has come so far."""
        return arguments(
            {
                word: getattr(self, word, value) if word in self.template_fields else value
                for word, value in self.given.items()
            }
        )

    def warn(self, text: str) -> None:
        """Put a warning into the task's log, and show it to the person who watches a ``muster run``."""
        self.tell(text, logging.WARNING)

    def tell(self, text: str, level: int = logging.INFO) -> None:
        """Put a line into the task's log, and show it to the person who watches a ``muster run``."""
        self.log.log(level, "%s", text)
        if self.listener is not None:
            self.listener.lines(self._called, [f"[muster] {text}"])

    @property
    def wait(self) -> Wait:
        """The wait of this try, which :meth:`on_kill` ends."""
        if self._wait is None:
            self._wait = Wait()
        return self._wait

    @property
    def hand_over(self) -> Callable[[BaseTrigger], NoReturn] | None:
        """Defers to a trigger; None where no triggerer runs it, or where it has failed before."""
        return self._defer if self.listener is None and self._may_defer else None

    def _defer(self, trigger: BaseTrigger) -> NoReturn:
        self.defer(trigger=trigger, method_name="resume")

    @property
    def news(self) -> Mapping[str, Any]:
        """The report of the trigger that waited for this try; empty if none did."""
        return self._news

    @property
    def cursors(self) -> Mapping[str, str | None]:
        """Where to go on reading the log of a job that a trigger has followed."""
        job_id = self._news.get("job_id")
        return {job_id: self._news.get("cursor")} if job_id else {}

    def deadline(self, context: Context) -> float | None:
        """When a release of this try has to have ended, in seconds since the epoch: Airflow does not see to that while it waits.

        A job's ``execution_timeout`` counts from its own start instead.
        """
        if self.execution_timeout is None:
            return None
        began: datetime = context["ti"].start_date or datetime.now(tz=timezone.utc)
        return began.timestamp() + self.execution_timeout.total_seconds()

    def on_kill(self) -> None:
        """Stop the wait of this try: it then raises. Airflow kills the process 5 s later, so this does nothing slow."""
        self.wait.stop()

    @contextmanager
    def refusing(self, field: str) -> Iterator[None]:
        """Put task and field in front of the message of a SpecError."""
        with refusing(self.task_id, field):
            yield


def _why_failed(error: Exception) -> str:
    """Return why a task failed, in a line; empty of what steers Airflow, such as a skip."""
    if isinstance(error, Failed):
        return ": ".join(str(error.args[0]).splitlines()[:2])
    return "" if isinstance(error, AirflowException) else f"{type(error).__name__}: {error}"
