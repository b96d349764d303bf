"""What the operators that run jobs share: the keywords of such a job, what a task returns of it, and which earlier versions it may keep."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from muster.airflow.assets import announce, announce_nothing
from muster.airflow.authoring.checks import (
    check_flag,
    check_job_queue,
    check_params,
    check_paths,
    check_queue,
    check_resources,
    check_span,
    optional,
)
from muster.airflow.authoring.keywords import addresses_read, keyword
from muster.airflow.authoring.references import is_known, keep_types, texts_in
from muster.airflow.authoring.values import by_name, check_pod, plain, read_pod, seconds
from muster.airflow.operators.base import MusterOperator
from muster.core.address import SCHEME
from muster.core.comparison import DifferenceKind, differences, files_changed
from muster.core.errors import NotFound
from muster.core.job import DAY_SECONDS, check_json
from muster.core.resources import Resources

if TYPE_CHECKING:
    from airflow.sdk import Context

    from muster.airflow.attempts.keeping import Wish
    from muster.airflow.attempts.run import JobOutcome, TaskRun
    from muster.airflow.authoring.code import Code, DagFolder
    from muster.airflow.lineage import Lineage, TaskLineage
    from muster.backends.base import Backend
    from muster.core.job import JobSpec
    from muster.core.settings import Settings
    from muster.core.status import JobStatus
    from muster.volumes.base import Made
    from muster.volumes.protocols import LocalStore

DAY = timedelta(seconds=DAY_SECONDS)


class QueuedOperator(MusterOperator):
    """The base of the operators that run jobs: what queue such a job waits in, and its pod."""

    job_resources: Resources | None = keyword(
        default=None, alias="resources", check=check_resources, for_all=True
    )
    """What each replica asks for."""
    run_timeout: timedelta = keyword(default=DAY, check=check_span, spec=seconds, for_all=True)
    """The longest the job may run, from its start, as Airflow's own `execution_timeout`."""
    job_queue: str | None = keyword(
        default=None, alias="queue", check=optional(check_job_queue), spec=plain, for_all=True
    )
    """The queue that the job waits in. Airflow's own ``queue`` is `airflow_queue` here."""
    priority: str | None = keyword(default=None, check=optional(check_queue), spec=plain, for_all=True)
    """The priority of the job in its queue."""
    pod_override: Any = keyword(
        default=None, read=read_pod, check=check_pod, spec=plain, templated=True, for_all=True
    )
    """On a cluster, what is merged over each replica's pod: a ``V1Pod`` or the same as a mapping, the ranks'
    container called ``base``. It may add tolerations, node selectors, variables, volumes of your own and the like,
    and may not touch muster's volumes, the account or what security asks for. One machine ignores it."""

    def check_ready(self, backend: Backend) -> None:
        """Ask the backend whether such a job can ever run."""
        draft = self.job_draft(self.task_id)
        if draft is not None:
            with self.refusing("the job"):  # the message says what of it: queue, priority, secrets, resources
                backend.runner.check(draft)

    def finish(
        self, context: Context, task: TaskRun, outcome: JobOutcome, *, many: Collection[str] = ()
    ) -> dict[str, Any]:
        """Announce what a job has made, nothing where it is kept, and return and log what goes into XCom.

        :param many: as of :func:`summary`.
        """
        if outcome.kept is None:
            announce(context, task.backend.store, outcome.status)
        else:
            announce_nothing(context)
        result = summary(outcome.status, many=many)
        report(self.log, result)
        return result


class CodeOperator(QueuedOperator):
    """The base of the operators whose jobs run an author's function."""

    job_params: Mapping[str, Any] = keyword(
        default=None,
        alias="params",
        read=lambda value: keep_types(by_name(value)),
        check=check_params,
        spec=plain,
        templated=True,
    )
    """JSON values by name. ``"{{ params.epochs }}"`` keeps the type of Airflow's Param. Other fields may name one,
    ``partition="{{ task.job_params.month }}"``, which then differs between the instances of a mapped task."""
    code: str | Sequence[str] = keyword(default=(), read=check_paths)
    """Further files or folders that travel, relative to the Dag's folder."""


def summary(status: JobStatus, *, many: Collection[str] = ()) -> dict[str, Any]:
    """What goes into XCom of a job that succeeded: its id, its versions' addresses, its metrics, its links.

    :param many: the outputs that are a list of addresses, however many there are.
    """
    assert status.result is not None
    versions = {
        name: list(addresses) if name in many else addresses[0]
        for name, addresses in status.result.outputs.items()
    }
    links = {"links": dict(status.result.links)} if status.result.links else {}
    return {"job_id": status.job_id, "versions": versions, "metrics": dict(status.result.metrics), **links}


