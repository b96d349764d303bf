"""What all of muster's operators share: their keywords beside Airflow's, their end, and where they work."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.bases.operator import BaseOperator, BaseOperatorMeta

from muster.airflow.verdicts import translated
from muster.airflow.waiting import Wait
from muster.core.errors import SpecError

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.mappedoperator import OperatorPartial

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
