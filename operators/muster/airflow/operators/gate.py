"""GateOperator: a model passes if its metrics are good enough, and no worse than those of the served one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from muster.airflow.authoring.checks import (
    check_flag,
    check_image,
    check_input_name,
    check_metric,
    check_name,
    check_one,
    check_share,
    optional,
)
from muster.airflow.authoring.keywords import keyword
from muster.airflow.authoring.references import VersionReference, is_known, texts_in
from muster.airflow.authoring.values import by_name
from muster.airflow.links import CandidateLink, ChampionLink, JobLink, returned
from muster.airflow.operators.gating import ChampionComparison, Threshold, decide, table
from muster.airflow.operators.releasing import admit_deployment, one_version
from muster.airflow.operators.running import CodeOperator
from muster.core.address import Address, shown
from muster.core.comparison import files_changed
from muster.core.data import Input, Pinned
from muster.core.errors import NotFound, SpecError
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources

if TYPE_CHECKING:
    from airflow.sdk import Context

    from muster.airflow.attempts.run import TaskRun
    from muster.airflow.authoring.code import DagFolder
    from muster.airflow.lineage import Lineage, TaskLineage
    from muster.backends.base import Backend
    from muster.backends.releases.deployments import Deployments
    from muster.core.settings import Settings
    from muster.volumes.base import Record, Version
    from muster.volumes.protocols import LocalStore

CHAMPION = "champion"


def _check_other(value: Any) -> None:
    if value != CHAMPION:
        check_one(value)


def _check_scorer(value: Any) -> None:
    Role(entrypoint=value)


class GateOperator(CodeOperator):
    """Let a model pass if its metrics are good enough, and stop the run if not.

    The thresholds are compared with the metrics in the version's record. Candidate and champion are compared on one
    evaluation set. If both were evaluated on the same set, their recorded metrics count; else `scorer` scores both on
    the candidate's set. The comparison is left out where there is no champion, and where the champion was
    trained on a part of the evaluation set, as a later model is in a backfill.
    """

    ui_color = "#fef7e0"
    operator_extra_links = (CandidateLink(), ChampionLink(), JobLink())

    volume: str | VersionReference = keyword(check=check_one, templated=True, reads=True)
    """The candidate: ``.versions["model"]`` or an address."""
    require: Mapping[str, str] = keyword(default=None, read=by_name, templated=True)
    """Rules by metric, ``{"auc": ">= 0.65, >= auc_baseline"}``: held against a number, or against another metric of
    the same model, ``"<= ece_baseline + 0.02"``; commas between several; ``">= {{ params.least }}"`` is filled in by the run."""
    not_worse_than: str | VersionReference | None = keyword(
        default=None,
        check=optional(_check_other),
        templated=True,
        reads=lambda value: None if value == CHAMPION else value,
    )
    """``"champion"``, the version of the same volume that is served now, or an address."""
    metric: str | None = keyword(default=None, check=optional(check_metric))
    """The metric to compare by; where not given, the one metric of `require`."""
    tolerance: float = keyword(default=0.0, check=check_share)
    """How much worse than the champion the model may be."""
    lower_is_better: bool | None = keyword(default=None, check=optional(check_flag))
    """True for a loss. Where not given, the sign in `require` decides."""
    deployment: str | None = keyword(default=None, check=optional(check_name))
    """The deployment whose champion is meant; where not given, the one that serves a version of this volume."""
    evaluation: str | None = keyword(default=None, check=optional(check_input_name))
    """The input of the model's job that is the evaluation set; it may have only one where this is not given."""
    scorer: str | None = keyword(default=None, check=optional(_check_scorer))
    """``package.module:function``, called with ``model: Path`` and the evaluation set under its own name, and with
    `params`; returns the metrics."""
    image: str | None = keyword(default=None, check=optional(check_image), own=True, late=True)
    """The scorer's environment; the model's own where not given."""
    run_timeout = timedelta(hours=1)

    def check_together(self) -> None:
        """Read the rules, and find the metric to compare by."""
        with self.refusing("require"):
            self._thresholds({metric: rules for metric, rules in self.require.items() if is_known(rules)})
        if self.not_worse_than is None:
            if not self.require:
                raise SpecError(f"task {self.task_id!r}: a gate needs require, not_worse_than, or both")
        else:
            with self.refusing("metric"):
                self._metric()

    @property
    def passed(self) -> VersionReference:
        """The model, for tasks that need it to have passed."""
        return VersionReference(self, path=("passed",))

    def images(self, backend: Backend) -> tuple[str, ...]:  # noqa: ARG002 - it is the same everywhere
        """The scorer's, where it is named here; a model's own was built before it was trained."""
        return (self.image,) if self.image and self.scorer else ()

    def check_files(self, folder: DagFolder, settings: Settings) -> None:  # noqa: ARG002 - it needs no image
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
        return files_changed(
            differing(
                store.ledger.spec(job_id).code, told.modules if told else None, folder.code(self.code), store
            )
        )

    def perform(self, context: Context) -> dict[str, Any]:
        """Judge the candidate."""
        from airflow.sdk.exceptions import AirflowFailException

        from muster.airflow.attempts.run import TaskRun

        task = TaskRun.of(self, context)
        if self.deployment:
            admit_deployment(task, self.deployment)
        candidate = _one(task, self.volume)
        CandidateLink.push(context["ti"], f"#/volumes/{shown([candidate.address])}")
        record = task.backend.store.record(candidate.address)
        champion = self._champion(task, candidate)
        if champion and champion.address != candidate.address:
            both = f"{shown([champion.address])},{shown([candidate.address])}"
            ChampionLink.push(context["ti"], f"#/compare?v={both}")
        comparison, scored = self._compare(task, record, champion) if champion else (None, None)
        with self.refusing("require"):
            thresholds = self._thresholds(self.require)
        checks = decide(thresholds, record.metrics, comparison)
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

    def told(self, result: Mapping[str, Any]) -> str:
        """Say what passed, with what it was judged by."""
        metrics = ", ".join(f"{name} {value:g}" for name, value in result["metrics"].items())
        return f"{shown([result['passed']])} passed: {metrics}"

    def task_lineage(self, lineage: Lineage, ti: Any) -> TaskLineage:
        """Describe what was judged, and the champion that it was held against; a gate writes nothing."""
        judged = returned(ti)
        versions = [judged[word] for word in ("passed", "champion") if judged.get(word)]
        return lineage.of_read(versions or texts_in(self.volume))

    def _thresholds(self, require: Mapping[str, str]) -> tuple[Threshold, ...]:
        return tuple(each for metric, rules in require.items() for each in Threshold.parse(metric, rules))

    def _metric(self) -> str:
        if self.metric is not None:
            return self.metric
        if len(self.require) != 1:
            raise SpecError("say which metric is compared with the champion's: metric='auc'")
        return next(iter(self.require))

    def _higher_is_better(self) -> bool:
        if self.lower_is_better is not None:
            return not self.lower_is_better
        rules = [each for each in self._thresholds(self.require) if each.metric == self._metric()]
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
    ) -> tuple[ChampionComparison | None, str | None]:
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
        comparison = ChampionComparison(
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


def _one(task: TaskRun, address: Any) -> Version:
    return one_version(task.backend.store, address, rule="a gate judges one model")


def champion_of(deployments: Deployments, volume: str, *, deployment: str | None) -> Pinned | None:
    """The version that is served now: by one deployment, or by the one that serves this volume.

    :raises SpecError: several deployments serve it, each another version.
    """
    names = [deployment] if deployment else deployments.names()
    served: dict[str, Pinned] = {}
    for name in names:
        try:
            champion = deployments.deployment(name).champion
        except NotFound:
            continue
        if champion is not None and (deployment or Address.parse(champion.model.address).volume == volume):
            served[name] = champion.model
    if len({model.address for model in served.values()}) > 1:
        raise SpecError(
            f"{volume} is served by {', '.join(sorted(served))}: say with deployment= whose is meant"
        )
    return next(iter(served.values()), None)


def trained_on(champion: Record, evaluation_set: Sequence[Pinned], *, evaluation: str) -> list[str]:
    """The versions of an evaluation set that a champion was made from, other than to be evaluated on."""
    others = (versions for name, versions in champion.inputs.items() if name != evaluation)
    known = {pinned.digest for versions in others for pinned in versions}
    return [pinned.address for pinned in evaluation_set if pinned.digest in known]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """The metrics of both models on one evaluation set.

    :param job_id: the last job that scored; None where the metrics are the recorded ones.
    """

    candidate: Mapping[str, float]
    champion: Mapping[str, float]
    job_id: str | None = None


def score(
    gate: GateOperator, task: TaskRun, *, candidate: Record, champion: Version, evaluation: str
) -> Scores:
    """Have the gate's scorer score both on the candidate's evaluation set.

    :param evaluation: which input of the candidate's job is the evaluation set.
    :raises SpecError: the gate has no scorer, or a secret is in its params.
    :raises AirflowException: a job's verdict, as of :meth:`TaskRun.run`.
    """
    from muster.airflow.attempts.run import STATE_KEY

    if gate.scorer is None:
        raise SpecError(
            f"the champion {champion.address} was evaluated on another set than the candidate: "
            "name a scorer, which then scores both on the candidate's"
        )
    address = f"volume://{candidate.volume}@{candidate.number}"
    ours, metrics = Pinned(address=address, digest=candidate.digest), []
    for who, model in (("candidate", ours), (CHAMPION, champion.pinned)):
        gate.log.info("scoring the %s %s on %s", who, model.address, evaluation)
        # a retry may find another champion, or another candidate, than the try before it
        key = f"{STATE_KEY}.{who}.{candidate.number}.{model.digest[3:15]}"
        status = task.run(partial(_scoring_spec, gate, task, candidate, model, evaluation), key=key)
        assert status.result is not None
        metrics.append(status.result.metrics)
    return Scores(candidate=metrics[0], champion=metrics[1], job_id=status.job_id)


def _scoring_spec(
    gate: GateOperator, task: TaskRun, candidate: Record, model: Pinned, evaluation: str
) -> JobSpec:
    from muster.airflow.authoring.code import DagFolder
    from muster.airflow.operators.spec import image_digest, refuse_secrets, spec_fields
    from muster.airflow.site import interpreter_of

    refuse_secrets(gate)
    folder = DagFolder.of(task.context["dag"])
    assert gate.scorer is not None
    return JobSpec(
        name=f"{task.name}.score",
        image=gate.image or candidate.image,
        image_digest=image_digest(gate.image, folder, task) if gate.image else candidate.image_digest,
        interpreter=interpreter_of(gate.image or candidate.image, task.settings),
        roles=(Role(entrypoint=gate.scorer, resources=gate.job_resources or Resources()),),
        code=folder.code(gate.code).put(task.backend.store),
        inputs={
            "model": Input(versions=(model,)),
            evaluation: Input(
                versions=tuple(candidate.inputs[evaluation]),
                many=_arrived_as_list(task, candidate, evaluation),
            ),
        },
        origin=task.origin,
        **spec_fields(gate),
    )


def _arrived_as_list(task: TaskRun, candidate: Record, evaluation: str) -> bool:
    """Whether the model's own job had the evaluation set as a list: the scorer gets it the same way."""
    try:
        return task.backend.store.ledger.spec(candidate.job_id).inputs[evaluation].many
    except (NotFound, KeyError):
        return len(candidate.inputs[evaluation]) != 1
