"""Scores a gate's candidate and its champion on one evaluation set, each in a job of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from muster.airflow.operators.champion import CHAMPION
from muster.core.errors import NotFound, SpecError
from muster.core.job import Input, JobSpec, Pinned, Role

if TYPE_CHECKING:
    from muster.airflow.attempts.run import TaskRun
    from muster.airflow.operators.gate import GateOperator
    from muster.volumes.base import Record, Version


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
    from muster.airflow.operators.request import image_digest, refuse_secrets

    refuse_secrets(params=gate.job_params, pod=gate.pod_override)
    folder = DagFolder.of(task.context["dag"])
    assert gate.scorer is not None
    return JobSpec(
        name=f"{task.name}.score",
        image=gate.image or candidate.image,
        image_digest=image_digest(gate.image, folder, task) if gate.image else candidate.image_digest,
        roles=(Role(entrypoint=gate.scorer, resources=gate.job_resources),),
        code=folder.code(gate.code).put(task.backend.store),
        inputs={
            "model": Input(versions=(model,)),
            evaluation: Input(
                versions=tuple(candidate.inputs[evaluation]),
                many=_arrived_as_list(task, candidate, evaluation),
            ),
        },
        params=gate.job_params,
        run_timeout_seconds=gate.run_timeout.total_seconds(),
        queue=gate.job_queue,
        priority=gate.priority,
        pod_override=gate.pod_override,
        origin=task.origin,
    )


def _arrived_as_list(task: TaskRun, candidate: Record, evaluation: str) -> bool:
    """Whether the model's own job had the evaluation set as a list: the scorer gets it the same way."""
    try:
        return task.backend.store.ledger.spec(candidate.job_id).inputs[evaluation].many
    except (NotFound, KeyError):
        return len(candidate.inputs[evaluation]) != 1
