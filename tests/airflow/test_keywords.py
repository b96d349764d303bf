"""Every keyword of every operator against every kind of nonsense: one error, while the Dag is parsed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

# Airflow may be imported only once the home is there, so the operators are named through the package.
import muster.airflow as m
from muster.airflow.embedded.home import EmbeddedHome
from muster.core.errors import SpecError
from muster.core.job import Role
from muster.core.resources import Resources
from muster.ext.search.space import uniform

if TYPE_CHECKING:
    from airflow.sdk import DAG

START = datetime(2024, 1, 1)  # noqa: DTZ001 - as authors write it

TASKS: dict[str, dict[str, Any]] = {
    "JobOperator": {"image": "python", "entrypoint": "d:go"},
    "GangOperator": {"image": "python", "entrypoint": "d:go"},
    "ValidateOperator": {"volume": "x/y"},
    "GateOperator": {"volume": "x/y", "require": {"auc": "> 0.5"}},
    "DeployOperator": {"name": "x", "model": "x/y"},
    "RollbackOperator": {"name": "x"},
    "SearchOperator": {
        "image": "python",
        "entrypoint": "d:go",
        "space": {"rate": uniform(0, 1)},
        "metric": "auc",
        "rungs": (1, 3),
    },
    "ScoreOperator": {"model": "x/y", "rows": "x/z", "outputs": "x/scores"},
    "DriftOperator": {"deployment": "x"},
    "IngestOperator": {"source": "s3://bucket/events", "volume": "x/y"},
    "MirrorOperator": {"target": "/mirror"},
}
NONSENSE = {
    "a number": 7,
    "a negative": -1,
    "a fraction": 1.5,
    "not a number": float("nan"),
    "true": True,
    "nothing": "",
    "long": "x" * 300,
    "lines": "a\nb",
    "above": "../..",
    "absolute": "/etc/passwd",
    "bytes": b"x",
    "list": ["../x"],
    "no JSON": {"a": object()},
    "numbered": {1: 2},
    "object": object(),
    "empty": (),
}
MEANT = {  # what of this is sense after all
    "a number": {
        "at_once",
        "keep",
        "keep_checkpoints",
        "max_requests",
        "max_restarts",
        "ranks",
        "most_replicas",
        "replicas",
        "retries",
        "retry_delay",
        "rows_at_once",
        "seed",
        "shards",
        "streams",
        "tolerance",
        "trial_retries",
        "trials",
        "workers",
    },
    "a fraction": {"retry_delay", "tolerance"},
    "true": {
        "allow_older",
        "cache",
        "grpc",
        "keep_deleted",
        "lower_is_better",
        "require_gpus",
        "retire_failed",
        "stream",
        "tokens",
        "verify",
    },
    "long": {"metric", "target"},
    "above": {"airflow_queue", "code", "metric", "reason", "target"},  # code may lie beside the Dag's folder
    "absolute": {"airflow_queue", "metric", "reason", "target"},
    "list": {"code", "columns", "command", "ScoreOperator.keep"},
    "empty": {"code", "columns", "earlier", "trusted", "volumes", "ScoreOperator.keep"},
}
NO_SENSE = {  # to this operator, though to others it is
    "ScoreOperator": {"keep"},
    "SearchOperator": {"cache", "metric"},
}
NO_JSON = {"not a number", "bytes", "no JSON", "object"}  # the rest is sense as a cache_key


@pytest.fixture
def dag(home: EmbeddedHome) -> Iterator[DAG]:
    from airflow.sdk import DAG

    with DAG("d", schedule=None, start_date=START) as dag:
        yield dag


def words(operator: type) -> set[str]:
    """The keywords that muster's own constructors take, as authors write them."""
    made = [vars(each).get("__init__") for each in operator.__mro__ if each.__module__.startswith("muster")]
    every = set[str]().union(*(getattr(init, "_BaseOperatorMeta__param_names", ()) for init in made))
    return {word.removeprefix("job_") for word in every}


def build(name: str, /, **changes: Any) -> Any:
    return getattr(m, name)(**{"task_id": "a", **TASKS[name], **changes})


