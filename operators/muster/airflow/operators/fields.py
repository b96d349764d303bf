"""The keywords of a JobOperator as the nouns of a job, and what can be refused of them while a Dag is parsed.

Parsing reads no file and no store, so what holds Jinja or a reference to another task is left to
the moment the task runs; everything else is refused where it was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from muster.airflow.attempts.resuming import resume_of
from muster.airflow.authoring.checks import by_name, check_flag, check_image, check_input, check_resources
from muster.airflow.authoring.keywords import refusing
from muster.airflow.authoring.launch_words import check_launch
from muster.airflow.authoring.output import Output
from muster.airflow.authoring.pods import check_pod
from muster.airflow.authoring.references import VersionReference, is_known
from muster.core import job as core
from muster.core.address import Address
from muster.core.errors import SpecError
from muster.core.job import Input, JobSpec, Launcher, Pinned, Role, SecretRef
from muster.core.places import KINDS, check_word
from muster.core.resources import Resources

if TYPE_CHECKING:
    from muster.airflow.operators.job import JobOperator

_NO_DIGEST = "b3:" + "0" * 64
_KINDS = ("connection", "environment", "kubernetes")


def output_fields(task_id: Any, outputs: Any) -> dict[str, dict[str, str | None]]:
    """Write outputs as plain mappings, which Airflow can render. :raises SpecError: one is no output."""
    fields = {}
    for name, output in by_name(task_id, "outputs", outputs).items():
        with refusing(task_id, f"outputs[{name!r:.60}]"):
            fields[name] = _output_field(output)
    return fields


def _output_field(output: Any) -> dict[str, str | None]:
    if isinstance(output, str):
        return {"volume": output, "partition": None}
    if isinstance(output, Output):
        return {"volume": output.volume, "partition": output.partition}
    raise SpecError(
        f"{output!r:.60}: expected a volume, such as 'flights/model', or Output(volume=…, partition=…)"
    )


def outputs_of(fields: Mapping[str, Mapping[str, Any]]) -> dict[str, core.Output]:
    """Read outputs back when they are rendered. :raises SpecError: a name that is not allowed."""
    outputs = {}
    for name, field in fields.items():
        try:
            outputs[name] = core.Output(volume=field["volume"], partition=field["partition"])
        except SpecError as error:
            raise SpecError(f"output {name!r:.80}: {error}") from error
    return outputs


def secret_of(text: str | SecretRef) -> SecretRef:
    """Read ``connection:ID#field``, ``environment:NAME`` or ``kubernetes:SECRET/KEY``."""
    if isinstance(text, SecretRef):
        return text
    source, colon, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not colon or source not in _KINDS:
        # the text itself is not shown: it may be the secret
        raise SpecError(
            "expected where the value is found, such as 'connection:mlflow#password', not the value"
        )
    return SecretRef(source=source, name=name)


def roles_of(operator: JobOperator) -> tuple[Role, ...]:
    """The gang: the roles that were given, or the one that the other keywords describe."""
    if operator.roles is not None:
        if operator.entrypoint is not None or operator.command is not None:
            raise SpecError("give roles, or an entrypoint or command, not both")
        given: object = operator.roles  # whatever the annotation says
        if not isinstance(given, (list, tuple)) or not all(isinstance(role, Role) for role in given):
            raise SpecError(f"roles is {given!r:.60}: expected a list of Role(name=…, entrypoint=…)")
        return tuple(operator.roles)
    return (
        Role(
            replicas=operator.replicas,
            ranks=operator.ranks,
            entrypoint=operator.entrypoint,
            command=operator.command,  # type: ignore[arg-type]  # Role makes it a tuple, and refuses a text
            resources=operator.job_resources or Resources(),
        ),
    )


def limits_of(operator: JobOperator) -> dict[str, Any]:
    """The rest of a spec: what Airflow never renders."""
    return {
        "launcher": launcher_of(operator.launcher),
        "secrets": {variable: secret_of(text) for variable, text in operator.job_secrets.items()},
        "run_timeout_seconds": _seconds("run_timeout", operator.run_timeout),
        "queue_timeout_seconds": _seconds("queue_timeout", operator.queue_timeout),
        "hang_timeout_seconds": _seconds(
            "hang_timeout", timedelta(0) if operator.hang_timeout is None else operator.hang_timeout
        ),
        "max_restarts": operator.max_restarts,
        "queue": operator.job_queue,
        "priority": operator.priority,
        "require_gpus": operator.require_gpus,
    }


