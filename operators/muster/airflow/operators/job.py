"""JobOperator and GangOperator: a function or a command as one or many processes in a locked environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from muster.airflow.assets import outlets_of
from muster.airflow.attempts.resuming import resume_of
from muster.airflow.authoring.checks import (
    check_address,
    check_count,
    check_flag,
    check_image,
    check_pause,
    check_span,
    check_whole,
    optional,
)
from muster.airflow.authoring.entrypoints import check_launch
from muster.airflow.authoring.keywords import keyword
from muster.airflow.authoring.references import VersionsReference, is_known
from muster.airflow.authoring.values import (
    budget_of,
    by_name,
    known_output,
    launcher_of,
    outputs_of,
    plain,
    read_outputs,
    seconds,
    secret_of,
    secrets_of,
)
from muster.airflow.links import JobLink, ReportLink, TrackingLink, VersionsLink
from muster.airflow.operators.running import DAY, CachedOperator, CodeOperator
from muster.airflow.operators.spec import (
    build_again,
    build_spec,
    check_code,
    check_engine,
    check_places,
    commands_of,
    draft,
    roles_of,
)
from muster.core.data import CHECKPOINTS, EVERY_PARTITION
from muster.core.job import JobSpec, Launcher, Role, SecretRef
from muster.core.progress import Pattern

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

    from muster.airflow.attempts.run import TaskRun
    from muster.airflow.authoring.code import Code, DagFolder
    from muster.airflow.authoring.values import Output
    from muster.backends.base import Backend
    from muster.core.settings import Settings
    from muster.volumes.protocols import LocalStore


class FunctionOperator(CachedOperator, CodeOperator):
    """The keywords of a job that do not say what runs: those of ``@job``."""

    runs_a_job = True
    ui_color = "#e8f0fe"
    operator_extra_links: tuple[BaseOperatorLink, ...] = (
        JobLink(),
        VersionsLink(),
        ReportLink(),
        TrackingLink(),
    )

    image: str = keyword(default=None, check=check_image, for_all=True, late=True)
    """The locked environment it runs in; given here or in the Dag's ``default_args``."""
    inputs: Mapping[str, Any] = keyword(
        default=None, read=by_name, each=check_address, templated=True, reads=True
    )
    """Addresses by name, ``"volume://flights/features@latest"``, another operator's ``.versions["features"]``, or
    a list of these, which arrives as ``list[Path]``. The input ``checkpoints`` fills the folder of checkpoints; it may be a folder in a
    version, ``"flights/search@7/checkpoints/3"``."""
    outputs: Mapping[str, str | Output] = keyword(
        default=None, read=read_outputs, each=known_output, spec=outputs_of, templated=True
    )
    """Volumes by name, ``"flights/model"`` or an ``Output`` with a partition."""
    env: Mapping[str, str] = keyword(default=None, read=by_name, spec=plain, templated=True, for_all=True)
    """Plain environment variables."""
    job_secrets: Mapping[str, str | SecretRef] = keyword(
        default=None, alias="secrets", read=by_name, each=secret_of, spec=secrets_of, for_all=True
    )
    """Variables by name, each ``"connection:ID#field"``, ``"environment:NAME"``, ``"kubernetes:SECRET/KEY"`` or a
    ``SecretRef``: the place of the value, never the value."""
    launcher: str | Launcher = keyword(
        default=Launcher.PLAIN, check=launcher_of, spec=launcher_of, for_all=True
    )
    """How ranks find each other: ``plain``, ``torchrun``, ``horovod`` or ``tensorflow``; or the data engine whose cluster the gang is,
    ``spark``, ``ray`` or ``dask``."""
    ranks: int = keyword(default=1)
    """Processes in each replica."""
    replicas: int | tuple[int, int] = keyword(default=1)
    """The number of replicas; or, for an elastic gang, the least and the most, ``(2, 4)``: it starts with what can be had,
    gives replicas back to a job that waits for their room, and takes them again at a checkpoint."""
    queue_timeout: timedelta = keyword(default=DAY, check=check_span, spec=seconds, for_all=True)
    """The longest the job may wait for its start, from its submission."""
    hang_timeout: timedelta | None = keyword(
        default=None, check=optional(check_pause), spec=seconds, for_all=True
    )
    """A job that writes no line and makes no progress for this long hangs, and is ended; None: never."""
    idle: timedelta | None = keyword(default=None, check=optional(check_span), spec=seconds, for_all=True)
    """A gang whose cards do nothing for this long is ended, after a warning at half of it, with its grace for a checkpoint, and without
    a retry. Where cards are not measured, all replicas have to be without output and below 5 % of a core. None: never."""
    budget: Mapping[str, Any] | None = keyword(default=None, read=budget_of, spec=plain, for_all=True)
    """The hours that all jobs of the Dag may hold in a month, ``{"gpu_hours": 200, "cpu_hours": 5000}``: further ones wait for the next
    month. The newest job's counts for all. None says nothing."""
    max_restarts: int = keyword(default=3, spec=plain, for_all=True)
    """How often a gang that lost a rank starts again from its checkpoint."""
    keep: int | None = keyword(
        default=None, check=optional(check_count), spec=lambda count: count or 0, for_all=True
    )
    """How many checkpoints stay, the newest: each entry at the top of the folder of checkpoints counts as one, but links and
    names that begin with a dot. None keeps all."""
    resume_from_checkpoint: str = keyword(default="auto", check=resume_of, for_all=True)
    """What a retry, a cleared task or ``muster run --resume`` does with the checkpoints of the task's last job,
    which failed or was ended. ``auto`` goes on from them where entrypoint or command, the inputs' content,
    replicas and ranks are the same; ``always`` goes on in any case, ``never`` starts anew. A task that has
    succeeded always starts anew."""
    metric_pattern: str | None = keyword(default=None, check=optional(Pattern), spec=lambda text: text or "")
    r"""Numbers in the lines that rank 0 of a script prints for people, ``r"Epoch (?P<epoch>\d+)|accuracy: (?P<accuracy>[\d.]+)"``: a group for
    each, by name. They are progress, curves and a search's metric, as if the script had printed ``muster: epoch=3 accuracy=0.71``."""
    require_gpus: bool = keyword(default=False, check=check_flag, spec=plain, for_all=True)
    """Fail rather than run on CPUs where GPUs are missing."""


