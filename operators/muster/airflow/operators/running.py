"""What the operators that run jobs share: the keywords of such a job, and what a task returns of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from muster.airflow.assets import announce, announce_nothing
from muster.airflow.authoring.checks import (
    check_job_queue,
    check_params,
    check_paths,
    check_queue,
    check_resources,
    check_span,
    optional,
)
from muster.airflow.authoring.keywords import keyword
from muster.airflow.authoring.references import keep_types
from muster.airflow.authoring.values import by_name, check_pod, plain, read_pod, seconds
from muster.airflow.operators.base import MusterOperator
from muster.core.job import DAY_SECONDS
from muster.core.resources import Resources

if TYPE_CHECKING:
    from airflow.sdk import Context

    from muster.airflow.attempts.run import JobOutcome, TaskRun
    from muster.backends.base import Backend
    from muster.core.status import JobStatus

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
