"""Sets the table for one attempt of a gang: what each replica is told, and the folders it finds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from muster.backends.local.places import JobFolder
from muster.backends.local.queue import Claim
from muster.core.errors import NotFound
from muster.core.job import JobSpec, Pinned
from muster.core.replica import Replica
from muster.core.wire import dumps
from muster.volumes.base import Staging, Store

# What a machine needs to work at all: drivers, certificates, proxies.
_PASSED = (
    "CUDA_HOME",
    "CUDA_PATH",
    "HOME",
    "LD_LIBRARY_PATH",
    "LOGNAME",
    "NO_PROXY",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "USER",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def check_inputs(job: JobSpec, store: Store) -> None:
    """Refuse a job whose versions are not what they were when they were pinned.

    :raises NotFound: a version is gone, or is another one under the same number.
    """
    for name, given in job.inputs.items():
        for pinned in given.versions:
            _check(name, pinned, store)


def input_paths(job: JobSpec, store: Store) -> dict[str, tuple[str, ...]]:
    """Return the folders that arrive under each input's name."""
    return {
        name: tuple(str(store.path(pinned.address)) for pinned in given.versions)
        for name, given in job.inputs.items()
    }


def replicas(
    job: JobSpec, *, staging: Staging, store: Store, claim: Claim, folder: JobFolder, scratch: Path
) -> list[Replica]:
    """Make the folders of every replica of this attempt, write down what each is told, and return it."""
    inputs = input_paths(job, store)
    code = str(store.code(job.code)) if job.code else None
    cards = iter(claim.gpus)
    made = [
        Replica(
            job_id=staging.job_id,
            spec=job,
            attempt=staging.attempt,
            role=role.name,
            index=index,
            code=code,
            inputs=inputs,
            staging={name: str(staging.output(role.name, index, name)) for name in job.outputs},
            checkpoints=str(staging.checkpoints),
            scratch=str(scratch / f"{role.name}-{index}"),
            sealed=str(staging.sealed(role.name, index)),
            report=str(folder.report(staging.attempt, role.name, index)),
            master_port=claim.port,
            gpus=tuple(islice(cards, role.resources.gpus)),  # none is left where the gang runs on CPUs
        )
        for role in job.roles
        for index in range(role.replicas)
    ]
    for replica in made:
        _make_folders(replica, folder)
    return made


def variables(replica: Replica, *, python: Path, mlflow: Path, secrets: Mapping[str, str]) -> dict[str, str]:
    """Return what a replica's worker, and so its ranks, find in their environment: nothing else of ours."""
    image = python.parent
    return {
        **{name: os.environ[name] for name in _PASSED if name in os.environ},
        "PATH": f"{image}:{_SYSTEM_PATH}",
        "LANG": "C.UTF-8",
        "VIRTUAL_ENV": str(image.parent),
        "MLFLOW_TRACKING_URI": f"sqlite:///{mlflow / 'mlflow.db'}",
        **replica.spec.env,
        **secrets,
        "CUDA_VISIBLE_DEVICES": ",".join(replica.gpus),
        "TMPDIR": replica.scratch,
    }


def _check(name: str, pinned: Pinned, store: Store) -> None:
    (version,) = store.resolve(pinned.address)
    if version.digest != pinned.digest:
        raise NotFound(
            f"input {name}: {pinned.address} is {version.digest[:15]}…, the job was given {pinned.digest[:15]}…: "
            "this is another store than the one it was pinned in"
        )


def _make_folders(replica: Replica, folder: JobFolder) -> None:
    for path in (*replica.staging.values(), replica.checkpoints, replica.scratch):
        Path(path).mkdir(parents=True, exist_ok=True)
    Path(replica.sealed).parent.mkdir(parents=True, exist_ok=True)
    told = folder.replica(replica.attempt, replica.role, replica.index)
    told.parent.mkdir(parents=True, exist_ok=True)
    told.write_text(dumps(replica), encoding="utf-8")
