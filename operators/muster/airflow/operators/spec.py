"""From the keywords of an operator to the spec of a job: in part while a Dag is parsed, whole when the task runs.

Parsing reads no file and no store, so what holds Jinja or a reference to another task is checked
when the task runs; everything else is refused while the Dag is parsed. A spec that runs is pinned: the inputs'
versions, the code and the image's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from muster.airflow.authoring.keywords import Keyword
from muster.airflow.authoring.references import is_known, texts_in
from muster.airflow.authoring.values import known_output, outputs_of, plain, seconds
from muster.core.address import Address
from muster.core.advice import lacking
from muster.core.data import CHECKPOINTS, KINDS, Input, Pinned, check_word
from muster.core.errors import NotFound, SpecError
from muster.core.job import JobSpec, Launcher, Role
from muster.core.masking import readings
from muster.core.resources import Resources

if TYPE_CHECKING:
    from muster.airflow.attempts.run import TaskRun
    from muster.airflow.authoring.code import Code, DagFolder
    from muster.airflow.operators.base import MusterOperator
    from muster.airflow.operators.job import JobOperator
    from muster.core.settings import Settings
    from muster.volumes.protocols import LocalStore

_NO_DIGEST = "b3:" + "0" * 64
STAND_IN = Input(versions=(Pinned(address="volume://stand-in@1", digest=_NO_DIGEST),))


def spec_fields(operator: MusterOperator, *, templated: bool = True) -> dict[str, Any]:
    """The fields of a JobSpec that follow from one keyword each.

    :param templated: whether the keywords that Airflow renders are included.
    """
    return {
        f"{each.word}_seconds" if each.spec is seconds else each.word: each.spec(
            getattr(operator, each.attribute)
        )
        for each in operator.keywords.values()
        if each.spec is not None and (templated or not each.templated)
    }


def build_spec(operator: JobOperator, task: TaskRun) -> JobSpec:
    """Pin the inputs, check the entrypoint, keep the code and the image's lock in the store.

    :raises SpecError: something is wrong that no retry can mend.
    :raises NotFound: an input is not there.
    """
    from muster.airflow.authoring.code import DagFolder
    from muster.airflow.site import interpreter_of

    folder = DagFolder.of(task.context["dag"])
    store, code, roles = task.backend.store, operator.travelling(folder), operator.gang(folder)
    check_code(operator, code, roles)
    refuse_secrets(operator)
    inputs = {name: pin(store, name, value) for name, value in operator.inputs.items()}
    return JobSpec(
        name=task.name,
        image=operator.image,
        image_digest=image_digest(operator.image, folder, task),
        roles=roles,
        code=code.put(store),
        inputs=inputs,
        origin=task.origin,
        interpreter=interpreter_of(operator.image, task.settings),
        **spec_fields(operator),
    )


def build_again(
    operator: JobOperator, last: JobSpec, folder: DagFolder, store: LocalStore, settings: Settings
) -> JobSpec:
    """Build the job that the Dag's files say now; what only a run tells is that of the last job.

    :raises SpecError: something is wrong. :raises NotFound: an input is not there.
    """
    from muster.airflow.site import interpreter_of
    from muster.images.folders import put_image

    mapped = {word.removeprefix("job_") for word in operator.given}  # each instance has its own of these
    own = {word: value for word, value in _known_fields(operator).items() if word not in mapped}

    def mixed(
        word: str, before: Mapping[str, Any], given: Mapping[str, Any], read: Callable[[Any], Any] = dict
    ) -> dict[str, Any]:
        """Each value from the Dag file where that tells it, and from the last job where only a run does."""
        if word in mapped:
            return dict(before)
        told = read({name: value for name, value in given.items() if is_known(value)})
        return {name: told.get(name, before.get(name)) for name in given if name in told or name in before}

    runs = is_known([operator.entrypoint, operator.command]) and not mapped & {"entrypoint", "command"}
    image = last.image if "image" in mapped else operator.image
    return replace(
        last,
        **own
        | {
            "image": image,
            "image_digest": put_image(store, folder.image(image, settings)),
            "interpreter": interpreter_of(image, settings),
            "roles": operator.gang(folder) if runs else last.roles,
            "code": operator.travelling(folder).put(store),
            "inputs": mixed(
                "inputs",
                last.inputs,
                operator.inputs,
                lambda told: {name: pin(store, name, value) for name, value in told.items()},
            ),
            "outputs": mixed("outputs", last.outputs, operator.outputs, outputs_of),
            "params": mixed("params", last.params, operator.job_params),
            "env": mixed("env", last.env, operator.env),
        },
    )


def _known_fields(operator: MusterOperator) -> dict[str, Any]:
    """The fields of a JobSpec that follow from one keyword each, as far as the Dag file tells them."""
    fields = spec_fields(operator, templated=False)
    for each in operator.keywords.values():
        if each.spec is not None and each.templated:
            value = getattr(operator, each.attribute)
            if is_known(value):
                fields[each.word] = each.spec(value)
    return fields


def draft(operator: JobOperator) -> JobSpec:
    """Build the spec with stand-ins for what is not known yet: the same rules hold as later."""
    known = is_known([operator.entrypoint, operator.command])
    return JobSpec(
        name=operator.task_id,
        image=operator.image if is_known(operator.image) else "later",
        image_digest=_NO_DIGEST,
        roles=roles_of(operator) if known else (Role(entrypoint="a:b"),),
        inputs=dict.fromkeys(operator.inputs, STAND_IN),
        outputs={
            name: known_output(field, number) for number, (name, field) in enumerate(operator.outputs.items())
        },
        params={name: value if is_known(value) else None for name, value in operator.job_params.items()},
        env={name: text if is_known(text) else "" for name, text in operator.env.items()},
        pod_override=operator.pod_override if is_known(operator.pod_override) else {},
        **spec_fields(operator, templated=False),
    )


def roles_of(operator: JobOperator) -> tuple[Role, ...]:
    """The gang: the given roles, or the one that the other keywords describe."""
    if operator.roles is not None:
        if operator.entrypoint is not None or operator.command is not None:
            raise SpecError("give roles, or an entrypoint or command, not both")
        given: object = operator.roles  # whatever the annotation says
        if not isinstance(given, (list, tuple)) or not all(isinstance(role, Role) for role in given):
            raise SpecError(f"roles is {given!r:.60}: expected a list of Role(name=…, entrypoint=…)")
        return tuple(operator.roles)
    ranks: object = operator.ranks  # whatever the annotation says
    if isinstance(ranks, (list, tuple)):
        raise SpecError(
            f"ranks is {ranks!r:.60}: a gang shrinks and grows by whole replicas, replicas={ranks!r:.60} with ranks=1; "
            "each has LOCAL_RANK 0, so let the script save where RANK is 0"
        )
    least, most = _counts(operator.replicas)
    return (
        Role(
            replicas=most,
            least_replicas=least,
            ranks=operator.ranks,
            entrypoint=operator.entrypoint,
            command=operator.command,  # type: ignore[arg-type]  # Role makes it a tuple, and refuses a text
            resources=operator.job_resources or Resources(),
        ),
    )


def _counts(replicas: Any) -> tuple[int | None, int]:
    """Return the least number of replicas, None where it is fixed, and the most."""
    if not isinstance(replicas, (list, tuple)):
        return None, replicas
    if len(replicas) != 2:
        raise SpecError(f"replicas is {replicas!r:.60}: expected a number, or the least and the most, (2, 4)")
    least, most = replicas
    return least, most


def commands_of(operator: JobOperator) -> list[Sequence[str]]:
    """The commands of the job: its own, or one for each role that has one."""
    roles = (role.command for role in operator.roles or ())
    return [words for words in (operator.command, *roles) if isinstance(words, (list, tuple))]


def check_places(operator: JobOperator) -> None:
    """Refuse a ``{inputs.NAME}`` whose name the job does not have, in words and of kinds that are known."""
    names = {"inputs": operator.inputs, "outputs": operator.outputs, "params": operator.job_params}
    known = {kind: names[kind] for kind in KINDS if kind not in operator.later}
    for word in (word for words in commands_of(operator) for word in words):
        if is_known(word):
            check_word(word, known)


def check_code(operator: JobOperator, code: Code, roles: Iterable[Role]) -> None:
    """Look at every entrypoint and script that is known by now.

    :raises SpecError: it cannot be called so, or is not there.
    """
    from muster.airflow.authoring.entrypoints import check_entrypoint, check_script

    for role in roles:
        if role.command is not None:
            check_script(role.command, code)
        if role.entrypoint is not None:
            check_entrypoint(
                role.entrypoint,
                code,
                inputs=operator.inputs,
                outputs=operator.outputs,
                params=operator.job_params,
                complete=not operator.later & {"inputs", "outputs", "params"},
            )


def check_engine(launcher: Launcher, image: str, folder: DagFolder, settings: Settings) -> None:
    """Refuse an image without the package that a launcher starts. :raises SpecError: it says which image has it."""
    from muster.airflow.site import interpreter_path
    from muster.images.lock import LOCK, names_in

    if not launcher.drives or interpreter_path(image, settings) is not None:
        return
    package = launcher.package
    if package not in names_in((folder.image(image, settings) / LOCK).read_text(encoding="utf-8")):
        raise SpecError(f"launcher={launcher.value!r} starts {package}, and {lacking(package, image)}")


def refuse_secrets(operator: MusterOperator) -> None:
    """Refuse a rendered value that Airflow masks: specs and records are kept, and shown to people.

    :raises SpecError: it names the field, never the value.
    """
    from muster.airflow.upstream.internals import redact

    for each in operator.keywords.values():
        # A command becomes a role's, and a source and its query a param.
        if not each.templated or not (each.spec is plain or each.word in ("command", "source", "query")):
            continue
        for field, value in _named(each, getattr(operator, each.attribute)):
            if any(redact(read) != read for text in texts_in(value, names=True) for read in readings(text)):
                raise SpecError(
                    f"{field} holds the value of a secret, as it is or encoded, which would be stored: give its place instead, "
                    "secrets={'TOKEN': 'connection:ID#password'}, and read the variable TOKEN in the job"
                )


def _named(each: Keyword, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"{each.word}[{name!r}]", item) for name, item in value.items())
    else:
        yield each.word, value


def image_digest(name: str, folder: DagFolder, task: TaskRun) -> str:
    """Keep an image's lock in the store and return its digest. :raises SpecError: there is no such image."""
    from muster.images.folders import put_image

    return put_image(task.backend.store, folder.image(name, task.settings))


