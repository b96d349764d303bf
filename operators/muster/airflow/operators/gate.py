"""GateOperator: a model goes on if its figures are good enough, and no worse than what is served now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from muster.airflow.authoring.checks import (
    by_name,
    check_all,
    check_flag,
    check_image,
    check_input_name,
    check_metric,
    check_name,
    check_one,
    check_params,
    check_paths,
    check_queue,
    check_resources,
    check_share,
    check_span,
    optional,
)
from muster.airflow.authoring.keywords import refusing
from muster.airflow.authoring.pods import check_pod, pod_field
from muster.airflow.authoring.references import VersionReference, keep_types
from muster.airflow.links import JobLink
from muster.airflow.operators.base import MusterOperator
from muster.airflow.operators.champion import CHAMPION, champion_of, trained_on
from muster.airflow.operators.gating import Comparison, Threshold, decide, table
from muster.airflow.operators.scoring import Scores, score
from muster.core.errors import SpecError
from muster.core.job import Role
from muster.core.resources import Resources

if TYPE_CHECKING:
    from airflow.sdk import Context

    from muster.airflow.attempts.run import TaskRun
    from muster.airflow.authoring.code import DagFolder
    from muster.backends.base import Backend
    from muster.volumes.base import Record, Version
    from muster.volumes.protocols import LocalStore


class GateOperator(MusterOperator):
    """Let a model pass if its metrics are good enough, and stop the run if not.

    The thresholds are held against the metrics in the version's record. The champion is compared
    with on one evaluation set only: where both were evaluated on the same, their recorded metrics
    count; where not, `scorer` scores both on the candidate's. Without a champion it passes, and with
    one that was made from any of the evaluation set (a backfill's later model) it is not compared: it
    would know the answers.

    :param volume: the candidate: ``.versions["model"]`` or an address. (templated)
    :param require: rules by metric, ``{"auc": ">= 0.65, >= auc_baseline"}``: held against a number, or
        against another metric of the same model, ``"<= ece_baseline + 0.02"``; commas between several.
    :param not_worse_than: ``"champion"``, the version of the same volume that is served now, or an
        address. (templated)
    :param metric: what is compared; where not given, the one metric of `require`.
    :param tolerance: how much worse than the champion it may be.
    :param lower_is_better: for a loss. Where not given, `require` tells it by its sign.
    :param deployment: whose champion; where not given, the one that serves a version of this volume.
    :param evaluation: which input of the model's job is the evaluation set; it may have only one
        where this is not given.
    :param scorer: ``package.module:function``, called with ``model: Path`` and the evaluation set
        under its own name; returns the metrics.
    :param params: further parameters of the scorer.
    :param image: the scorer's environment; the model's own where not given.
    :param queue: where the scorer waits, `priority` its place there, and `pod_override` (templated) what is
        merged over its pod: as of a ``JobOperator``.
    """

    template_fields: Sequence[str] = ("volume", "not_worse_than", "job_params", "pod_override")
    ui_color = "#fef7e0"
    own: ClassVar[Mapping[str, Any]] = {"image": None}
    operator_extra_links = (JobLink(),)

    def __init__(
        self,
        *,
        volume: str | VersionReference,
        require: Mapping[str, str] | None = None,
        not_worse_than: str | VersionReference | None = None,
        metric: str | None = None,
        tolerance: float = 0.0,
        lower_is_better: bool | None = None,
        deployment: str | None = None,
        evaluation: str | None = None,
        scorer: str | None = None,
        job_params: Mapping[str, Any] | None = None,
        image: str | None = None,
        code: str | Sequence[str] = (),
        resources: Resources | None = None,
        run_timeout: timedelta = timedelta(hours=1),
        queue: str | None = None,
        priority: str | None = None,
        pod_override: Any = None,
        **kwargs: Any,
    ) -> None:
        self.volume = volume
        task_id = kwargs.get("task_id", "")
        self.require = by_name(task_id, "require", require)
        self.not_worse_than = not_worse_than
        self.metric = metric
        self.tolerance = tolerance
        self.lower_is_better = lower_is_better
        self.deployment = deployment
        self.evaluation = evaluation
        self.scorer = scorer
        self.job_params = keep_types(by_name(task_id, "params", job_params))
        self.image = image
        with refusing(task_id, "code"):
            self.code = check_paths(code)
        self.job_resources = Resources() if resources is None else resources
        self.run_timeout = run_timeout
        self.job_queue = queue
        self.priority = priority
        self.pod_override = pod_field(task_id, pod_override)
        super().__init__(**kwargs)
        self._check()

    @property
    def passed(self) -> VersionReference:
        """The model, for those that need it to have passed."""
        return VersionReference(self, path=("passed",))

    def images(self) -> tuple[str, ...]:
        """The scorer's, where it is named here; a model's own was built before it was trained."""
        return (self.image,) if self.image and self.scorer else ()

    def check_ready(self, folder: DagFolder, backend: Backend) -> None:  # noqa: ARG002 - nothing to ask it
        """Look at the scorer without importing it."""
        from muster.airflow.authoring.entrypoints import check_entrypoint

        if self.scorer and self.evaluation:
            with self.refusing("scorer"):
                inputs = ("model", self.evaluation)
                check_entrypoint(
                    self.scorer, folder.code(self.code), inputs=inputs, outputs=(), params=self.job_params
                )

    def changed_since(self, result: Mapping[str, Any], folder: DagFolder, store: LocalStore) -> str:
        """Name the files that the scorer imported and that read differently now, where it scored."""
        from muster.airflow.authoring.code import differing

        job_id = result.get("scored")
        if job_id not in store.ledger.jobs():  # none was needed, or gc took it
            return ""
        told = store.ledger.status(job_id).result
        return differing(
            store.ledger.spec(job_id).code, told.modules if told else None, folder.code(self.code), store
        )

    def perform(self, context: Context) -> dict[str, Any]:
        """Judge the candidate."""
        from airflow.sdk.exceptions import AirflowFailException

        from muster.airflow.attempts.run import TaskRun

        task = TaskRun.of(self, context)
        candidate = _one(task, self.volume)
        record = task.backend.store.record(candidate.address)
        champion = self._champion(task, candidate)
        comparison, scored = self._compare(task, record, champion) if champion else (None, None)
        checks = decide(self._thresholds(), record.metrics, comparison)
        self._say(candidate, champion if comparison else None, table(checks))
        failed = [line for check, line in zip(checks, table(checks), strict=True) if not check.holds]
        if failed:
            raise AirflowFailException(
                f"gate closed: {candidate.address}\n{'; '.join(' '.join(line.split()) for line in failed)}\n"
                f"train a better model, or change the gate's rules\n"
                f"where it comes from: muster volumes log {candidate.address}"
            )
        return {
            "passed": candidate.address,
            "champion": champion.address if champion else None,
            "scored": scored,
            "versions": {},
            "metrics": {check.metric: check.found for check in checks},
        }

    def _check(self) -> None:
        check_all(
            self,
            volume=check_one,
            not_worse_than=optional(_check_other),
            metric=optional(check_metric),
            tolerance=check_share,
            lower_is_better=optional(check_flag),
            deployment=optional(check_name),
            evaluation=optional(check_input_name),
            scorer=optional(_check_scorer),
            params=check_params,
            image=optional(check_image),
            resources=check_resources,
            run_timeout=check_span,
            queue=optional(check_queue),
            priority=optional(check_queue),
            pod_override=check_pod,
        )
        with self.refusing("require"):
            self._thresholds()
        if self.not_worse_than is None:
            if not self.require:
                raise SpecError(f"task {self.task_id!r}: a gate needs require, not_worse_than, or both")
        else:
            with self.refusing("metric"):
                self._metric()

    def _thresholds(self) -> tuple[Threshold, ...]:
        return tuple(
            each for metric, rules in self.require.items() for each in Threshold.parse(metric, rules)
        )

    def _metric(self) -> str:
        if self.metric is not None:
            return self.metric
        if len(self.require) != 1:
            raise SpecError("say which metric is compared with the champion's: metric='auc'")
        return next(iter(self.require))

    def _higher_is_better(self) -> bool:
        if self.lower_is_better is not None:
            return not self.lower_is_better
        rules = [each for each in self._thresholds() if each.metric == self._metric()]
        return rules[0].higher_is_better if rules else True

    def _champion(self, task: TaskRun, candidate: Version) -> Version | None:
        if self.not_worse_than is None:
            return None
        if self.not_worse_than != CHAMPION:
            return _one(task, self.not_worse_than)
        served = champion_of(task.backend.deployments, candidate.volume, deployment=self.deployment)
        return _one(task, served.address) if served else None

    def _compare(
        self, task: TaskRun, record: Record, champion: Version
    ) -> tuple[Comparison | None, str | None]:
        """Return what the champion is compared by, and the job that scored it, where one had to."""
        if champion.address == f"volume://{record.volume}@{record.number}":
            return None, None  # it is the champion itself: a run that goes on after its deployment
        name = self._evaluation(record)
        then = task.backend.store.record(champion.address)
        seen = trained_on(then, record.inputs[name], evaluation=name)
        if seen:
            self.log.info(
                "not compared with the champion %s: it was made from %s, which is in the candidate's %s",
                champion.address,
                ", ".join(seen),
                name,
            )
            return None, None
        ours, theirs = record.inputs[name], then.inputs.get(name, ())
        if [each.digest for each in ours] == [each.digest for each in theirs]:
            scores = Scores(candidate=record.metrics, champion=then.metrics)
        else:
            scores = score(self, task, candidate=record, champion=champion, evaluation=name)
        comparison = Comparison(
            metric=self._metric(),
            candidate=scores.candidate,
            champion=scores.champion,
            higher_is_better=self._higher_is_better(),
            tolerance=self.tolerance,
        )
        return comparison, scores.job_id

    def _evaluation(self, record: Record) -> str:
        names = sorted(record.inputs)
        if self.evaluation is None and len(names) == 1:
            return names[0]
        if self.evaluation not in names:
            raise SpecError(
                f"evaluation is {self.evaluation!r}: say which input of {record.job_name or 'the model'} is the "
                f"evaluation set; its inputs are {', '.join(names) or 'none'}"
            )
        return self.evaluation

    def _say(self, candidate: Version, champion: Version | None, lines: Sequence[str]) -> None:
        against = (
            f", against the champion {champion.address}" if champion else ", no champion to compare with"
        )
        self.log.info("gate for %s%s", candidate.address, against if self.not_worse_than else "")
        for line in lines:
            self.log.info("%s", line)


def _check_other(value: Any) -> None:
    if value != CHAMPION:
        check_one(value)


def _check_scorer(value: Any) -> None:
    Role(entrypoint=value)


def _one(task: TaskRun, address: Any) -> Version:
    versions = task.backend.store.resolve(address) if isinstance(address, str) else ()
    if len(versions) != 1:
        raise SpecError(f"{address!r:.120} names {len(versions)} versions; a gate judges one model")
    return versions[0]
