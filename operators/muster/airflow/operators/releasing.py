"""What a release needs and says, as pure functions: its smoke requests, its end, its words."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from muster.airflow.authoring.code import DagFolder
from muster.core.deployment import DeploymentStatus, SmokeRequest
from muster.core.errors import SpecError

if TYPE_CHECKING:
    from muster.backends.releases.decision import Outcome
    from muster.core.job import Origin


def read_smoke(folder: DagFolder, name: str | None) -> tuple[SmokeRequest, ...]:
    """Read the smoke requests. :raises SpecError: it names the file and what is wrong in it."""
    if name is None:
        return ()
    text = folder.read(name, what="smoke requests")
    try:
        requests = json.loads(text)
    except ValueError as error:
        raise SpecError(f"smoke requests {name} are not JSON: {error}") from error
    if not isinstance(requests, list) or not requests:
        raise SpecError(
            f'smoke requests {name}: expected a list of {{"name", "inputs", "expect"}}, one or more'
        )
    return tuple(_smoke_request(name, number, each) for number, each in enumerate(requests, 1))


def smoke_digest(folder: DagFolder, name: str | None) -> str | None:
    """The digest of the file of smoke requests, to see later whether it was changed; None where there is none."""
    import hashlib  # here: it loads OpenSSL, and a Dag that is parsed needs none

    if name is None:
        return None
    return f"sha256:{hashlib.sha256(folder.read(name, what='smoke requests').encode()).hexdigest()}"


def curl_line(status: DeploymentStatus, smoke: Sequence[SmokeRequest]) -> str:
    """A line for a shell that sends the first smoke request, or asks what the model takes."""
    if not smoke:
        return f"curl -s {status.url}/v2/models/{status.name}"
    body = json.dumps({"inputs": {name: list(values) for name, values in smoke[0].inputs.items()}})
    header = "-H 'Content-Type: application/json'"
    return f"curl -s {status.url}/v1/models/{status.name}:predict {header} -d {shlex.quote(body)}"


def asker(origin: Origin) -> str:
    """Who asks for a release, the same for every try of a task: ``flights.deploy, manual__2026-11-22``."""
    index = f"[{origin.map_index}]" if origin.map_index >= 0 else ""
    return f"{origin.dag_id}.{origin.task_id}{index}, {origin.run_id}"


def refusal_text(status: DeploymentStatus | None, outcome: Outcome, *, name: str, model: str) -> str:
    """Three lines: what was not released, why, and what serves now.

    :param status: None where the deployment is gone.
    """
    champion = status.champion if status else None
    serves = f"{champion.model.address} serves on" if champion else "nothing serves under this name"
    return (
        f"deployment {name} {outcome.ending.value}: {model}\n"
        f"{outcome.reason or 'no reason was given'}\n"
        f"{serves}; see muster deployments show {name}"
    )


def _smoke_request(file: str, number: int, each: Any) -> SmokeRequest:
    if not isinstance(each, dict) or not isinstance(each.get("inputs"), dict):
        raise SpecError(f"smoke requests {file}: number {number} has no inputs: found {each!r:.80}")
    unknown = sorted(set(each) - {"name", "inputs", "expect"})
    if unknown:
        raise SpecError(f"smoke requests {file}: number {number} has an unknown field {unknown[0]!r:.40}")
    for column, values in each["inputs"].items():
        if not isinstance(values, list):
            raise SpecError(f"smoke requests {file}: number {number}: {column!r:.40} needs a list of values")
    return SmokeRequest(
        name=str(each.get("name") or f"request {number}"),
        inputs={column: tuple(values) for column, values in each["inputs"].items()},
        expect=_expected(f"smoke requests {file}: number {number}", each.get("expect") or {}),
    )


def _expected(where: str, expect: Any) -> dict[str, dict[str, float]]:
    if not isinstance(expect, dict):
        raise SpecError(f"{where}: expect is {expect!r:.60}, need bounds by output")
    for output, bounds in expect.items():
        if not isinstance(bounds, dict) or not all(type(bound) in (int, float) for bound in bounds.values()):
            raise SpecError(
                f'{where}: {output!r:.40} expects {bounds!r:.60}, need such as {{"min": 0, "max": 1}}'
            )
    return expect
