"""Finds a Dag, reads its run's params, and prepares its tasks' environments, before anything starts; and what its tasks are."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from muster.airflow.attempts.watcher import arguments
from muster.airflow.authoring.code import DagFolder
from muster.airflow.embedded.home import EmbeddedHome
from muster.airflow.embedded.result import Listener
from muster.airflow.teams import DagFacts, site_teams
from muster.airflow.upstream import internals
from muster.core.errors import SpecError
from muster.core.locks import locked
from muster.core.names import nearest

if TYPE_CHECKING:
    from airflow.sdk import DAG, Param

    from muster.airflow.operators.base import MusterOperator
    from muster.airflow.upstream.internals import BundleDagBag, SerializedDAG
    from muster.backends.base import Backend

BUNDLE = "dags-folder"
# JSON schema's name of the type of a Param that tells it by its default alone; and what else tells a type.
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_TELL_TYPES = frozenset({"type", "anyOf", "oneOf", "allOf", "$ref", "enum", "const"})
_OWN_ERROR = re.compile(r"muster\.core\.errors\.\w+: ")


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A Dag as its author wrote it, and as the scheduler knows it."""

    dag: DAG
    scheduled: SerializedDAG

    @property
    def folder(self) -> DagFolder:
        """The folder of its file."""
        return DagFolder.of(self.dag)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Its tasks in an order in which they can run."""
        tasks = self.dag.topological_sort()  # type: ignore[no-untyped-call]
        return tuple(task.task_id for task in tasks)

    def followed(self, names: Collection[str]) -> set[str]:
        """Return these tasks, and all that follow them."""
        tasks = (self.dag.get_task(name) for name in names)
        return set(names).union(*(task.get_flat_relative_ids(upstream=False) for task in tasks))

    def around(self, names: Collection[str]) -> SerializedDAG:
        """Return the part of the Dag that Airflow must see to decide about some tasks: with all whose ends they wait for."""
        tasks = [self.scheduled.get_task(name) for name in names]
        seen = set(names).union(*(task.upstream_task_ids for task in tasks))
        for task in tasks:
            # a task waits for the setups above it, and a teardown for all between its setups and itself
            if task.is_teardown:
                seen |= task.get_flat_relative_ids(upstream=True)
            elif self.has_setups:
                seen |= {setup.task_id for setup in task.get_upstreams_only_setups()}
        part = copy.copy(self.scheduled)
        part.partial = True
        part.task_dict = {name: self.scheduled.task_dict[name] for name in seen}
        return part

    @cached_property
    def has_setups(self) -> bool:
        """Whether a task is a setup."""
        return any(task.is_setup for task in self.scheduled.tasks)

    def leading_to(self, name: str) -> frozenset[str]:
        """Return a task, and all that it follows."""
        return frozenset({name, *self.dag.get_task(name).get_flat_relative_ids(upstream=True)})

    def is_musters(self, task_id: str) -> bool:
        """Whether a task is one of muster's operators, and not one of Airflow's or another package's."""
        from muster.airflow.operators.base import MusterOperator
        from muster.airflow.operators.mapping import Mapped

        return isinstance(self.dag.task_dict.get(task_id), (MusterOperator, Mapped))

    def operators(self) -> Iterator[MusterOperator]:
        """Yield the tasks of muster's operators, in order; of a mapped one the instances in the Dag's file."""
        from muster.airflow.operators.base import MusterOperator
        from muster.airflow.operators.mapping import Mapped

        for task_id in self.order:
            task: object = self.dag.task_dict[task_id]
            if isinstance(task, MusterOperator):
                yield task
            elif isinstance(task, Mapped):
                yield from task.samples()


def load(dag_id: str, home: EmbeddedHome) -> Loaded:
    """Parse the folder of Dags, enter it in Airflow's database, and return one Dag.

    :raises SpecError: there is no such Dag, or its file cannot be imported.
    """
    from muster.airflow.upstream.internals import DagBundlesManager, DagSerialization, sync_bag_to_db

    bag = _parsed(home.dags)
    dag = _named(dag_id, bag, home.dags)
    # Airflow checks for new Dags and then adds them: two processes could both add the same one.
    with locked(home.root / "dags.lock"):
        DagBundlesManager().sync_bundles_to_db()  # type: ignore[no-untyped-call]
        sync_bag_to_db(bag, BUNDLE, None)
    scheduled = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    scheduled.deadline = None  # the database of such a run has no rows of deadlines for it, and no scheduler that would look at them
    return Loaded(dag=dag, scheduled=scheduled)


def parse(dag_id: str, dags: Path, *, file: Path | None = None) -> DAG:
    """Parse a folder of Dags, or one file of it, and return one Dag, without Airflow's database.

    Errors are those of :func:`load`.
    """
    return _named(dag_id, _parsed(dags, file), dags)


def _parsed(dags: Path, file: Path | None = None) -> internals.BundleDagBag:

    try:
        return internals.BundleDagBag(dag_folder=file or dags, bundle_path=dags, bundle_name=BUNDLE)
    except RuntimeError as error:  # Airflow follows links until it meets a folder again
        raise SpecError(
            f"{error} A link below {dags} leads in a circle: remove it, or name it in .airflowignore"
        ) from error


def _named(dag_id: str, bag: BundleDagBag, dags: Path) -> DAG:
    if dag_id not in bag.dags:
        raise SpecError(_absent(dag_id, sorted(bag.dags), bag.import_errors, dags))
    return bag.dags[dag_id]