class JobOperator(FunctionOperator):
    """Run a function or a command as a job.

    The function's parameters are named after the inputs (``Path``, or ``list[Path]`` for several
    versions), outputs (``Path``, an empty folder to write) and params; it may ask for
    ``checkpoints: Path`` too, a folder that outlives a restart, a retry and ``muster run --resume``. It
    returns metrics or None.

    ``JobOperator.partial(task_id=…, …).expand(params=[{…}, {…}])`` makes a mapped task, one instance
    for each element; ``.versions["model"]`` of it is a list, in that order. What all tasks of a Dag
    share may stand in its ``default_args={"muster": {"image": …, "resources": …, "queue": …}}``.
    """

    entrypoint: str | None = keyword(default=None, templated=True)
    """``package.module:function``; the Dag's folder is the package."""
    command: Sequence[str] | None = keyword(default=None, templated=True)
    """Instead of an entrypoint, the words of a command, with ``{inputs.NAME}``, ``{outputs.NAME}``,
    ``{params.NAME}`` and ``{checkpoints}``."""
    roles: Sequence[Role] | None = keyword(default=None)
    """Instead of entrypoint, command, resources, ranks and replicas: roles that differ."""

    def check_together(self) -> None:
        """Build the spec as far as it is known, and read the commands."""
        for name, value in self.inputs.items():
            if name != CHECKPOINTS or isinstance(value, (list, tuple)):
                with self.refusing(f"inputs[{name!r:.60}]"):
                    check_whole(value)
        with self.refusing("the job"):
            draft(self)
        with self.refusing("command"):
            check_places(self)
            for words in commands_of(self):
                check_launch([word for word in words if is_known(word)], launcher_of(self.launcher))
        self.add_outlets(asset for asset in outlets_of(self.outputs) if asset not in self.outlets)

    @property
    def versions(self) -> VersionsReference:
        """References to the versions that this task commits: ``train.versions["model"]``.

        Each renders to one pinned address, or to a list of them for an output with ``partition="*"``.
        """
        return VersionsReference(self, tuple(self.outputs))

    @classmethod
    def output_names(cls, keywords: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of its outputs."""
        return tuple(keywords.get("outputs") or ())

    def images(self, backend: Backend) -> tuple[str, ...]:  # noqa: ARG002 - it is the same everywhere
        """The one image."""
        return (self.image,)

    def travelling(self, folder: DagFolder, settings: Settings | None = None) -> Code:  # noqa: ARG002 - for those beside
        """The code that goes with the job. :raises SpecError: some of it is not there, or may not go."""
        return folder.code(self.code)

    def gang(self, folder: DagFolder) -> tuple[Role, ...]:  # noqa: ARG002 - for those below
        """The roles that run, once the fields are rendered. :raises SpecError: one of them is wrong."""
        return roles_of(self)

    def check_files(self, folder: DagFolder, settings: Settings) -> None:
        """Look at the code without importing it, and whether the image has the launcher's engine."""
        with self.refusing("code"):
            code = self.travelling(folder)
        with self.refusing("entrypoint" if self.command is None else "command"):
            check_code(self, code, self.gang(folder) if is_known([self.entrypoint, self.command]) else ())
        if is_known(self.image):
            with self.refusing("image"):
                check_engine(launcher_of(self.launcher), self.image, folder, settings)

    def job_spec(self, task: TaskRun) -> JobSpec:
        """Return the job."""
        return build_spec(self, task)

    def job_draft(self, name: str) -> JobSpec:
        """Return the job with stand-ins for what is not known."""
        return replace(draft(self), name=name)

    def again(self, last: JobSpec, folder: DagFolder, store: LocalStore, settings: Settings) -> JobSpec:
        """Build the job that the Dag's files say now; what only a run tells is that of the last job."""
        return build_again(self, last, folder, store, settings)

    def perform(self, context: Context) -> dict[str, Any]:
        """Run the job, and return its id, versions and metrics."""
        from muster.airflow.attempts.run import TaskRun

        task = TaskRun.of(self, context)
        for doubt in self.doubts():
            self.warn(doubt)
        outcome = task.make(
            partial(self.job_spec, task), resume=resume_of(self.resume_from_checkpoint), wish=self.wish()
        )
        outputs: Mapping[str, Any] = self.outputs  # as :func:`read_outputs` wrote them
        many = {name for name, field in outputs.items() if field["partition"] == EVERY_PARTITION}
        return self.finish(context, task, outcome, many=many)


class GangOperator(JobOperator):
    """Run a function or a command as a gang: all replicas at once, or none.

    :class:`JobOperator` with the launcher that PyTorch's own ``torchrun`` stands for.
    """

    launcher = Launcher.TORCHRUN

    def doubts(self) -> tuple[str, ...]:
        """Doubt a gang of which nothing would show that its script gave up."""
        commands = self.entrypoint is None and not any(role.entrypoint for role in self.roles or ())
        if self.outputs or not commands:
            return ()
        doubt = (
            "it declares no output, and a command returns no metrics: a script that gives up with exit status 0 is a success; "
            "declare what it writes, outputs={'model': 'VOLUME'}"
        )
        return (doubt,)
