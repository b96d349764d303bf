"""The files and messages of a release: smoke requests, of a file or of rows that a job reads, comparison, plan, refusal."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from muster.airflow.authoring.code import DagFolder, serving_code
from muster.airflow.authoring.values import check_expect
from muster.airflow.teams import DagFacts, site_teams
from muster.core.address import Address, short
from muster.core.data import Input, OutputTarget
from muster.core.deployment import DeploymentStatus, SmokeRequest
from muster.core.errors import MusterError, NotFound, SpecError
from muster.core.job import JobSpec, Role
from muster.core.shipped import SERVE
from muster.core.text import one_line

if TYPE_CHECKING:
    from muster.airflow.attempts.run import TaskRun
    from muster.backends.releases.decision import Outcome
    from muster.backends.releases.deployments import Deployments
    from muster.backends.releases.plan import Comparison, Plan, Rules
    from muster.core.data import Pinned
    from muster.core.origin import Origin
    from muster.volumes.base import Version
    from muster.volumes.protocols import LocalStore

HOLD = timedelta(minutes=5)  # of each step, where an author says nothing
MOST_BYTES = 1 << 20  # of a comparison: it goes along with the trigger that drives the release
_MOST_EXAMPLE_BYTES = 4096  # of a request that a line for a shell holds
_COMPARISON = {"requests", "output", "agreement", "tolerance", "metric", "worse_by"}


def answered_otherwise(deployments: Deployments, name: str, version: str) -> str:
    """Say which version a deployment answers with now, if it is not `version`; else return nothing."""
    try:
        champion = deployments.deployment(name).champion
    except NotFound:
        return f"{name} is not deployed any more"
    if champion is None:
        return f"{name} has no traffic now"
    serves = champion.model.address
    return "" if serves == version else f"{name} answers with {short(serves)} now"


def admit_deployment(task: TaskRun, name: str, *, model: str = "") -> None:
    """Refuse a deployment of another team.

    :param model: the address that it will serve; empty where the task only asks for the version that it serves.
    :raises SpecError: it serves, or would serve, what is not the team's.
    """
    teams, facts = site_teams(), DagFacts.of(task.context)
    if not teams.named:
        return
    try:
        served = task.backend.deployments.deployment(name).volumes
    except NotFound:
        served = set()
    team = teams.of_dag(facts)
    whose = f"of team {team!r}" if team else "of no team"
    if not all(teams.of_volume(each) == team for each in served):
        raise SpecError(f"deployment {name} serves what is not {whose}: name another deployment")
    if model and teams.of_volume(volume := Address.parse(model).volume) != team:
        raise SpecError(
            f"deployment {name} would serve {volume}, which is not {whose}: copy it to its volumes"
        )


def one_version(store: LocalStore, address: Any, *, what: str = "", rule: str) -> Version:
    """Return the version that an address names. :raises SpecError: it names none, or several; `rule` ends the message."""
    versions = store.resolve(address) if isinstance(address, str) else ()
    if len(versions) != 1:
        raise SpecError(f"{what}{address!r:.120} names {len(versions)} versions; {rule}")
    return versions[0]


def read_smoke(folder: DagFolder, name: str | None) -> tuple[SmokeRequest, ...]:
    """Read the smoke requests. :raises SpecError: it names the file and the error."""
    if name is None:
        return ()
    try:
        text = folder.read(name, what="smoke requests")
    except SpecError as error:
        raise SpecError(
            f"{error}. Write one, or say smoke=None to ask the model nothing before it serves"
        ) from error
    return read_smoke_text(f"smoke requests {name}", text)


def read_smoke_text(what: str, text: str) -> tuple[SmokeRequest, ...]:
    """Read the content of such a file. :raises SpecError: it begins with `what`, and names the error."""
    requests = _json(what, text)
    if not isinstance(requests, list) or not requests:
        raise SpecError(f'{what}: expected a list of {{"name", "inputs", "expect"}}, one or more')
    return tuple(_request(what, number, each) for number, each in enumerate(requests, 1))


def read_comparison(folder: DagFolder, name: str | None) -> Comparison | None:
    """Read the requests for candidate and champion. :raises SpecError: it names the file and the error."""
    from muster.backends.releases.plan import Comparison

    if name is None:
        return None
    what = f"comparison {name}"
    text = folder.read(name, what="comparison")
    if len(text) > MOST_BYTES:
        raise SpecError(f"{what} has {len(text)} bytes, at most {MOST_BYTES}: a sample of the rows will do")
    found = _json(what, text)
    if not isinstance(found, dict) or not isinstance(found.get("requests"), list):
        raise SpecError(f'{what}: expected {{"requests": [{{"inputs", "labels"}}, …], "output": …}}')
    if unknown := sorted(set(found) - _COMPARISON):
        raise SpecError(f"{what} has an unknown field {unknown[0]!r:.40}; known are {', '.join(_COMPARISON)}")
    labels = [each.pop("labels", None) for each in found["requests"] if isinstance(each, dict)]
    requests = tuple(_request(what, number, each) for number, each in enumerate(found.pop("requests"), 1))
    with _named(what):
        labelled = tuple(_labels(number, each) for number, each in enumerate(labels, 1) if each is not None)
        _check_comparison(found)
        return Comparison(requests=requests, labels=labelled, **found)


def smoke_digest(smoke: Sequence[SmokeRequest]) -> str | None:
    """The digest of smoke requests, to see later whether they were changed; None where there are none."""
    import hashlib  # here: it loads OpenSSL, and a Dag that is parsed needs none

    from muster.core.wire import dumps, loads

    if not smoke:
        return None
    # As they come back from wherever they were written down: a bound of 1 is one of 1.0.
    texts = [dumps(loads(SmokeRequest, dumps(each))) for each in smoke]
    return f"sha256:{hashlib.sha256(''.join(texts).encode()).hexdigest()}"


def curl_line(
    status: DeploymentStatus, smoke: Sequence[SmokeRequest], *, token: bool = False, example: str = ""
) -> str:
    """A line for a shell that sends the first smoke request, or else the model's example, or asks what the model takes.

    :param token: whether a token is needed: the line takes it from the variable TOKEN.
    :param example: as :func:`example_of` returns it.
    """
    bearer = ' -H "Authorization: Bearer $TOKEN"' if token else ""
    curl = f"curl -si {_directly(status.url)}{status.url}"
    if not smoke and not example:
        return f"{curl}/v2/models/{status.name}{bearer}"
    inputs = {name: list(values) for name, values in smoke[0].inputs.items()} if smoke else {}
    body = json.dumps({"inputs": inputs}) if smoke else example
    header = f"-H 'Content-Type: application/json'{bearer}"
    return f"{curl}/v1/models/{status.name}:predict {header} -d {shlex.quote(body)}"


def _directly(url: str) -> str:
    """The words that keep curl from asking a proxy, which leads to no address of this machine."""
    proxies = any(os.environ.get(name) for name in ("http_proxy", "all_proxy", "ALL_PROXY"))
    return "--noproxy '*' " if proxies and "//127.0.0.1:" in url else ""


def example_of(store: LocalStore, model: str) -> str:
    """Return the request that lies in a version beside its signature, as v1 takes it; empty where there is none that is short."""
    try:
        if store.manifest(model)["example.json"].size_bytes > _MOST_EXAMPLE_BYTES:
            return ""
        return json.dumps(json.loads(store.path(f"{model}/example.json").read_bytes()))
    # it is no such model, or what its author wrote is no JSON
    except (
        MusterError,
        KeyError,
        OSError,
        ValueError,
    ):
        return ""


def asker(origin: Origin) -> str:
    """The name of the task that asks for a release, the same in every try: ``flights.deploy, manual__2026-11-22``."""
    return f"{origin.dag_id}.{origin.stage}, {origin.run_id}"


def refusal_text(
    status: DeploymentStatus | None,
    outcome: Outcome,
    *,
    name: str,
    model: str,
    smoke: str | None = None,
    maker: Origin | None = None,
    again: str = "",
) -> str:
    """Four lines: the version that was not released, the broken rule with its figures, what serves now, where to look.

    :param status: None where the deployment is gone.
    :param smoke: the file of the smoke requests, named where one of them is the reason.
    :param maker: the task that made the version, named as what is to be run again once it is mended.
    :param again: how to run the task that releases again, once its Dag is mended; :attr:`.Origin.again`.
    """
    where = f"; that request stands in {smoke}" if smoke and "smoke request" in (outcome.reason or "") else ""
    return (
        f"release {outcome.ending.value}: {short(model)} as {name}\n"
        f"{one_line(outcome.reason or 'no reason was given')}{where}\n"
        f"{serving(status)}\n"
        f"all of it: muster deployments show {name}{f'; a mended model: {made}' if (made := made_again(maker, again, of='Dag')) else ''}"
    )


def made_again(maker: Origin | None, again: str, *, of: str) -> str:
    """Return the commands that make a version again after its task is mended, or go on with it; empty if no run made it.

    :param of: what is mended where the version stays as it is.
    """
    if maker is None or not maker.run_id:
        return ""
    run = f"`muster run {maker.dag_id} --from {maker.task_id}`"
    return (run if maker.by_muster_run else f"clear {maker.task_id}") + (
        f", a mended {of}: {again}" if again else ""
    )


def serving(status: DeploymentStatus | None) -> str:
    """Say which version answers users now."""
    champion = status.champion if status else None
    if status is None or champion is None:
        return "nothing serves under this name"
    down = (
        "" if status.ready else ", which does not answer now" + (f": {status.reason}" * bool(status.reason))
    )
    return one_line(f"{short(champion.model.address)} serves {champion.percent} % of the users{down}")


def plan_of(
    steps: Sequence[int],
    hold: timedelta | Sequence[timedelta] | None,
    rules: Rules | None,
    comparison: Comparison | None = None,
) -> Plan:
    """Build the plan of a release from an author's keywords. :raises SpecError: they do not fit."""
    from muster.backends.releases.plan import Plan, Rules

    whole = list(steps) == [100]
    usual = timedelta(0) if whole else HOLD
    holds = [usual] if hold is None else [hold] if isinstance(hold, timedelta) else list(hold)
    return Plan(
        steps=tuple(steps),
        hold_seconds=tuple(each.total_seconds() for each in holds),
        rules=rules or Rules(),
        comparison=comparison,
    )


