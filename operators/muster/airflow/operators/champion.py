"""The champion of a gate: the version that is served now, and how it and a candidate score on one evaluation set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from muster.core.address import Address
from muster.core.data import Input, Pinned
from muster.core.errors import NotFound, SpecError
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources

if TYPE_CHECKING:
    from muster.airflow.attempts.run import TaskRun
    from muster.airflow.operators.gate import GateOperator
    from muster.backends.releases.deployments import Deployments
    from muster.volumes.base import Record, Version

CHAMPION = "champion"


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
        status = task.run(partial(_spec, gate, task, candidate, model, evaluation), key=key)
        assert status.result is not None
        metrics.append(status.result.metrics)
    return Scores(candidate=metrics[0], champion=metrics[1], job_id=status.job_id)


def _spec(gate: GateOperator, task: TaskRun, candidate: Record, model: Pinned, evaluation: str) -> JobSpec:
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