def pin(store: LocalStore, name: str, value: Any) -> Input:
    """Return the versions that an input names now. A list, or an address of many, arrives as a list of paths.

    :raises SpecError: it is no address. :raises NotFound: nothing is there.
    """
    versions, path = [], ""
    for text in value if isinstance(value, (list, tuple)) else [value]:
        try:
            address = Address.parse(text)
            path = address.path
            if path and (name != CHECKPOINTS or address.many or text is not value):
                raise SpecError(f"{text!r:.120} names a file; an input is a whole version")
            versions += [version.pinned for version in store.resolve(text)]
            if path:
                _check_folder(store, versions[0].address, path)
        except (SpecError, NotFound) as error:
            raise type(error)(f"input {name!r}: {error}") from error
    return Input(versions=tuple(versions), many=arrives_as_list(value), path=path)


def _check_folder(store: LocalStore, address: str, path: str) -> None:
    """Refuse a folder that a version does not hold. :raises NotFound: the message says what is beside it."""
    files = store.manifest(address)
    if next(files.names(path), None) is not None:
        return
    above = path.rpartition("/")[0]
    there = ", ".join(sorted(name for name, _ in islice(files.names(above), 8))) or "nothing"
    raise NotFound(
        f"{address} holds no folder {path!r:.120}; {f'in {above}' if above else 'at its top'} there is {there}"
    )


def arrives_as_list(value: Any) -> bool:
    """Whether a rendered input is a list or an address of many, however many versions that comes to."""
    return isinstance(value, (list, tuple)) or Address.parse(value).many
