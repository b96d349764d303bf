"""The smoke requests of a release: of a file of the Dag's folder, or of rows, which a job in the model server's image reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from muster.airflow.authoring.code import serving_code
from muster.airflow.operators.releasing import read_smoke, read_smoke_text
from muster.core.data import Input, OutputTarget
from muster.core.errors import SpecError
from muster.core.job import JobSpec, Role
from muster.core.shipped import SERVE

if TYPE_CHECKING:
    from muster.airflow.attempts.run import TaskRun
    from muster.airflow.authoring.code import DagFolder
    from muster.core.data import Pinned
    from muster.core.deployment import SmokeRequest

ENTRYPOINT = "muster_serving.smoke:write"
FILE = "smoke.json"
OUTPUT = "smoke"

Smoke = str | Mapping[str, Any] | None


def check_smoke_file(folder: DagFolder, smoke: Smoke) -> None:
    """Read the file where one is named. :raises SpecError: it names the file and the error."""
    if not isinstance(smoke, Mapping):
        read_smoke(folder, smoke)


def smoke_source(smoke: Smoke) -> str | None:
    """Say where the requests are from, for messages: a file, or the addresses of versions."""
    if not isinstance(smoke, Mapping):
        return smoke
    rows = smoke["rows"]
    return str(rows) if isinstance(rows, str) else ", ".join(map(str, rows))


def smoke_of(
    smoke: Smoke, task: TaskRun, folder: DagFolder, *, model: Pinned, name: str
) -> tuple[SmokeRequest, ...]:
    """Return the requests; those of rows are made by a job, and kept as a version of ``NAME/smoke``.

    :param name: the deployment.
    :raises SpecError: the file is wrong. :raises AirflowException: the job's verdict: a row lacks a column, or the model refuses it.
    """
    from muster.airflow.attempts.run import STATE_KEY

    if not isinstance(smoke, Mapping):
        return read_smoke(folder, smoke)
    build = partial(_spec, smoke, task, folder, model, name)
    status = task.run(build, key=f"{STATE_KEY}.smoke.{model.digest[3:15]}")
    assert status.result is not None
    (address,) = status.result.outputs[OUTPUT]
    text = (task.backend.store.path(address) / FILE).read_text(encoding="utf-8")
    requests = read_smoke_text(f"smoke requests of {address}", text)
    return tuple(replace(each, expect=smoke["expect"]) for each in requests)


def _spec(smoke: Mapping[str, Any], task: TaskRun, folder: DagFolder, model: Pinned, name: str) -> JobSpec:
    from muster.airflow.operators.spec import image_digest, pin
    from muster.airflow.site import interpreter_of

    store = task.backend.store
    rows = pin(store, "smoke", smoke["rows"])
    if not rows.versions:
        raise SpecError("smoke: its rows name no version")
    return JobSpec(
        name=f"{task.name}.smoke",
        image=SERVE,
        image_digest=image_digest(SERVE, folder, task),
        interpreter=interpreter_of(SERVE, task.settings),
        roles=(Role(entrypoint=ENTRYPOINT),),
        code=serving_code().put(store),
        inputs={"model": Input(versions=(model,)), "rows": replace(rows, many=True)},
        outputs={OUTPUT: OutputTarget(volume=f"{name}/smoke")},
        params={"most": smoke["most"]},
        origin=task.origin,
    )