def read_params(dag: DAG, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's params in the types of the Dag's Params.

    :param given: values, or texts as they come from a command line.
    :raises SpecError: a name that the Dag does not know, or a value that its Param refuses.
    """
    from airflow.sdk.exceptions import ParamValidationError

    unknown = sorted(set(given) - set(dag.params))
    if unknown:
        known = ", ".join(dag.params) or "none"
        raise SpecError(f"Dag {dag.dag_id} has no param {unknown[0]!r:.60}; its params are {known}")
    params = copy.deepcopy(dag.params)
    for name, value in given.items():
        if isinstance(value, str):
            _have_type(dag.dag_id, name, params.get_param(name))
    values = {name: _typed(params.get_param(name).schema, value) for name, value in given.items()}
    for name in params:
        try:
            params.get_param(name).resolve(*([values[name]] if name in values else []))
        except ParamValidationError as error:
            raise SpecError(f"param {name!r} of Dag {dag.dag_id}: {_first_line(error)}") from error
    return values


def make_ready(loaded: Loaded, home: EmbeddedHome, backend: Backend, listener: Listener) -> None:
    """Make all checks that need no run, and build the environments that this machine needs.

    On a cluster images are containers, which must be pushed before.

    :raises MusterError: the first error.
    """
    from muster.airflow.site import interpreter_of
    from muster.images.folders import put_image

    folder, images = loaded.folder, dict[str, Path]()
    drafts = (each.job_draft(f"task {each.task_id}") for each in loaded.operators())
    site_teams().admit_drafts(DagFacts.of({"dag": loaded.dag}), drafts)
    for operator in loaded.operators():
        operator.check_files(folder, home.settings)
        operator.check_ready(backend)
        with operator.refusing("image"):
            images.update({name: folder.image(name, home.settings) for name in operator.images(backend)})
    for name, lock in images.items():
        if interpreter_of(name, home.settings) is None:  # else its jobs need no environment here
            backend.runner.build(name, lock, put_image(backend.store, lock), listener.note)


def _have_type(dag_id: str, name: str, param: Param) -> None:
    """Give a Param whose schema has no type that of its default. :raises SpecError: it tells none."""
    if _TELL_TYPES.isdisjoint(param.schema):
        kind = _TYPES.get(type(param.value))
        if kind is None:
            raise SpecError(
                f"param {name!r} of Dag {dag_id} has neither a type nor a default that tells one: "
                f'write {name!r}: Param(None, type=["null", "integer"]), or the type that it has'
            )
        param.schema = {**param.schema, "type": kind}


def _typed(schema: Mapping[str, Any], value: Any) -> Any:
    kinds = schema.get("type")  # None where several schemas tell it: JSON, if it is some
    told = [*schema.get("enum", ()), schema.get("const")]
    if (
        not isinstance(value, str)
        or value in told
        or "string" in ([kinds] if isinstance(kinds, str) else kinds or [])
    ):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _absent(dag_id: str, known: list[str], errors: Mapping[str, str], dags: Path) -> str:
    there, near = ", ".join(known) or "none", nearest(dag_id, known)
    if not dag_id and not errors:
        return f"name the Dag, as in `muster run {next(iter(known), 'NAME')}`; the Dags of {dags}: {there}"
    meant = f"; did you mean {near}?" if near else ""
    if errors:  # the Dag is most likely in one of them: that first, and not behind a long list
        broken = [_import_error(file, text) for file, text in sorted(errors.items())]
        first = (
            f"no Dag {dag_id!r:.60} in {dags}{meant}{'; ' if meant else ': '}these files cannot be imported"
        )
        return "\n".join([first, *broken, *([f"Dags of the other files: {there}"] if known else [])])
    others = "" if [near] == known else f"; there are {there}"
    return f"no Dag {dag_id!r:.60} in {dags}{meant}{others}"


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _import_error(file: str, trace: str) -> str:
    """Return the last line of a traceback after the place in the Dag's file that caused it."""
    lines = [line.strip() for line in trace.splitlines() if line.strip()] or ["unknown error"]
    places = re.findall(rf'File "(?:[^"]*/)?{re.escape(file)}", line (\d+)', trace)
    return ":".join([file, *places[-1:]]) + f": {_OWN_ERROR.sub('', lines[-1])}"


def runs_a_job(task: Any) -> bool:
    """Whether a task's work is one job of muster's."""
    return bool(getattr(operator_class(task), "runs_a_job", False))


def known_arguments(task: Any, map_index: int) -> Mapping[str, Any]:
    """Return an instance's arguments as far as the Dag's file holds them; empty if an earlier task gives them.

    An instance of a task in a mapped task group has no arguments of its own.
    """
    if map_index < 0 or not task.is_mapped:
        return {}
    expanded = task._get_specified_expand_input()
    if any(True for _ in expanded.iter_references()):
        return {}
    given, _ = expanded.resolve({"ti": SimpleNamespace(map_index=map_index)})
    return arguments(given)


def arguments_of(task: Any, made: Any) -> Mapping[str, Any]:
    """Return the arguments that distinguish a built instance from the others.

    :param task: the mapped task, `made` the instance.
    """
    from muster.airflow.operators.base import MusterOperator
    from muster.airflow.operators.mapping import told_apart

    if isinstance(made, MusterOperator):
        return made.arguments
    words = getattr(made, "op_kwargs", None)
    if words is None or not task.is_mapped:
        return {}
    return arguments(told_apart({"op_kwargs": words}, task._get_specified_expand_input()))


def operator_class(task: Any) -> Any:
    """Return the class of a task, or of the instances of a mapped one."""
    return task.operator_class if task.is_mapped else type(task)


def plain(value: Any) -> Any:
    """Return a value as JSON has it: anything else as its text."""
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