def launcher_of(name: str | Launcher) -> Launcher:
    """Return the launcher of a name. :raises SpecError: there is none."""
    try:
        return Launcher(name)
    except ValueError as error:
        raise SpecError(f"{name!r:.60}: expected {', '.join(each.value for each in Launcher)}") from error


def check_fields(operator: JobOperator) -> None:
    """Refuse what is wrong whatever the task's context will be.

    :raises SpecError: it names the task, the field, the value and the rule.
    """
    for name, value in operator.inputs.items():
        with operator.refusing(f"inputs[{name!r}]"):
            check_input(value)
    for variable, text in operator.job_secrets.items():
        with operator.refusing(f"secrets[{variable!r}]"):
            secret_of(text)
    with operator.refusing("image"):
        check_image(operator.image)
    with operator.refusing("resources"):
        check_resources(operator.job_resources)
    with operator.refusing("require_gpus"):
        check_flag(operator.require_gpus)
    with operator.refusing("pod_override"):
        check_pod(operator.pod_override)
    with operator.refusing("launcher"):
        launcher_of(operator.launcher)
    with operator.refusing("resume_from_checkpoint"):
        resume_of(operator.resume_from_checkpoint)
    for name, field in operator.outputs.items():
        with operator.refusing(f"outputs[{name!r}]"):
            _known_output(field)
    with operator.refusing("the job"):
        draft(operator)
    with operator.refusing("command"):
        _check_places(operator)
        for words in commands_of(operator):
            check_launch([word for word in words if is_known(word)], launcher_of(operator.launcher))


def draft(operator: JobOperator) -> JobSpec:
    """Build the spec with stand-ins for what is not known yet: the same rules hold as later."""
    roles = (
        roles_of(operator) if is_known([operator.entrypoint, operator.command]) else (Role(entrypoint="a:b"),)
    )
    return JobSpec(
        name=operator.task_id,
        image=operator.image if is_known(operator.image) else "later",
        image_digest=_NO_DIGEST,
        roles=roles,
        inputs=dict.fromkeys(operator.inputs, _STAND_IN),
        outputs={
            name: _known_output(field, number)
            for number, (name, field) in enumerate(operator.outputs.items())
        },
        params={name: value if is_known(value) else None for name, value in operator.job_params.items()},
        env={name: text if is_known(text) else "" for name, text in operator.env.items()},
        pod_override=operator.pod_override if is_known(operator.pod_override) else {},
        **limits_of(operator),
    )


def _check_places(operator: JobOperator) -> None:
    """Refuse a ``{inputs.NAME}`` whose name the job does not have, in words and of kinds that are known."""
    names = {"inputs": operator.inputs, "outputs": operator.outputs, "params": operator.job_params}
    known = {kind: names[kind] for kind in KINDS if kind not in operator.later}
    for word in (word for words in commands_of(operator) for word in words):
        if is_known(word):
            check_word(word, known)


def commands_of(operator: JobOperator) -> list[Sequence[str]]:
    """The commands of the job: its own, or one for each role that has one."""
    roles = (role.command for role in operator.roles or ())
    return [words for words in (operator.command, *roles) if isinstance(words, (list, tuple))]


def volume_of(value: Any) -> str | None:
    """Return the volume that an input is of, where the Dag file says it; None where only the run will."""
    if isinstance(value, (list, tuple)):
        return volume_of(value[0]) if value else None
    if isinstance(value, str):
        return Address.parse(value).volume if is_known(value) else None
    if not isinstance(value, VersionReference):
        return None
    if value.path == ("passed",):
        return volume_of(getattr(value.operator, "volume", None))
    field = getattr(value.operator, "outputs", {}).get(value.path[-1], {})
    return field.get("volume") if is_known(field.get("volume")) else None


def _known_output(field: Mapping[str, Any], number: int = 0) -> core.Output:
    """The output; as far as only a run will tell it, a stand-in that no other output of the task has."""
    known = {key: value for key, value in field.items() if is_known(value)}
    output = core.Output(**{"volume": "stand-in", **known})
    return output if is_known(field) else replace(output, partition=f"stand-in-{number}")


def _seconds(field: str, span: timedelta) -> float:
    if not isinstance(span, timedelta):
        raise SpecError(f"{field} is {span!r:.60}: expected a timedelta, such as timedelta(hours=2)")
    return span.total_seconds()


_STAND_IN = Input(versions=(Pinned(address="volume://stand-in@1", digest=_NO_DIGEST),))
