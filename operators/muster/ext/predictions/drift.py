"""DriftOperator: a window of predictions beside the rows that their model was trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from muster.airflow.assets import announce, announce_nothing, asset_of
from muster.airflow.authoring.checks import (
    check_image,
    check_input_name,
    check_name,
    check_some,
    check_span,
    if_known,
    optional,
    rule,
)
from muster.airflow.authoring.keywords import keyword
from muster.airflow.authoring.references import VersionReference, is_known
from muster.airflow.links import JobLink, ReportLink, VersionsLink
from muster.airflow.operators.program import Program, ProgramOperator
from muster.airflow.operators.releasing import admit_deployment
from muster.airflow.operators.running import report, summary
from muster.core.data import Input, OutputTarget, Pinned
from muster.core.errors import NotFound, SpecError
from muster.core.names import check_volume
from muster.core.prediction import hour_of, predictions_volume
from muster.ext.predictions.score import check_names

if TYPE_CHECKING:
    from airflow.sdk import Context

    from muster.airflow.attempts.run import TaskRun
    from muster.volumes.protocols import LocalStore

OUTPUT = "report"


@dataclass(frozen=True, kw_only=True)
class DriftLimits:
    """A column has drifted where one measure is above its limit, and above what chance explains at `false_alarms`.

    The formulas, with their sources, are in ``docs/howto/drift.md``.

    :param psi: the population stability index, 0 for equal distributions.
    :param ks: the two-sample Kolmogorov-Smirnov distance, 0 to 1, of numbers.
    :param unseen: the share of values that the reference has not, of texts and of numbers with few values.
    :param nulls: how much greater the share of nulls is than the reference's.
    :param false_alarms: the share of windows without a shift in which chance may call any column drifted.
    :param fewest_rows: a window with fewer rows is not judged.
    """

    psi: float = 0.1
    ks: float = 0.1
    unseen: float = 0.01
    nulls: float = 0.01
    false_alarms: float = 0.001
    fewest_rows: int = 500

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise SpecError(f"{each.name} is {value!r:.40}: need a number from 0 on")
        for name in ("ks", "unseen", "nulls"):
            if getattr(self, name) > 1:
                raise SpecError(f"{name} is {getattr(self, name)!r}: need a share, 0 to 1")
        if not 0 < self.false_alarms < 1:
            raise SpecError(f"false_alarms is {self.false_alarms!r}: need a share, above 0 and below 1")
        if type(self.fewest_rows) is not int or self.fewest_rows < 1:
            raise SpecError(f"fewest_rows is {self.fewest_rows!r}: need a whole number, 1 or more")


_check_limits = rule(lambda value: isinstance(value, DriftLimits), "a DriftLimits(psi=…, ks=…)")


def _moment(value: Any) -> datetime:
    """Read a time, which is UTC where it names no zone. :raises SpecError: it is none."""
    try:
        at = datetime.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{value!r:.60}: expected a time such as 2026-11-26T07:00:00+00:00") from error
    return at if at.tzinfo else at.replace(tzinfo=timezone.utc)


class DriftOperator(ProgramOperator):
    """Compare what a deployment was asked in a window of time with the rows that its model was trained on.

    The report, with a picture of each column, is committed as a version of `report_volume`, whose metrics a GateOperator can ask:
    ``drifted`` (columns), ``psi``, ``ks``, ``unseen`` and ``nulls`` (the greatest of all columns), ``not_judged`` (columns), ``rows``. Drift fails nothing: the
    asset of the report's volume has an event only where a column has drifted, so a Dag that is scheduled by it retrains then.

    A window with too few rows to be judged, or none, skips the task, and says how many there were.

    :ivar versions: The output ``report``.
    """

    program = Program(
        entrypoint="muster_drift:compare",
        output=OUTPUT,
        files="muster_drift.py",
        does="compares",
        image="validate",
    )
    ui_color = "#f3e8fd"
    operator_extra_links = (JobLink(), VersionsLink(), ReportLink())

    deployment: str = keyword(check=check_name, templated=True)
    """The deployment, which keeps its requests: ``DeployOperator(log=RequestLog(…))``."""
    window: timedelta = keyword(default=timedelta(days=1), check=check_span)
    """How far back the window goes from `until`."""
    until: str | None = keyword(default=None, check=optional(if_known(_moment)), templated=True)
    """When the window ends, as ISO 8601 tells it, ``"{{ data_interval_end }}"``; now where not given."""
    revision: str | None = keyword(default=None, check=optional(check_name), templated=True)
    """Only what this revision answered, such as ``r7``; all that answered where not given."""
    reference: str | VersionReference | Sequence[str | VersionReference] | None = keyword(
        default=None, check=optional(check_some), templated=True, reads=True
    )
    """The version, or versions, to compare with; where not given, what the model that serves was trained on."""
    training: str = keyword(default="train", check=check_input_name)
    """The input of the model's job that is meant by that; a job with one input needs no name."""
    columns: Sequence[str] | None = keyword(default=None, check=optional(check_names))
    """The model's inputs to compare; all that the reference has where not given."""
    limits: DriftLimits = keyword(default=DriftLimits(), check=_check_limits)
    """What counts as drift."""
    report_volume: str | None = keyword(default=None, check=optional(check_volume))
    """Where the report goes; ``NAME/drift`` where not given."""
    image: str = keyword(default="validate", check=check_image, own=True, late=True)
    """The environment with DuckDB and ``muster_drift.py`` in it."""
    run_timeout = timedelta(hours=1)

    def check_together(self) -> None:
        """Name the asset of the report's volume."""
        if is_known(self.report_volume or self.deployment):
            with self.refusing("report_volume"):
                check_volume(self._volume)
            if (asset := asset_of(self._volume)) not in self.outlets:
                self.add_outlets([asset])

    def perform(self, context: Context) -> dict[str, Any]:
        """Compare, and announce the report where a column has drifted."""
        from airflow.sdk.exceptions import AirflowSkipException

        from muster.airflow.attempts.run import TaskRun

        self.check_keywords()  # they are rendered by now
        task = TaskRun.of(self, context)
        admit_deployment(task, self.deployment)
        self.commit_requests(task)
        status = task.make(partial(self.build, task), wish=None).status
        result = summary(status)
        report(self.log, result)
        metrics = result["metrics"]
        if not metrics["columns"]:
            announce_nothing(context)
            raise AirflowSkipException(
                f"{self._about(status.job_id, task)} has {metrics['rows']:g} rows, and {self.limits.fewest_rows} are needed "
                f"to judge: nothing is known. The report is {result['versions'][OUTPUT]}"
            )
        if metrics["drifted"]:
            self.warn(
                f"{metrics['drifted']:g} of {metrics['columns'] - metrics['not_judged']:g} columns have drifted: "
                f"{result['versions'][OUTPUT]}"
            )
            announce(context, task.backend.store, status)
        else:
            announce_nothing(context)
        return result

    def own_fields(self, task: TaskRun) -> dict[str, Any]:
        """Compare the window's partitions with the reference."""
        store, end = task.backend.store, self._ends()
        begin = end - self.window.total_seconds()
        return {
            "inputs": {
                "predictions": Input(versions=self._predictions(store, begin, end), many=True),
                "reference": Input(versions=self._reference(task), many=True),
            },
            "outputs": {OUTPUT: OutputTarget(volume=self._volume)},
            "params": {
                "title": self.deployment,
                "begin": begin,
                "end": end,
                "revision": self.revision,
                "columns": list(self.columns) if self.columns else None,
                "limits": asdict(self.limits),
            },
        }

    def drafted_fields(self) -> dict[str, Any]:
        """Compare versions that are not known yet."""
        from muster.airflow.operators.spec import STAND_IN

        return {"inputs": {"predictions": STAND_IN, "reference": STAND_IN}}

    @property
    def _volume(self) -> str:
        return self.report_volume or f"{self.deployment}/drift"

    def commit_requests(self, task: TaskRun) -> None:
        """Commit what the deployment's servers on this machine have answered until now."""
        from muster.backends.request_log import NotRetired, Predictions

        predictions = Predictions(task.settings, task.backend.store)
        try:
            predictions.commit_answered(self.deployment, progress=self.log.info)
        except NotRetired as error:  # what is compared is there
            self.log.warning("%s", error)

    def _ends(self) -> float:
        if not self.until:
            return datetime.now(tz=timezone.utc).timestamp()
        with self.refusing("until"):
            return _moment(self.until).timestamp()

    def _predictions(self, store: LocalStore, begin: float, end: float) -> tuple[Pinned, ...]:
        """The partitions of the window. :raises AirflowSkipException: there are none."""
        from airflow.sdk.exceptions import AirflowSkipException

        volume, last = predictions_volume(self.deployment), hour_of(math.nextafter(end, begin))
        try:
            found = store.resolve(f"volume://{volume}@>={hour_of(begin)},<={last}")
        except NotFound:
            found = ()
        if not found:
            raise AirflowSkipException(
                f"no request of {self.deployment} was kept from {hour_of(begin)} to {last} (UTC): nothing is known. It is served with "
                f"log=RequestLog(…) where there are some; muster volumes ls shows {volume}"
            )
        return tuple(version.pinned for version in found)

    def _reference(self, task: TaskRun) -> tuple[Pinned, ...]:
        from muster.airflow.operators.spec import pin

        if self.reference is not None:
            return pin(task.backend.store, "reference", self.reference).versions
        model = task.backend.deployments.champion(self.deployment).model
        inputs = task.backend.store.record(model.address).inputs
        name = next(iter(inputs)) if len(inputs) == 1 else self.training
        if not inputs.get(name):
            raise SpecError(
                f"{model.address} was not made from an input {name!r} ({', '.join(inputs) or 'it has none'}): say with training= which one, "
                "or with reference= which versions it was trained on"
            )
        return tuple(inputs[name])

    def _about(self, job_id: str, task: TaskRun) -> str:
        params = task.backend.store.ledger.spec(job_id).params
        begin, end = (datetime.fromtimestamp(params[word], timezone.utc) for word in ("begin", "end"))
        whose = self.deployment if self.revision is None else f"{self.deployment}, revision {self.revision},"
        return f"the window of {whose} from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC"