def refused(name: str, /, **changes: Any) -> str:
    """What building it is refused with; empty if it is not."""
    if changes.keys() & {"command", "roles"}:
        changes["entrypoint"] = None
    try:
        build(name, **changes)
    except SpecError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", TASKS)
def test_every_keyword_has_a_rule_and_every_refusal_names_it(dag: DAG, name: str) -> None:
    wrong = []
    for number, (word, kind) in enumerate(product(sorted(words(getattr(m, name))), NONSENSE)):
        said = refused(name, task_id=f"a{number}", **{word: NONSENSE[kind]})
        sense = MEANT.get(kind, set())
        meant = (
            word in sense - NO_SENSE.get(name, set())
            or f"{name}.{word}" in sense
            or (word == "cache_key" and kind not in NO_JSON)
        )
        clear = said.startswith(f"task 'a{number}'") and word.rstrip("s") in said and "\n" not in said
        if bool(said) == meant or (said and not (clear and len(said) < 400)):
            wrong.append((word, kind, said))
    assert wrong == [], "\n".join(map(repr, wrong))


@pytest.mark.parametrize(
    ("name", "word", "says"),
    [
        (
            "JobOperator",
            "resource",
            "task 'a', resource: JobOperator takes no such keyword; did you mean resources?",
        ),
        ("JobOperator", "retry", "retry: JobOperator takes no such keyword; did you mean retries?"),
        ("GangOperator", "replica", "replica: GangOperator takes no such keyword; did you mean replicas?"),
        ("ValidateOperator", "outputs", "outputs: ValidateOperator takes no such keyword"),
        ("GateOperator", "requires", "did you mean require?"),
        ("DeployOperator", "volume", "volume: DeployOperator takes no such keyword"),
        ("DeployOperator", "resourcs", "did you mean resources?"),
        ("DeployOperator", "trigger_rul", "did you mean trigger_rule?"),
        ("DriftOperator", "fewest_rows", "write limits=DriftLimits(fewest_rows=…)"),
        ("DriftOperator", "zebra", "it takes airflow_queue, columns, deployment, "),
        ("DriftOperator", "zebra", "window, and Airflow's own"),
    ],
)
def test_a_keyword_that_is_nearly_one_is_named(dag: DAG, name: str, word: str, says: str) -> None:
    assert says in refused(name, **{word: 1})
    with pytest.raises(SpecError, match=f"{word}: "):
        getattr(m, name).partial(task_id="b", **{word: 1})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"command": ["cat", "{inputs.typo}"]}, "command: command word '{inputs.typo}': the job has no input 'typo'; its inputs are: rows"),
        ({"command": ["--to={outputs.rows}"]}, "has no output 'rows'; its outputs are: model"),
        ({"command": ["{params.}"]}, "has no param ''"),
        ({"roles": [Role(command=("a", "{params.x}"))]}, "has no param 'x'; its params are: epochs"),
        ({"command": ["{inputs.rows}", "{outputs.model}", "{params.epochs}", "{checkpoints}", "{x}", "{{"]}, ""),
        ({"command": ["{{ params.typo }}", "{{params.typo}}"]}, ""),
    ],
)  # fmt: skip
def test_a_commands_places_are_read_where_they_stand(dag: DAG, changes: dict[str, Any], says: str) -> None:
    said = refused(
        "JobOperator", inputs={"rows": "x/y"}, outputs={"model": "x/z"}, params={"epochs": 1}, **changes
    )
    assert (says in said) if says else (said == "")


def test_a_task_without_an_image_says_where_one_is_given(dag: DAG) -> None:
    assert "task 'a', image: none is given: name it here, or for all tasks" in refused(
        "JobOperator", image=None
    )


def test_an_output_has_any_name_that_a_function_can_take(dag: DAG) -> None:
    later = m.Output(volume="f/{{ ds }}", partition="{{ ds }}")
    monthly = m.Output(volume="f/x", partition="{{ ds }}")
    assert refused("JobOperator", outputs={"all_": later, "_B": later, "x" * 63: monthly}) == ""
    assert "output 1: need a Python identifier" in refused(
        "JobOperator", task_id="b", outputs={1: "{{ params.volume }}"}
    )


