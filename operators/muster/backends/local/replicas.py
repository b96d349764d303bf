"""What each replica of one attempt is told, and the folders that it finds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from muster.backends.local.places import JobFolder
from muster.backends.local.queue import Claim
from muster.core.job import JobSpec
from muster.core.replica import LOOPBACK, Replica
from muster.volumes.base import Staging
from muster.volumes.protocols import LocalStore


def input_paths(job: JobSpec, store: LocalStore) -> dict[str, tuple[str, ...]]:
    """Return the folders that arrive under each input's name."""
    return {
        name: tuple(str(store.path(pinned.address)) for pinned in job.inputs[name].versions)
        for name in job.mounted
    }


def replicas_of(
    job: JobSpec,
    *,
    staging: Staging,
    store: LocalStore,
    claim: Claim,
    cards: Sequence[str],
    folder: JobFolder,
    scratch: Path,
) -> list[Replica]:
    """Make the folders of every replica of this attempt and return what each is told."""
    inputs = input_paths(job, store)
    code = str(store.code(job.code)) if job.code else None
    left = iter(cards)
    made = [
        Replica(
            job_id=staging.job_id,
            spec=job,
            attempt=staging.attempt,
            role=role.name,
            index=index,
            code=code,
            inputs=inputs,
            staging={name: str(staging.output(role.name, index, name)) for name in job.staged},
            checkpoints=str(staging.checkpoints),
            scratch=str(scratch / f"{role.name}-{index}"),
            sealed=str(staging.sealed(role.name, index)),
            report=str(folder.report(staging.attempt, role.name, index)),
            master_port=claim.port,
            peers=tuple(f"{LOOPBACK}:{port}" for port in claim.ports) if job.launcher.listens else (),
            gpus=tuple(islice(left, role.resources.gpus)),  # none is left where the gang runs on CPUs
        )
        for role in job.roles
        for index in range(role.replicas)
    ]
    for replica in made:
        _make_folders(replica)
    return made


def _make_folders(replica: Replica) -> None:
    for path in (*replica.staging.values(), replica.checkpoints, replica.scratch):
        Path(path).mkdir(parents=True, exist_ok=True)
    for path in (replica.sealed, replica.report):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
