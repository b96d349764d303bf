"""Makes the job's spec from an operator's rendered fields: everything pinned, nothing left to chance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from muster.airflow.authoring.code import Code, DagFolder
from muster.airflow.authoring.entrypoints import check_entrypoint
from muster.airflow.operators.fields import limits_of, outputs_of
from muster.core.address import Address
from muster.core.errors import NotFound, SpecError
from muster.core.job import Input, JobSpec, Role
from muster.volumes.protocols import LocalStore

if TYPE_CHECKING:
    from muster.airflow.attempts.run import TaskRun
    from muster.airflow.operators.job import JobOperator


def build_spec(operator: JobOperator, task: TaskRun) -> JobSpec:
    """Pin the inputs, check the entrypoint, keep the code and the image's lock in the store.

    :raises SpecError: something is wrong that no retry can mend.
    :raises NotFound: an input is not there.
    """
    folder = DagFolder.of(task.context["dag"])
    store, code, roles = task.backend.store, operator.travelling(folder), operator.gang(folder)
    check_code(operator, code, roles)
    refuse_secrets(
        command=operator.command, params=operator.job_params, env=operator.env, pod=operator.pod_override
    )
    inputs = {name: pin(store, name, value) for name, value in operator.inputs.items()}
    return JobSpec(
        name=task.name,
        image=operator.image,
        image_digest=image_digest(operator.image, folder, task),
        roles=roles,
        code=code.put(store),
        inputs=inputs,
        outputs=outputs_of(operator.outputs),
        params=operator.job_params,
        env=operator.env,
        pod_override=operator.pod_override,
        origin=task.origin,
        **limits_of(operator),
    )


def check_code(operator: JobOperator, code: Code, roles: Iterable[Role]) -> None:
    """Look at every entrypoint that is known by now. :raises SpecError: it cannot be called so."""
    for role in roles:
        if role.entrypoint is not None:
            check_entrypoint(
                role.entrypoint,
                code,
                inputs=operator.inputs,
                outputs=operator.outputs,
                params=operator.job_params,
                complete=not operator.later,
            )


def refuse_secrets(
    *,
    command: Sequence[str] | None = None,
    params: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    pod: Mapping[str, Any] | None = None,
) -> None:
    """Refuse what was rendered to a value that Airflow masks: specs and records are kept, and shown to people.

    :raises SpecError: it names the field, never the value.
    """
    from airflow.sdk._shared.secrets_masker import redact

    fields = {
        "command": command,
        "pod_override": pod,
        **{f"params[{name!r}]": value for name, value in (params or {}).items()},
        **{f"env[{name!r}]": value for name, value in (env or {}).items()},
    }
    for field, value in fields.items():
        if any(redact(text) != text for text in _texts(value)):
            raise SpecError(
                f"{field} holds the value of a secret, which would be stored: give its place instead, "
                "secrets={'TOKEN': 'connection:ID#password'}, and read the variable TOKEN in the job"
            )


def _texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value, also the names of objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def image_digest(name: str, folder: DagFolder, task: TaskRun) -> str:
    """Keep an image's lock in the store and return its digest. :raises SpecError: there is no such image."""
    from muster.images.folders import put_image

    return put_image(task.backend.store, folder.image(name, task.settings))


def pin(store: LocalStore, name: str, value: Any) -> Input:
    """Fix what an input names now. A list, or an address of many, arrives as a list of paths.

    :raises SpecError: it is no address. :raises NotFound: nothing is there.
    """
    versions = []
    for text in value if isinstance(value, (list, tuple)) else [value]:
        try:
            if Address.parse(text).path:
                raise SpecError(f"{text!r:.120} names a file; an input is a whole version")
            versions += [version.pinned for version in store.resolve(text)]
        except (SpecError, NotFound) as error:
            raise type(error)(f"input {name!r}: {error}") from error
    return Input(versions=tuple(versions), many=arrives_as_list(value))


def arrives_as_list(value: Any) -> bool:
    """Whether a rendered input is a list or an address of many, however many versions that comes to."""
    return isinstance(value, (list, tuple)) or Address.parse(value).many
