"""ScoreOperator: the model that is served, on rows of versions, to a version of predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from muster.airflow.assets import DEPLOYMENT, outlets_of
from muster.airflow.attempts.resuming import resume_of
from muster.airflow.authoring.checks import (
    check_among,
    check_count,
    check_image,
    check_name,
    check_one,
    check_some,
    check_trusted,
    optional,
    rule,
)
from muster.airflow.authoring.keywords import keyword
from muster.airflow.authoring.references import VersionReference, is_known
from muster.airflow.authoring.values import known_output, outputs_of, read_outputs
from muster.airflow.operators.program import Program, ProgramOperator
from muster.airflow.operators.releasing import admit_deployment
from muster.airflow.operators.running import CachedOperator
from muster.core.data import Input
from muster.core.deployment import needs_workers
from muster.core.errors import NotFound, SpecError
from muster.core.job import JobSpec
from muster.core.shipped import SERVE

if TYPE_CHECKING:
    from airflow.sdk import Context

    from muster.airflow.attempts.run import TaskRun
    from muster.airflow.authoring.code import Code, DagFolder
    from muster.airflow.authoring.values import Output
    from muster.backends.base import Backend
    from muster.core.settings import Settings
    from muster.volumes.protocols import LocalStore

ENTRYPOINT = "muster_serving.scoring:score"
OUTPUT = "predictions"
_ANSWERING = ("workers", "cpus", "trusted")  # what of a worker's setup its answers depend on

check_names = rule(
    lambda value: isinstance(value, (list, tuple)) and all(isinstance(name, str) and name for name in value),
    "a list of columns, such as ['flight_id']",
)


def _check_model(value: Any) -> None:
    """Refuse what names neither one version nor a deployment."""
    if isinstance(value, str) and value.startswith(DEPLOYMENT):
        check_name(value.removeprefix(DEPLOYMENT))
    else:
        check_one(value)


def _read_output(value: Any) -> Any:
    return read_outputs({OUTPUT: value})[OUTPUT]


@dataclass(frozen=True, kw_only=True)
class _Served:
    """A model, and the image that computes its predictions; an empty digest is that of the image as it is now.

    :param setup: what a worker of a model that is no ONNX model is told of its deployment; None for an ONNX model.
    """

    model: Input
    image: str
    image_digest: str = ""
    setup: Mapping[str, Any] | None = None


class ScoreOperator(CachedOperator, ProgramOperator):
    """Score the rows of Parquet and CSV files with a model as its endpoint does, and commit the predictions.

    The model is loaded, and each value checked, by the code that serves it, in the image that it is computed in: the model server's for an
    ONNX model, the author's for any other, which then needs pyarrow beside the model's libraries. The predictions are Parquet files in the order of the rows,
    with the model's outputs and the columns of `keep`. A row that the endpoint would refuse fails the task, and is named, unless
    `bad_rows` leaves it out.

    The rows are cut into `shards`, each a process of its own. One that is killed is done again, alone, and a retry of the task does only
    the shards that are not finished.

    :ivar versions: The output ``predictions``.
    """

    program = Program(entrypoint=ENTRYPOINT, output=OUTPUT)
    ui_color = "#e4f7fb"

    model: str | VersionReference = keyword(check=_check_model, templated=True, reads=True)
    """``"deployment://flights"``, the version that answers now, in the image that computes it; or a version:
    ``.versions["model"]`` or an address."""
    rows: str | VersionReference | Sequence[str | VersionReference] = keyword(
        check=check_some, templated=True, reads=True
    )
    """The version, or versions, whose Parquet and CSV files are scored. They need a column for each input of the model; others are ignored."""
    outputs: str | Output = keyword(read=_read_output, check=known_output, templated=True)
    """The volume of the predictions, or an ``Output`` with a partition; without one, that of the rows where they have one in common."""
    shards: int = keyword(default=1, check=check_count)
    """How many parts the rows are cut into; as many run at once as there are `resources.cpus`. A CSV file is not cut."""
    keep: Sequence[str] = keyword(default=(), check=check_names)
    """Columns of the rows to write beside the outputs, such as a key."""
    rows_at_once: int | None = keyword(default=None, check=optional(check_count))
    """How many rows one call of the model gets; the most that its signature allows where not given."""
    image: str | None = keyword(default=None, check=optional(check_image), own=True, late=True)
    """The environment that computes the predictions. Where not given, that of the deployment; for a version ``serve`` if it is an ONNX
    model, else that of the job that made it."""
    bad_rows: str = keyword(default="fail", check=check_among(("fail", "skip")))
    """What a row that the endpoint would refuse, or fail on, does: ``"fail"`` the task, or ``"skip"``: it is left out, and written with its
    file, number and error beside the predictions (``*.bad-rows.jsonl``); the metric ``bad_rows`` counts them. Where no row can be scored the task fails."""
    trusted: Sequence[str] = keyword(default=(), check=check_trusted)
    """What a version that is no ONNX model may load though loading it can run code: ``["pickle"]``, ``["torch.export"]``, or the types in a skops file. A
    deployment has said so itself."""

    def check_together(self) -> None:
        """Announce the asset of the predictions."""
        if self.trusted and is_known(self.model) and str(self.model).startswith(DEPLOYMENT):
            with self.refusing("trusted"):
                raise SpecError(
                    f"{self.model} has its own: what it trusts is loaded here, too, and nothing else"
                )
        self.add_outlets(asset for asset in outlets_of({OUTPUT: self.outputs}) if asset not in self.outlets)

    def images(self, backend: Backend) -> tuple[str, ...]:  # noqa: ARG002 - it is the same everywhere
        """The one that is known before the task runs, if any."""
        if self.image is None and is_known(self.model) and str(self.model).startswith(DEPLOYMENT):
            return ()
        return (self.image or SERVE,)

    def travelling(self, folder: DagFolder, settings: Settings) -> Code:  # noqa: ARG002 - it lies in no image
        """The code that scores: the model server's."""
        from muster.airflow.authoring.code import serving_code

        return serving_code()

    def check_files(self, folder: DagFolder, settings: Settings) -> None:
        """Look for nothing: the code that scores lies in no image."""

    def perform(self, context: Context) -> dict[str, Any]:
        """Score, and return the version of the predictions."""
        from muster.airflow.attempts.run import TaskRun

        task = TaskRun.of(self, context)
        if str(self.model).startswith(DEPLOYMENT):
            admit_deployment(task, str(self.model).removeprefix(DEPLOYMENT))
        outcome = task.make(partial(self.build, task), resume=resume_of("auto"), wish=self.wish())
        return self.finish(context, task, outcome)

    def own_fields(self, task: TaskRun) -> dict[str, Any]:
        """Score the rows in the image that computes the model's predictions."""
        from muster.airflow.operators.spec import pin

        rows = replace(pin(task.backend.store, "rows", self.rows), many=True)
        served = self._served(task)
        image = self.image or served.image
        known = image == served.image and served.image_digest
        return {
            "image": image,
            **({"image_digest": served.image_digest} if known else {}),
            "inputs": {"model": served.model, "rows": rows},
            "outputs": self._outputs(rows),
            "params": self._params(served.setup),
        }

    def drafted_fields(self) -> dict[str, Any]:
        """Score rows and a model that are not known yet."""
        from muster.airflow.operators.spec import STAND_IN

        return {
            "image": self.image or SERVE,
            "inputs": {"model": STAND_IN, "rows": STAND_IN},
            "outputs": {OUTPUT: known_output(self.outputs)},
        }

    def again(self, last: JobSpec, folder: DagFolder, store: LocalStore, settings: Settings) -> JobSpec:
        """Build the job that the Dag's files say now; model, rows and image are those of the last job."""
        setup = last.params.get("setup")
        if setup is not None and not str(self.model).startswith(DEPLOYMENT):
            setup = self._setup()  # of a version this task says what is trusted, of a deployment its spec did
        return self.build_again(last, folder, store, settings, self._params(setup))

    def _setup(self) -> dict[str, Any]:
        return {"trusted": list(self.trusted)}

    def _served(self, task: TaskRun) -> _Served:
        from muster.airflow.operators.spec import pin

        store = task.backend.store
        if not str(self.model).startswith(DEPLOYMENT):
            model = pin(store, "model", self.model)
            return self._of_version(store, model, model.versions[0].address)
        name = str(self.model).removeprefix(DEPLOYMENT)
        spec = task.backend.deployments.champion(name)
        runs, told = spec.workers or spec, spec.worker_setup()
        if told and told.get("stream"):
            raise SpecError(
                f"{self.model} answers in parts, whose rows are not those of a request: it cannot be scored"
            )
        # The images with KServe's and Seldon's SDK have no pyarrow; the model is computed by the same code in serve.
        if spec.workers is None and spec.image == spec.server != SERVE:
            return _Served(model=Input(versions=(spec.model,)), image=SERVE)
        if self.image is None and not store.holds(runs.image_digest):
            raise NotFound(
                f"{self.model} is computed in image {runs.image!r}, whose lock the store no longer has: deploy it again, or name an image"
            )
        self.log.info("%s answers with %s", self.model, spec.model.address)
        return _Served(
            model=Input(versions=(spec.model,)),
            image=runs.image,
            image_digest=runs.image_digest,
            setup=told and {word: told[word] for word in _ANSWERING},
        )

    def _of_version(self, store: LocalStore, model: Input, address: str) -> _Served:
        """Return a version as a deployment of it would be set up where its Dag says nothing more."""
        if not needs_workers(name for name, _ in store.manifest(address).names()):
            if self.trusted:
                raise SpecError(f"{address} is an ONNX model, which loads no code: trusted is for any other")
            return _Served(model=model, image=SERVE)
        record = store.record(address)
        if not (self.image or record.image):
            raise SpecError(f"{address} was made by no job: name the model's environment, image=…")
        return _Served(model=model, image=record.image, image_digest=record.image_digest, setup=self._setup())

    def _outputs(self, rows: Input) -> dict[str, Any]:
        field: Any = self.outputs  # as :func:`read_outputs` wrote it
        (output,) = outputs_of({OUTPUT: field}).values()
        partitions = {version.partition for version in rows.versions}
        if output.partition is None and len(partitions) == 1:
            output = replace(output, partition=partitions.pop())
        return {OUTPUT: output}

    def _params(self, setup: Mapping[str, Any] | None) -> dict[str, Any]:
        return {
            "shards": self.shards,
            "processes": max(int(self.roles()[0].resources.cpus), 1),
            "keep": list(self.keep),
            "rows_at_once": self.rows_at_once,
            **({} if self.bad_rows == "fail" else {"bad_rows": self.bad_rows}),
            **({} if setup is None else {"setup": dict(setup)}),
        }
