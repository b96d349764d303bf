"""Functions of a Dag file as tasks: what their calls mean, and what is refused where it is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Airflow may be imported only once the home is there, so the operators are named through the package.
import muster.airflow as m
from muster.airflow.authoring.code import Code, DagFolder
from muster.airflow.authoring.source import source_of
from muster.airflow.embedded.home import EmbeddedHome
from muster.core.errors import SpecError
from muster.volumes.folder import FolderStore

if TYPE_CHECKING:
    from airflow.sdk import DAG

START = datetime(2024, 1, 1)  # noqa: DTZ001 - as authors write it
LIMIT = 3


@pytest.fixture
def dag(home: EmbeddedHome) -> Iterator[DAG]:
    from airflow.sdk import DAG

    with DAG("d", schedule=None, start_date=START, params={"epochs": 3}) as dag:
        yield dag


def job(function: Any, **keywords: Any) -> Any:
    from muster.airflow import job as decorate

    return decorate(**{"image": "python", **keywords})(function)


def fit(rows: Path, model: Path, *, epochs: int = 1, note: str | None = None) -> None: ...


def merge(parts: list[Path], where: str = "x") -> None: ...


def test_paths_and_versions_are_inputs_and_all_else_is_a_param(dag: DAG) -> None:
    from muster.airflow.authoring.references import Expression

    made = m.JobOperator(task_id="made", image="python", command=["x"], outputs={"x": "f/x"})
    fitted = job(fit, outputs={"model": "f/model"})(
        rows="f/rows@<{{ params.epochs }}", epochs="{{ params.epochs }}"
    )
    merged = job(merge)([made.versions["x"], fitted.versions["model"]], where=made.versions["x"])
    assert fitted.operator.inputs == {"rows": "f/rows@<{{ params.epochs }}"}
    assert isinstance(fitted.operator.job_params["epochs"], Expression)
    assert list(merged.operator.inputs) == ["parts", "where"]
    assert merged.operator.upstream_task_ids == {"made", "fit"}
    assert (fitted.operator.task_id, fitted.operator.launcher.value) == ("fit", "plain")


def test_inputs_and_params_of_the_decorator_are_what_a_call_need_not_give(dag: DAG) -> None:
    common = job(
        fit, inputs={"rows": "f/rows"}, params={"epochs": 7, "note": "a"}, outputs={"model": "f/model"}
    )
    assert common().operator.inputs == {"rows": "f/rows"}
    again = common(rows="f/rows@2", note="b").operator
    assert (again.task_id, again.inputs, again.job_params) == (
        "fit__1",
        {"rows": "f/rows@2"},
        {"epochs": 7, "note": "b"},
    )
    renamed = common.override(task_id="big", replicas=4, params={})().operator
    assert (renamed.task_id, renamed.replicas, renamed.job_params) == ("big", 4, {})


def test_airflows_own_task_offers_them_too(dag: DAG) -> None:
    from airflow.sdk import task

    made = task.gang(image="train", outputs={"model": "f/model"}, replicas=2)(fit)(rows="f/rows")
    assert (made.operator.launcher.value, made.operator.replicas) == ("torchrun", 2)
    assert "['versions']['model'] }}" in str(made.versions["model"])
    assert task.job(merge).operator_class is job(merge).operator_class


def uses_a_name_from_outside() -> int:
    return LIMIT


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: job(uses_a_name_from_outside),
            "task 'uses_a_name_from_outside', function: test_decorators.py:",
        ),
        (
            lambda: job(uses_a_name_from_outside),
            "uses 'LIMIT' of the Dag file, which its image does not have",
        ),
        (lambda: job(lambda: 1), "decorate a function that a def statement makes"),
        (
            lambda: job(fit, entrypoint="a:b")(rows="f/x"),
            "task 'fit', entrypoint: the decorated function is what",
        ),
        (lambda: job(fit, command=["x"])(rows="f/x"), "task 'fit', command: the decorated function"),
        (
            lambda: job(fit, imgae="x"),
            "task 'fit', imgae: @task.job takes no such keyword; did you mean image?",
        ),
        (
            lambda: job(fit)(rows="f/x"),
            "fit(): nothing is given for parameter 'model'; the task has inputs rows",
        ),
        (lambda: job(fit, outputs={"model": "f/m"})(), "nothing is given for parameter 'rows'"),
        (
            lambda: job(fit, outputs={"model": "f/m"})(rows="f/x", model="f/y"),
            "'model' is an output, a folder that",
        ),
        (
            lambda: job(fit, outputs={"model": "f/m"})(rows="f/x", epoch=1),
            "got an unexpected keyword argument",
        ),
        (lambda: job(fit, outputs={"modle": "f/m"})(rows="f/x"), "nothing is given for parameter 'model'"),
        (
            lambda: job(merge, outputs={"b": "f/m"})(parts=[]),
            "has no parameter for output 'b'; it takes parts, where",
        ),
        (lambda: job(fit, outputs={"model": "f/m"})(rows="/data/x"), "task 'fit', inputs['rows']: volume"),
        (lambda: job(fit, outputs={"model": "f/m"})(rows=3), "inputs['rows']: 3: expected an address"),
        (lambda: job(fit, replicas=0, outputs={"model": "f/m"})(rows="f/x"), "replicas of role main is 0"),
        (lambda: job(fit, outputs={"model": "f/m"}).expand(rows=["f/x", "F X"]), "(mapped instance 1)"),
        (
            lambda: job(fit, outputs={"model": "f/m"}).partial(epoch=1),
            "task 'fit': partial() got an unexpected keyword argument 'epoch'",
        ),
        (
            lambda: job(fit, outputs={"model": "f/m"}).expand(rows="f/x"),
            "task 'fit': expand() got an unexpected type",
        ),
        (lambda: job(fit, outputs={"model": "f/m"}).expand(), "task 'fit': no arguments to expand against"),
        (
            lambda: job(fit, outputs={"model": "f/m"}).partial(epochs=1).expand(rows=["f/x"], epochs=[2]),
            "task 'fit': mapping already partial argument: epochs",
        ),
        (lambda: job(fit, outputs={"model": "f/m"}).partial(epochs=1).expand(note=["a"]), "parameter 'rows'"),
    ],
)
def test_what_is_wrong_is_refused_where_it_is_written(dag: DAG, make: Any, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        make()
    assert says in str(caught.value)
    assert str(caught.value).startswith("task '")
    assert "\n" not in str(caught.value)


def test_a_mapped_function_depends_on_what_it_is_given_and_can_be_kept(dag: DAG) -> None:
    from airflow.sdk import Asset
    from airflow.serialization.serialized_objects import DagSerialization

    made = m.JobOperator(task_id="made", image="python", command=["x"], outputs={"x": "f/x"})
    mapped = (
        job(fit, outputs={"model": "f/model"}, queue="gpus", retries=4)
        .partial(rows=made.versions["x"])
        .expand(epochs=[1, 2])
    )
    last = job(merge)(parts=mapped.versions["model"])
    again = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    assert mapped.operator.upstream_task_ids == {"made"}
    assert last.operator.upstream_task_ids == {"fit"}
    assert mapped.operator.outlets == [Asset("volume://f/model")]
    kept = again.get_task("fit")
    assert (kept.queue, kept.retries, kept.is_mapped) == ("default", 4, True)
    assert [sample.job_params for sample in mapped.operator.samples()] == [{"epochs": 1}, {"epochs": 2}]
    assert {sample.job_queue for sample in mapped.operator.samples()} == {"gpus"}


def test_mapped_operators_are_checked_and_offer_their_versions(dag: DAG) -> None:
    begun = {"task_id": "count", "image": "python", "outputs": {"x": "f/x"}}
    mapped = m.JobOperator.partial(**begun, command=["a", "{params.n}"]).expand(params=[{"n": 1}, {"n": 2}])
    checked = m.ValidateOperator.partial(task_id="check").expand(volume=["f/x@1", "f/x@2"])
    assert mapped.retries == 2
    assert [str(each) for each in checked.outlets] == [str(each) for each in m.ValidateOperator(
        task_id="again", volume="f/x@1").outlets]  # fmt: skip
    assert list(checked.versions) == ["result"]
    after = m.GateOperator(task_id="gate", volume=mapped.versions["x"], require={"auc": "> 0"})
    m.JobOperator(task_id="all", image="python", command=["x"], inputs={"a": checked.passed})
    assert after.upstream_task_ids == {"count"}
    assert checked.downstream_task_ids == {"all"}
    with pytest.raises(SpecError, match="task 'count' has no output 'y'; its outputs are x"):
        mapped.versions["y"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda b: b.expand(params=[{"n": 1}, {"x": 2}]), "has no param 'n'; its params are: x (mapped instance 1)"),
        (lambda b: b.expand(params=["n"]), "task 'a', params: 'n': expected a mapping"),
        (lambda b: b.expand(typo=[1]), "task 'a', typo: JobOperator takes no such keyword"),
        (lambda b: b.expand(params=3), "task 'a': "),
        (lambda b: b.expand_kwargs([{"params": {"n": 1}, "replicas": -1}]), "replicas of role main is -1"),
        (lambda b: b.expand(inputs=m.JobOperator(
            task_id="x", image="a", command=["a"], outputs={"o": "f/o"}).versions["o"]),
         "task 'a', expand(inputs=…): how many versions 'x' left is known to no scheduler"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_mapped_task_is_refused_where_it_is_written(
    dag: DAG, make: Any, says: str
) -> None:
    begun = m.JobOperator.partial(task_id="a", image="python", command=["a", "{params.n}"])
    with pytest.raises(SpecError) as caught:
        make(begun)
    assert says in str(caught.value)


def test_a_dag_file_whose_name_is_no_modules_travels_under_one(dag: DAG, tmp_path: Path) -> None:
    operator = job(merge)(parts=[]).operator
    folder = DagFolder(file=tmp_path / "my-dags" / "2nd-dag.py", bundle=tmp_path)
    folder.path.mkdir()
    folder.file.write_text("")
    operator.source = replace(operator.source, file=folder.file)
    (role,) = operator.gang(folder)
    assert role.entrypoint == "my_dags._2nd_dag:merge"
    assert "my_dags/_2nd_dag.py" in operator.travelling(folder).files


def test_a_resumed_run_sees_a_changed_function_and_not_a_moved_one(tmp_path: Path) -> None:
    from muster.airflow.authoring.code import differing

    text = source_of(merge).text
    head, _, rest = text.partition("\n")
    store = FolderStore(tmp_path / "store")
    (tmp_path / "dags").mkdir()
    before = Code(root=tmp_path / "dags", files=()).having("d/dag.py", text)
    then = before.put(store)
    moved = Code(root=tmp_path / "dags", files=()).having("d/dag.py", head + "\n\n\n" + rest)
    changed = moved.having("d/dag.py", text.replace('"x"', '"y"'))
    assert differing(then, ("d/dag.py",), moved, store) == ()
    assert differing(then, ("d/dag.py",), changed, store) == ("d/dag.py",)


def test_in_a_task_group_too(dag: DAG) -> None:
    from airflow.sdk import TaskGroup

    with TaskGroup("months", default_args={"muster": {"priority": "low"}}):
        written = job(fit, outputs={"model": "f/model"}).partial(rows="f/rows").expand(epochs=[1, 2])
        merged = job(merge)(parts=written.versions["model"])
        counted = m.JobOperator.partial(task_id="count", image="python", command=["a"]).expand(
            params=[{"n": 1}]
        )
    assert merged.operator.task_id == "months.merge"
    assert merged.operator.upstream_task_ids == {"months.fit"}
    assert merged.operator.priority == "low"
    assert [sample.priority for sample in written.operator.samples()] == ["low", "low"]
    assert [sample.task_id for sample in counted.samples()] == ["months.count"]


@pytest.mark.parametrize(
    "value",
    [[1, "a", None], {"rate": 0.5, "deep": {"on": True}}, True, False, None, 0, 2.5, "5", "", "é\n{{ x }}"],
)
def test_a_param_of_the_form_keeps_its_type(dag: DAG, value: object) -> None:
    """Jinja alone makes text of every value; and what a value holds is not read as Jinja again."""
    operator = job(merge)(parts=[], where="{{ params.given }}").operator
    operator.render_template_fields({"dag": dag, "params": {"given": value}})
    assert (operator.job_params["where"], type(operator.job_params["where"])) == (value, type(value))


def test_the_form_shows_what_the_dags_params_say(dag: DAG) -> None:
    from airflow.sdk import DAG, Param
    from airflow.serialization.serialized_objects import DagSerialization

    params = {"epochs": Param(3, type="integer", minimum=1, title="Epochs", description="How often")}
    with DAG("form", schedule=None, start_date=START, params=params) as form:
        job(fit, outputs={"model": "f/model"}, params={"epochs": "{{ params.epochs }}"})(rows="f/rows")
    again = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(form))
    param = again.params.get_param("epochs")
    assert param.schema == {"type": "integer", "minimum": 1, "title": "Epochs"}
    assert param.description == "How often"
    assert dict(again.get_task("fit").params) == {"epochs": 3}


def test_other_fields_name_a_tasks_own_params(dag: DAG) -> None:
    partition = m.Output(volume="f/model", partition="{{ task.job_params.where }}")
    operator = job(_write, outputs={"model": partition})(where="{{ params.given }}").operator
    operator.render_template_fields({"dag": dag, "task": operator, "params": {"given": "2024-01"}})
    assert operator.outputs == {"model": {"volume": "f/model", "partition": "2024-01"}}


def _write(model: Path, where: str) -> None: ...