def test_a_whole_task_is_no_input(dag: DAG) -> None:
    made = build("JobOperator", task_id="first", outputs={"x": "f/x"})
    said = refused("JobOperator", inputs={"x": made.output})
    assert "inputs['x']: a task, 'first': expected one of its versions; it has .versions['x']" in said


SHARED = {
    "image": "train",
    "queue": "gpus",
    "priority": "high",
    "resources": Resources(cpus=4),
    "secrets": {"TOKEN": "environment:TOKEN"},
    "env": {"A": "b"},
    "require_gpus": True,
    "pod_override": {"spec": {"nodeSelector": {"zone": "a"}}},
}


def tasks(default_args: dict[str, Any]) -> dict[str, Any]:
    from airflow.providers.standard.operators.bash import BashOperator
    from airflow.sdk import DAG

    from muster.airflow import job

    def go() -> None: ...

    with DAG("d", schedule=None, start_date=START, default_args=default_args) as dag:
        for name in TASKS:
            kept = {word: value for word, value in TASKS[name].items() if word != "image"}
            getattr(m, name)(task_id=name, **kept)
        m.JobOperator.partial(task_id="mapped", entrypoint="d:go").expand(params=[{"x": 1}])
        job(task_id="decorated")(go)()
        job(task_id="expanded")(_with_one).expand(x=[1])
        BashOperator(task_id="bash", bash_command="true")
        found = dict(dag.task_dict)
    for name in ("mapped", "expanded"):
        (found[name],) = found[name].samples()
    return found


def _with_one(x: int) -> None: ...


def test_defaults_for_musters_tasks_reach_every_one_of_them_and_no_other(home: EmbeddedHome) -> None:
    found = tasks({"muster": SHARED, "retries": 5})
    bash = found.pop("bash")
    assert (bash.queue, bash.resources, bash.env, bash.retries) == ("default", None, None, 5)
    for name in ("JobOperator", "GangOperator", "SearchOperator", "mapped", "decorated", "expanded"):
        task = found.pop(name)
        given = (task.image, task.job_queue, task.priority, task.job_resources, task.job_secrets, task.env)
        assert given == tuple(
            SHARED[word] for word in ("image", "queue", "priority", "resources", "secrets", "env")
        )
        assert task.pod_override == SHARED["pod_override"]
        assert (task.require_gpus, task.queue, task.retries) == (True, "default", 5), name
    assert found.pop("RollbackOperator").retries == 5  # it runs nothing
    assert "job_resources" not in vars(found.pop("MirrorOperator"))  # it runs in the task itself
    assert {name: task.job_resources for name, task in found.items()} == dict.fromkeys(
        found, Resources(cpus=4)
    )
    assert {name: task.image for name, task in found.items()} == {  # which have one of their own
        "ValidateOperator": "validate",
        "GateOperator": None,
        "DeployOperator": None,
        "ScoreOperator": None,
        "DriftOperator": "validate",
        "IngestOperator": "ingest",
    }
    for name in found.keys() - {"DeployOperator"}:  # what they run waits like any other
        task = found[name]
        assert (task.job_queue, task.priority, task.pod_override) == tuple(
            SHARED[word] for word in ("queue", "priority", "pod_override")
        )


def test_what_stands_at_a_task_goes_before_its_dags_default(home: EmbeddedHome) -> None:
    from airflow.sdk import DAG

    with DAG("d", schedule=None, start_date=START, default_args={"muster": SHARED, "image": "flat"}):
        task = m.JobOperator(task_id="a", entrypoint="d:go", image="own", queue=None)
        other = m.JobOperator(task_id="b", entrypoint="d:go", default_args={"muster": {"image": "third"}})
    assert (task.image, task.job_queue, other.image, other.job_queue) == ("own", None, "third", None)


def test_a_default_that_no_task_has_is_named(home: EmbeddedHome) -> None:
    from airflow.sdk import DAG

    with (
        DAG("d", schedule=None, start_date=START, default_args={"muster": {"imgae": "x"}}),
        pytest.raises(SpecError, match=r"default_args\['muster'\]\['imgae'\]: .* did you mean image\?"),
    ):
        m.JobOperator(task_id="a", entrypoint="d:go")