def report(log: Any, result: Mapping[str, Any]) -> None:
    """Say what a job left behind, where its log ends."""
    for name, versions in result["versions"].items():
        log.info("%s: %s", name, versions if isinstance(versions, str) else ", ".join(versions))
    for name, value in result["metrics"].items():
        log.info("%s = %.6g", name, value)
    for title, url in result.get("links", {}).items():
        log.info("%s: %s", title, url)


_ALL_VOLUMES = "{"


def _check_key(value: Any) -> None:
    """Refuse a cache key that JSON cannot hold, as far as it is known."""
    check_json("cache_key", value if is_known(value) else None)


class CachedOperator(MusterOperator):
    """The base of operators that keep earlier versions instead of making the same again."""

    cache: bool | None = keyword(default=None, check=optional(check_flag), for_all=True)
    """Whether a version that was made of the same code, image, inputs, params, roles, environment and secrets' places
    is taken, and nothing runs. None: as ``[muster] cache`` says, which is False where it is not set. A Param or a conf
    of the run that is called ``no_cache`` makes everything anew."""
    cache_key: Any = keyword(default=None, check=_check_key, spec=plain, templated=True, for_all=True)
    """A JSON value of the author's, for what muster cannot see: code that reads the clock, the network or a file
    outside of its folder. Another value makes the stage anew: ``cache_key="{{ ds }}"``."""

    def wish(self) -> Wish | None:
        """Which earlier versions the task may keep; None: none."""
        from muster.airflow.attempts.keeping import Wish
        from muster.airflow.site import cache_default

        if not (cache_default() if self.cache is None else self.cache):
            return None
        dag = self.get_dag()
        selected = {name for task in dag.tasks for name in volumes_selected(task)} if dag else set()
        return Wish(by_selector=None if _ALL_VOLUMES in selected else selected, refuse=self.refuse)

    if TYPE_CHECKING:  # what a subclass has of its other base

        def travelling(self, folder: DagFolder, settings: Settings) -> Code:
            """Return the code that the job would run with now."""

    @abstractmethod
    def again(self, last: JobSpec, folder: DagFolder, store: LocalStore, settings: Settings) -> JobSpec:
        """Return the job that the Dag's files describe now. What is known only in a run is copied from the last job.

        :raises SpecError: the files are wrong.
        """

    def changed_since(self, result: Mapping[str, Any], folder: DagFolder, store: LocalStore) -> str:
        """Say how the job of a result differs from that of the Dag's files now: ``flights/etl.py changed``.

        Values that are known only in a run, and inputs made by earlier stages, count as unchanged.
        """
        from muster.airflow.authoring.code import differing, records
        from muster.core.settings import Settings

        for record in records(result, store):
            settings = Settings.load()
            files = differing(record.code, record.modules, self.travelling(folder, settings), store)
            try:
                last = store.ledger.spec(record.job_id)
            except NotFound:  # gc took the job's entry: only its code is known
                return files_changed(files)
            found = differences(last, self.again(last, folder, store, settings), files)
            return "; ".join(str(each) for each in found if each.what is not DifferenceKind.INPUT)
        return ""

    def task_lineage(self, lineage: Lineage, ti: Any) -> TaskLineage:
        """Describe what an ended try read, and made or kept; by the kept versions where gc deleted the job that made them."""
        from muster.airflow.links import returned

        try:
            return super().task_lineage(lineage, ti)
        except NotFound:
            return lineage.of_kept(list(texts_in(returned(ti).get("versions"))))

    def refuse(self, made: Made) -> str:  # noqa: ARG002 - for those below
        """Why this task may not keep these versions; empty if it may."""
        return ""


def volumes_selected(task: Any) -> Iterator[str]:
    """Yield the volumes that a task reads by a selector; ``{`` if their names are known only in a run."""
    if getattr(task, "is_mapped", False):
        named = addresses_read(task.operator_class, lambda each: task.partial_kwargs.get(each.parameter))
        others = texts_in([task.partial_kwargs.get("op_kwargs"), task._get_specified_expand_input().value])
        given = [*named, *(text for text in others if text.startswith((SCHEME, _ALL_VOLUMES)))]
    else:
        given = [*addresses_read(type(task), lambda each: getattr(task, each.attribute))]
    for text in given:  # none is a reference to another task: that names an exact version
        volume, at, selector = text.removeprefix(SCHEME).partition("@")
        if _ALL_VOLUMES in volume:
            yield _ALL_VOLUMES
        elif not (at and selector.isdigit()):
            yield volume
