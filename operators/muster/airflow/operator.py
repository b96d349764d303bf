"""What all of muster's operators share: their keywords beside Airflow's, their end, and where they work."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR, BaseOperator, BaseOperatorMeta

from muster.airflow.verdicts import translated
from muster.airflow.waiting import Wait
from muster.core.errors import SpecError

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial
    from airflow.triggers.base import BaseTrigger

    from muster.airflow.code import DagFolder
    from muster.airflow.embedded.result import Listener
    from muster.backends.base import Backend
    from muster.volumes.base import Record, Store

RETRIES = 2
RETRY_DELAY = timedelta(seconds=10)

_SHARED = ("params", "queue", "resources")  # keywords that are Airflow's too, and mean something else there


class AuthorKeywords(BaseOperatorMeta):
    """Keeps an author's ``params``, ``queue`` and ``resources`` apart from Airflow's.

    To Airflow ``params=`` of a task are overrides of the Dag's Params, and it merges the two before
    an operator sees them. To muster they are what the job's function is called with. So the
    author's keyword travels as ``job_params``, and a task's Airflow Params stay those of its Dag. A
    mapped task expands over ``job_params``: over ``params`` Airflow hides names that are the Dag's too.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build an operator, or rebuild a mapped one from what its ``partial`` kept."""
        if "_airflow_from_mapped" in kwargs:
            _unmap(kwargs)
        elif "params" in kwargs:
            kwargs["job_params"] = kwargs.pop("params")
        return super().__call__(*args, **kwargs)


def _unmap(kwargs: dict[str, Any]) -> None:
    """Put the author's words back; what stands under them is Airflow's."""
    params = kwargs.pop("params")
    if any(params.get_param(name).source is None for name in params):
        raise SpecError(f"task {kwargs['task_id']!r}: expand over job_params=[…], not params=[…]")
    kwargs["airflow_queue"] = kwargs.pop("queue")
    for name in ("queue", "resources"):
        if f"job_{name}" in kwargs:
            kwargs[name] = kwargs.pop(f"job_{name}")


class MusterOperator(BaseOperator, metaclass=AuthorKeywords):
    """The base of muster's operators.

    They retry twice by default: Airflow's own default of no retries would turn a lost heartbeat
    into a failed task, and what must not be retried (an author's error) never is.

    :param airflow_queue: the executor's queue, which Airflow itself calls ``queue``.
    :cvar listener: who watches all tasks of this process, a ``muster run``. Nobody goes on with a job
        when it is stopped, so the job is ended with it. Of the class, since a mapped task is built when it runs.
    """

    listener: ClassVar[Listener | None] = None

    def __init__(
        self,
        *,
        retries: int | None = RETRIES,
        retry_delay: timedelta | float = RETRY_DELAY,
        airflow_queue: str | None = None,
        **kwargs: Any,
    ) -> None:
        # Given here so that a Dag's default_args, which may hold muster's `queue` and `resources`,
        # do not reach the base class, to which these words mean something else.
        kwargs["queue"] = airflow_queue or _default_queue()
        kwargs["resources"] = None
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self._wait: Wait | None = None
        self._news: Mapping[str, Any] = {}
        self._may_defer = True

    @classmethod
    def partial(cls, *, airflow_queue: str | None = None, **kwargs: Any) -> OperatorPartial:
        """Begin a mapped task; Airflow's scheduler reads what this keeps, and its own words there as its own."""
        authors = {f"job_{name}": kwargs.pop(name) for name in _SHARED if name in kwargs}
        begun = super().partial(**kwargs, queue=airflow_queue or _default_queue(), resources=None)
        del begun.kwargs["resources"]
        begun.kwargs.update(authors)
        return begun

    def execute(self, context: Context) -> Any:
        """Do the operator's work; what muster refuses becomes Airflow's exception here and only here."""
        return self._work(context)

    def resume(self, context: Context, event: Mapping[str, Any] | None = None) -> Any:
        """Go on after a trigger has waited.

        The work is simply done again: each of its steps finds what it did before, so that it does not
        matter where it stood, nor what became of the trigger.

        :param event: what the trigger has seen.
        """
        self._news = event or {}
        return self._work(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Go on after a deferral, also where the trigger failed or timed out: nothing is lost by that."""
        if next_method != TRIGGER_FAIL_REPR:
            return super().resume_execution(next_method, next_kwargs, context)
        told = next_kwargs or {}
        self.log.warning("%s", "".join(told.get("traceback") or ()) or told.get("error"))
        self.log.warning("the trigger failed, so this process itself waits")
        self._may_defer = False
        return self._work(context)

    def _work(self, context: Context) -> Any:
        with translated():
            self.wait.check()
            result = self.perform(context)
            self.wait.check()
        return result

    @abstractmethod
    def perform(self, context: Context) -> Any:
        """Do the operator's work and return what goes into XCom."""

    def images(self) -> tuple[str, ...]:
        """The images that the operator's jobs run in, so that they can be built before anything starts."""
        return ()

    def check_ready(self, folder: DagFolder, backend: Backend) -> None:
        """Refuse what files beside the Dag and the backend already show to be wrong; start nothing.

        :raises SpecError: it names the task and the field.
        """

    def changed_since(self, record: Record, folder: DagFolder, store: Store) -> str:  # noqa: ARG002 - for those below
        """Say what the version of `record` was made from and is different now; empty if nothing is."""
        return ""

    def warn(self, text: str) -> None:
        """Put a warning into the task's log, and before whoever watches a ``muster run``."""
        self.log.warning("%s", text)
        if self.listener is not None:
            self.listener.lines(self.task_id, [f"[muster] {text}"])

    @property
    def wait(self) -> Wait:
        """The wait of this try, which :meth:`on_kill` ends."""
        if self._wait is None:
            self._wait = Wait()
        return self._wait

    @property
    def hand_over(self) -> Callable[[BaseTrigger], NoReturn] | None:
        """Defers to a trigger; None where nobody would fire it, or it has failed before."""
        if self.listener is not None or not self._may_defer:
            return None
        return functools.partial(self.defer, method_name="resume")

    @property
    def news(self) -> Mapping[str, Any]:
        """What the trigger has seen that waited for this try; empty if none did."""
        return self._news

    @property
    def cursors(self) -> Mapping[str, str | None]:
        """Where the lines of a job go on that a trigger has followed."""
        job_id = self._news.get("job_id")
        return {job_id: self._news.get("cursor")} if job_id else {}

    def deadline(self, context: Context) -> float | None:
        """When the try has to have ended, in seconds since the epoch: Airflow does not see to that while it waits."""
        if self.execution_timeout is None:
            return None
        began: datetime = context["ti"].start_date or datetime.now(tz=timezone.utc)
        return began.timestamp() + self.execution_timeout.total_seconds()

    def on_kill(self) -> None:
        """Note that the process is to stop; whatever waits then raises. Nothing slow happens in here."""
        self.wait.stop()

    @contextmanager
    def refusing(self, field: str) -> Iterator[None]:
        """Name task and field in front of what a value was refused for."""
        try:
            yield
        except SpecError as error:
            raise type(error)(f"task {self.task_id!r}, {field}: {error}") from None


def _default_queue() -> str:
    from airflow.sdk.configuration import conf

    return str(conf.get("operators", "default_queue"))