@pytest.mark.parametrize("given", [None, "train", ["image"]])
def test_defaults_that_are_no_mapping_are_refused(home: EmbeddedHome, given: object) -> None:
    from airflow.sdk import DAG

    with (
        DAG("d", schedule=None, start_date=START, default_args={"muster": given}),
        pytest.raises(SpecError, match=r"default_args\['muster'\] is .*: expected a mapping"),
    ):
        m.JobOperator(task_id="a", entrypoint="d:go")


def test_a_dag_with_such_defaults_can_be_kept(home: EmbeddedHome) -> None:
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import DagSerialization

    with DAG("d", schedule=None, start_date=START, default_args={"muster": SHARED}) as dag:
        m.JobOperator(task_id="a", entrypoint="d:go")
        m.JobOperator.partial(task_id="b", entrypoint="d:go").expand(params=[{"x": 1}])
    again = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    assert [again.get_task(name).queue for name in "ab"] == ["default", "default"]


def test_defaults_yield_to_what_a_constructor_written_by_hand_passes_on(home: EmbeddedHome) -> None:
    from airflow.sdk import DAG

    class Echo(m.JobOperator):
        def __init__(self, *, word: str, **more: Any) -> None:
            super().__init__(command=["echo", word], image="python", queue="cpus", **more)

    with DAG("d", schedule=None, start_date=START, default_args={"muster": SHARED}):
        echo = Echo(task_id="a", word="x")
        other = Echo(task_id="b", word="y", priority="low")
    assert (echo.image, echo.job_queue, echo.priority, echo.command) == (
        "python",
        "cpus",
        "high",
        ["echo", "x"],
    )
    assert (other.priority, other.env) == ("low", {"A": "b"})


@pytest.mark.parametrize(
    ("name", "word", "value", "way"),
    [
        ("JobOperator", "image", "{{ params.img }}", r"map the task over it, .expand(image=…)"),
        ("JobOperator", "replicas", "{{ params.n }}", "write its value"),
        ("DeployOperator", "name", "price-{{ params.env }}", "map the task over it, .expand(name=…)"),
        ("GateOperator", "metric", "{{ params.m }}", "write its value"),
    ],
)
def test_a_keyword_that_takes_no_jinja_says_so(dag: DAG, name: str, word: str, value: str, way: str) -> None:
    assert refused(name, **{word: value}) == (
        f"task 'a', {word}: {value!r}: it takes neither Jinja nor a task's result; {way}"
    )


def test_a_gates_rule_may_hold_jinja_and_what_is_known_of_it_is_read(dag: DAG) -> None:
    assert not refused("GateOperator", task_id="b", require={"auc": ">= {{ params.least }}", "n": "> 1"})
    assert "'about 1'" in refused("GateOperator", require={"auc": ">= {{ params.least }}", "n": "about 1"})


def test_a_word_of_a_command_that_is_no_text_is_named(dag: DAG) -> None:
    assert "command of role main: word 5 is no text" in refused("JobOperator", command=["echo", 5])


def test_ids_that_are_too_long_together_are_refused(home: EmbeddedHome) -> None:
    from airflow.sdk import DAG, TaskGroup

    with DAG("d" * 120, schedule=None, start_date=START), TaskGroup("g" * 100):
        assert "the ids of Dag and task have 252 characters together, 250 at most" in refused(
            "JobOperator", task_id="t" * 30
        )
        assert not refused("JobOperator", task_id="t" * 28)


def test_a_dag_in_a_zip_is_refused(dag: DAG) -> None:
    dag.fileloc = "/dags/all.zip/d.py"
    assert "Dag d lies in a zip, /dags/all.zip/d.py" in refused("JobOperator")


def test_the_versions_of_a_task_that_pushes_no_result_are_refused(dag: DAG) -> None:
    silent = build("JobOperator", outputs={"m": "x/m"}, do_xcom_push=False)
    with pytest.raises(SpecError, match=r"task 'a' pushes no result \(do_xcom_push=False\)"):
        silent.versions["m"]
