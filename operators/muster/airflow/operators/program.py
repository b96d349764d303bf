"""ProgramOperator: the base of the operators whose job is a program of muster's own, with one output."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from muster.airflow.authoring.references import VersionsReference
from muster.airflow.links import JobLink, VersionsLink
from muster.airflow.operators.running import QueuedOperator
from muster.core.errors import SpecError
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink

    from muster.airflow.attempts.run import TaskRun
    from muster.airflow.authoring.code import Code, DagFolder
    from muster.backends.base import Backend
    from muster.core.settings import Settings
    from muster.volumes.protocols import LocalStore


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program of muster's own.

    :param entrypoint: the function, ``muster_drift:compare``.
    :param output: the name of the one output, in ``.versions``.
    :param files: the file in the image's folder that travels alone, or the package there; empty where it lies elsewhere.
    :param does: what it does, as a message says it: ``compares``.
    :param image: the shipped image that has it.
    """

    entrypoint: str
    output: str
    files: str = ""
    does: str = ""
    image: str = ""

    def code(self, folder: DagFolder, image: str, settings: Settings) -> Code:
        """Return its files in an image. :raises SpecError: there is no such image, or it lacks them."""
        from muster.airflow.authoring.code import Code

        root = folder.image(image, settings)
        found = [root / self.files] if self.files.endswith(".py") else (root / self.files).glob("*.py")
        files = sorted(str(path.relative_to(root)) for path in found if path.is_file())
        if not files:
            raise SpecError(
                f"image {image!r} at {root} has no {self.files}, which {self.does}; take the image {self.image!r}"
            )
        return Code(root=root, files=tuple(files))


class ProgramOperator(QueuedOperator):
    """The base of the operators whose job is one process of a :class:`Program`, with one output.

    :cvar program: the program.
    """

    runs_a_job = True
    operator_extra_links: tuple[BaseOperatorLink, ...] = (JobLink(), VersionsLink())
    program: ClassVar[Program]
    image: str | None

    @property
    def versions(self) -> VersionsReference:
        """The one output."""
        return VersionsReference(self, (self.program.output,))

    @classmethod
    def output_names(cls, keywords: Mapping[str, Any]) -> tuple[str, ...]:  # noqa: ARG003 - it has one
        """The one output."""
        return (cls.program.output,)

    def images(self, backend: Backend) -> tuple[str, ...]:  # noqa: ARG002 - it is the same everywhere
        """The one image."""
        return (self.image,) if self.image else ()

    def travelling(self, folder: DagFolder, settings: Settings) -> Code:
        """The code that goes with the job. :raises SpecError: the image lacks it."""
        assert self.image is not None
        return self.program.code(folder, self.image, settings)

    def check_files(self, folder: DagFolder, settings: Settings) -> None:
        """Look for the program in the image's folder."""
        with self.refusing("image"):
            self.travelling(folder, settings)

    def job_spec(self, task: TaskRun) -> JobSpec | None:
        """Return the job; None where the task would be skipped, since it has nothing to do."""
        from airflow.sdk.exceptions import AirflowSkipException

        try:
            return self.build(task)
        except AirflowSkipException:
            return None

    def build(self, task: TaskRun) -> JobSpec:
        """Return the job.

        :raises SpecError: something is wrong. :raises NotFound: an input is not there.
        :raises AirflowSkipException: there is nothing to do.
        """
        from muster.airflow.authoring.code import DagFolder
        from muster.airflow.operators.spec import image_digest, refuse_secrets, spec_fields
        from muster.airflow.site import interpreter_of

        refuse_secrets(self)
        folder = DagFolder.of(task.context["dag"])
        own: dict[str, Any] = {"image": self.image, **self.own_fields(task)}
        image = own["image"]
        if "image_digest" not in own:
            own["image_digest"] = image_digest(image, folder, task)
        return JobSpec(
            name=task.name,
            interpreter=interpreter_of(image, task.settings),
            roles=self.roles(),
            code=self.travelling(folder, task.settings).put(task.backend.store),
            origin=task.origin,
            **own,
            **spec_fields(self),
        )

    def build_again(
        self,
        last: JobSpec,
        folder: DagFolder,
        store: LocalStore,
        settings: Settings,
        params: Mapping[str, Any],
    ) -> JobSpec:
        """Return the job that the Dag's files say now; its inputs, and an image that is not named, are those of the last job."""
        from muster.airflow.operators.spec import spec_fields
        from muster.airflow.site import interpreter_of
        from muster.images.folders import put_image

        image = self.image or last.image
        return replace(
            last,
            image=image,
            image_digest=put_image(store, folder.image(image, settings)) if self.image else last.image_digest,
            interpreter=interpreter_of(image, settings),
            roles=self.roles(),
            code=self.travelling(folder, settings).put(store),
            params=params,
            **spec_fields(self, templated=False),
        )

    def job_draft(self, name: str) -> JobSpec:
        """Return the job with stand-ins for what is not known."""
        from muster.airflow.operators.spec import STAND_IN, spec_fields

        return JobSpec(
            name=name,
            image_digest=STAND_IN.versions[0].digest,
            roles=self.roles(),
            **{"image": self.image, **self.drafted_fields()},
            **spec_fields(self, templated=False),
        )

    def roles(self) -> tuple[Role, ...]:
        """The one process."""
        return (Role(entrypoint=self.program.entrypoint, resources=self.job_resources or Resources()),)

    @abstractmethod
    def own_fields(self, task: TaskRun) -> Mapping[str, Any]:
        """Return the fields of the job that only this operator knows: inputs, outputs and params; also its image, where that is another.

        :raises AirflowSkipException: there is nothing to do.
        """

    @abstractmethod
    def drafted_fields(self) -> Mapping[str, Any]:
        """Return such fields as far as the Dag file tells them, with stand-ins for the rest."""