def _json(what: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise SpecError(f"{what}: not JSON: {error}") from error


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Put a file's name in front of the message of a SpecError."""
    try:
        yield
    except SpecError as error:
        raise SpecError(f"{what}: {error}") from None


def _labels(number: int, found: Any) -> tuple[float, ...]:
    if not isinstance(found, list) or not all(type(each) in (int, float) for each in found):
        raise SpecError(f"request {number}: labels is {found!r:.60}, need a list of numbers, one a row")
    return tuple(map(float, found))


def _check_comparison(found: Mapping[str, Any]) -> None:
    if not isinstance(found.get("output"), str):
        raise SpecError(f"output is {found.get('output')!r:.60}, need the name of one")
    for name in _COMPARISON & {"agreement", "tolerance", "worse_by"}:
        if type(found.get(name, 0)) not in (int, float):
            raise SpecError(f"{name} is {found[name]!r:.60}, need a number")


def _request(where: str, number: int, each: Any) -> SmokeRequest:
    if not isinstance(each, dict) or not isinstance(each.get("inputs"), dict):
        raise SpecError(f"{where}: number {number} has no inputs: found {each!r:.80}")
    unknown = sorted(set(each) - {"name", "inputs", "expect"})
    if unknown:
        raise SpecError(f"{where}: number {number} has an unknown field {unknown[0]!r:.40}")
    for column, values in each["inputs"].items():
        if not isinstance(values, list):
            raise SpecError(f"{where}: number {number}: {column!r:.40} needs a list of values")
    return SmokeRequest(
        name=str(each.get("name") or f"request {number}"),
        inputs={column: tuple(values) for column, values in each["inputs"].items()},
        expect=_expected(f"{where}: number {number}", each.get("expect") or {}),
    )


def _expected(where: str, expect: Any) -> dict[str, dict[str, float]]:
    with _named(where):
        check_expect(expect)
    return dict(expect)


_SMOKE_ENTRYPOINT = "muster_serving.smoke:write"
_SMOKE_FILE = "smoke.json"
_SMOKE_OUTPUT = "smoke"

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
    (address,) = status.result.outputs[_SMOKE_OUTPUT]
    text = (task.backend.store.path(address) / _SMOKE_FILE).read_text(encoding="utf-8")
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
        roles=(Role(entrypoint=_SMOKE_ENTRYPOINT),),
        code=serving_code().put(store),
        inputs={"model": Input(versions=(model,)), "rows": replace(rows, many=True)},
        outputs={_SMOKE_OUTPUT: OutputTarget(volume=f"{name}/smoke")},
        params={"most": smoke["most"]},
        origin=task.origin,
    )
