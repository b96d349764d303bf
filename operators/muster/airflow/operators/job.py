"""JobOperator and GangOperator: a function or a command as one or many processes in a locked environment."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from muster.airflow.assets import announce, outlets_of
from muster.airflow.authoring.checks import by_name, check_paths
from muster.airflow.authoring.keywords import refusing
from muster.airflow.authoring.output import Output
from muster.airflow.authoring.pods import pod_field
from muster.airflow.authoring.references import Later, Versions, is_known, keep_types
from muster.airflow.links import JobLink, ReportLink, TrackingLink, VersionsLink
from muster.airflow.operators.base import MusterOperator
from muster.airflow.operators.fields import check_fields, draft, output_fields, roles_of
from muster.core.job import DAY_SECONDS, EVERY_PARTITION, Launcher, Role, SecretRef
from muster.core.resources import Resources

if TYPE_CHECKING:
    from airflow.sdk import Context

    from muster.airflow.authoring.code import Code, DagFolder
    from muster.backends.base import Backend
    from muster.core.job import JobSpec
    from muster.core.status import JobStatus
    from muster.volumes.protocols import LocalStore

DAY = timedelta(seconds=DAY_SECONDS)


class JobOperator(MusterOperator):
    """Run a function or a command as a job.

    The function's parameters are named after the inputs (``Path``, or ``list[Path]`` for several
    versions), outputs (``Path``, an empty folder to write) and params; it may ask for
    ``checkpoints: Path`` too, a folder that outlives a restart, a retry and ``muster run --resume``. It
    returns metrics or None.

    ``JobOperator.partial(task_id=…, …).expand(params=[{…}, {…}])`` makes a mapped task, one instance
    for each element; ``.versions["model"]`` of it is a list, in that order. What all tasks of a Dag
    share may stand in its ``default_args={"muster": {"image": …, "resources": …, "queue": …}}``.

    :param image: the locked environment it runs in; given here or in the Dag's ``default_args``.
    :param entrypoint: ``package.module:function``; the Dag's folder is the package. (templated)
    :param command: instead of an entrypoint, the words of a command, with ``{inputs.NAME}``,
        ``{outputs.NAME}``, ``{params.NAME}`` and ``{checkpoints}``. (templated)
    :param inputs: addresses by name, ``"volume://flights/features@latest"``, another operator's
        ``.versions["features"]``, or a list of these, which arrives as ``list[Path]``. (templated)
    :param outputs: volumes by name, ``"flights/model"`` or an ``Output`` with a partition. (templated)
    :param params: JSON values by name. ``"{{ params.epochs }}"`` keeps the type of Airflow's Param.
        Other fields may name one, ``partition="{{ task.job_params.month }}"``, which then differs
        between the instances of a mapped task. (templated)
    :param env: plain environment variables. (templated)
    :param secrets: variables by name, each ``"connection:ID#field"``, ``"environment:NAME"``,
        ``"kubernetes:SECRET/KEY"`` or a ``SecretRef``: where the value is found, never the value.
    :param resources: what each replica asks for.
    :param launcher: how ranks learn of each other: ``plain``, ``torchrun``, ``horovod`` or ``tensorflow``.
    :param ranks: processes in each replica. `replicas` counts the replicas.
    :param roles: instead of entrypoint, command, resources, ranks and replicas: roles that differ.
    :param run_timeout: from the job's start, as Airflow's own `execution_timeout`; `queue_timeout` from its submission.
    :param hang_timeout: no line and no progress for so long is a hang; None never is.
    :param max_restarts: how often a gang that lost a rank starts again from its checkpoint.
    :param resume_from_checkpoint: what a retry, a cleared task or ``muster run --resume`` does with the checkpoints
        that the task's last job left, which failed or was ended. ``auto`` goes on from them where entrypoint or
        command, the inputs' content, replicas and ranks are the same; ``always`` goes on in any case, ``never``
        starts anew. A task that has succeeded always starts anew.
    :param queue: where the gang waits; `priority` its place there. Airflow's own ``queue`` is
        `airflow_queue` here.
    :param code: further files or folders that travel, relative to the Dag's folder.
    :param require_gpus: fail rather than run on CPUs where GPUs are missing.
    :param pod_override: on a cluster, what is merged over each replica's pod: a ``V1Pod`` or the same as a
        mapping, the ranks' container called ``base``. It may add tolerations, node selectors, variables, volumes
        of your own and the like, and may not touch muster's volumes, the account or what security asks for. One
        machine does not look at it. (templated)
    """

    runs_a_job = True
    template_fields: Sequence[str] = (
        "job_params",
        "entrypoint",
        "command",
        "inputs",
        "outputs",
        "env",
        "pod_override",
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        "inputs": "json",
        "outputs": "json",
        "job_params": "json",
        "env": "json",
        "pod_override": "json",
    }
    ui_color = "#e8f0fe"
    operator_extra_links = (JobLink(), VersionsLink(), ReportLink(), TrackingLink())

    def __init__(
        self,
        *,
        image: str | None = None,
        entrypoint: str | None = None,
        command: Sequence[str] | None = None,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, str | Output] | None = None,
        job_params: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str | SecretRef] | None = None,
        resources: Resources | None = None,
        launcher: str | Launcher = Launcher.PLAIN,
        ranks: int = 1,
        replicas: int = 1,
        roles: Sequence[Role] | None = None,
        run_timeout: timedelta = DAY,
        queue_timeout: timedelta = DAY,
        hang_timeout: timedelta | None = None,
        max_restarts: int = 3,
        resume_from_checkpoint: str = "auto",
        queue: str | None = None,
        priority: str | None = None,
        code: str | Sequence[str] = (),
        require_gpus: bool = False,
        pod_override: Any = None,
        **kwargs: Any,
    ) -> None:
        self.image: str = image  # type: ignore[assignment]  # none is refused below
        self.entrypoint = entrypoint
        self.command = command
        task_id = kwargs.get("task_id", "")
        kinds = {"inputs": inputs, "outputs": outputs, "params": job_params}
        self.later = frozenset(kind for kind, value in kinds.items() if isinstance(value, Later))
        self.inputs = by_name(task_id, "inputs", inputs)
        self.outputs = output_fields(task_id, outputs)
        self.job_params = keep_types(by_name(task_id, "params", job_params))
        self.env = by_name(task_id, "env", env)
        self.job_secrets = by_name(task_id, "secrets", secrets)
        self.job_resources = resources
        self.launcher = launcher
        self.ranks = ranks
        self.replicas = replicas
        self.roles = roles
        self.run_timeout = run_timeout
        self.queue_timeout = queue_timeout
        self.hang_timeout = hang_timeout
        self.max_restarts = max_restarts
        self.resume_from_checkpoint = resume_from_checkpoint
        self.job_queue = queue
        self.priority = priority
        with refusing(task_id, "code"):
            self.code = check_paths(code)
        self.require_gpus = require_gpus
        self.pod_override = pod_field(task_id, pod_override)
        super().__init__(**kwargs)
        check_fields(self)
        self.add_outlets(asset for asset in outlets_of(self.outputs) if asset not in self.outlets)

    @property
    def versions(self) -> Versions:
        """References to what this task will have committed: ``train.versions["model"]``.

        Each renders to one pinned address, or to a list of them for an output with ``partition="*"``.
        """
        return Versions(self, tuple(self.outputs))

    @classmethod
    def output_names(cls, keywords: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of its outputs."""
        return tuple(keywords.get("outputs") or ())

    def images(self) -> tuple[str, ...]:
        """The one image."""
        return (self.image,)

    def travelling(self, folder: DagFolder) -> Code:
        """The code that goes with the job. :raises SpecError: some of it is not there, or may not go."""
        return folder.code(self.code)

    def gang(self, folder: DagFolder) -> tuple[Role, ...]:  # noqa: ARG002 - for those below
        """The roles that run, once the fields are rendered. :raises SpecError: one of them is wrong."""
        return roles_of(self)

    def check_ready(self, folder: DagFolder, backend: Backend) -> None:
        """Look at the entrypoint without importing it, and ask the backend whether such a job can ever run."""
        from muster.airflow.operators.request import check_code

        with self.refusing("code"):
            code = self.travelling(folder)
        with self.refusing("entrypoint"):
            check_code(self, code, self.gang(folder) if is_known([self.entrypoint, self.command]) else ())
        with self.refusing(
            "the job"
        ):  # its queue, its priority, its secrets or its resources: what is said names which
            backend.check(draft(self))

    def changed_since(self, result: Mapping[str, Any], folder: DagFolder, store: LocalStore) -> str:
        """Name the author's own files that were imported for a version and read differently now."""
        from muster.airflow.authoring.code import differing, records

        code = self.travelling(folder)
        found = (differing(record.code, record.modules, code, store) for record in records(result, store))
        return next(filter(None, found), "")

    def perform(self, context: Context) -> dict[str, Any]:
        """Run the job, and return its id, versions and metrics."""
        from muster.airflow.attempts.resuming import resume_of
        from muster.airflow.attempts.run import TaskRun
        from muster.airflow.operators.request import build_spec

        task = TaskRun.of(self, context)

        def build() -> JobSpec:
            return build_spec(self, task)

        status = task.run(build, resume=resume_of(self.resume_from_checkpoint))
        announce(context, task.backend.store, status)
        many = {name for name, field in self.outputs.items() if field["partition"] == EVERY_PARTITION}
        result = summary(status, many=many)
        report(self.log, result)
        return result


class GangOperator(JobOperator):
    """Run a function or a command as a gang: all replicas at once, or none.

    :class:`JobOperator` with the launcher that PyTorch's own ``torchrun`` stands for.
    """

    def __init__(self, *, launcher: str | Launcher = Launcher.TORCHRUN, **kwargs: Any) -> None:
        super().__init__(launcher=launcher, **kwargs)


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
