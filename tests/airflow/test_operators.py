"""What a Dag file may say: refused where it is wrong, and Airflow's own words left alone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.airflow.fresh import printed

# Airflow may be imported only once the home is there, so the operators are named through the package.
import muster.airflow as m
from muster.airflow.authoring.values import Output
from muster.airflow.embedded.home import EmbeddedHome
from muster.core.errors import SpecError
from muster.core.job import JobSpec, Role, SecretRef
from muster.core.resources import Resources

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from muster.backends.base import Backend

START = datetime(2024, 1, 1)  # noqa: DTZ001 - as authors write it


@pytest.fixture
def dag(home: EmbeddedHome) -> DAG:
    from airflow.sdk import DAG

    return DAG("d", schedule=None, start_date=START, params={"month": "2013-03"})


def job(**changes: Any) -> m.JobOperator:
    return m.JobOperator(**{"task_id": "a", "image": "python", "entrypoint": "d.steps:go", **changes})


def deploy(**keywords: Any) -> Any:
    return m.DeployOperator(task_id="a", name="x", model="x/y", **keywords)


def gate(**changes: Any) -> m.GateOperator:
    return m.GateOperator(task_id="a", volume="x/y", require={"auc": "> 0.5"}, **changes)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: job(inputs={"rows": "s3://bucket/rows.parquet"}),
            r"inputs\['rows'\]: address 's3://bucket/rows.parquet': expected a version of a volume",
        ),
        (lambda: job(image="Not A Name"), "task 'a', image: 'Not A Name': need lower-case"),
        (
            lambda: job(entrypoint="train.py"),
            "task 'a', the job: entrypoint 'train.py': expected 'package.module",
        ),
        (lambda: job(command=["x"]), "task 'a', the job: role main: give an entrypoint or a command"),
        (lambda: job(entrypoint=None), "give an entrypoint or a command"),
        (lambda: job(entrypoint=None, command="python train.py"), "one text; give its words"),
        (
            lambda: job(entrypoint=None, command=["torchrun", "t.py"], launcher="torchrun"),
            "task 'a', command: torchrun starts ranks of its own",
        ),
        (
            lambda: m.GangOperator(
                task_id="a",
                image="python",
                roles=[Role(command=("env", "A=b", "mpirun", "-np", "2", "x.py"))],
            ),
            r"task 'a', command: mpirun starts ranks of its own.*command=\['python', 'x.py'\], ranks=2",
        ),
        (lambda: job(resources={"cpus": 2}), r"task 'a', resources: expected Resources\("),
        (lambda: job(launcher="mpirun"), "task 'a', launcher: 'mpirun': expected plain, torchrun, horovod"),
        (lambda: job(replicas=0), "replicas of role main is 0"),
        (lambda: job(replicas=(4, 2)), "at least 4 replicas and at most 2"),
        (lambda: job(replicas=(2, 3, 4)), "expected a number, or the least and the most"),
        (lambda: job(replicas=(0, 2)), "least_replicas of role main is 0"),
        (lambda: job(replicas=("2", 4)), "least_replicas of role main is '2'"),
        (lambda: job(run_timeout=3600), "task 'a', run_timeout: 3600: expected a timedelta above 0"),
        (lambda: job(run_timeout=timedelta(0)), "run_timeout: .*: expected a timedelta above 0"),
        (lambda: job(inputs={"x": "Flights"}), r"task 'a', inputs\['x'\]: volume 'Flights'"),
        (lambda: job(inputs={"x": "f/x@7/part.csv"}), "names a file; an input is a whole version"),
        (lambda: job(inputs={"x": 7}), r"inputs\['x'\]: 7: expected an address"),
        (lambda: job(outputs={"x": "../x"}), r"task 'a', outputs\['x'\]: volume '\.\./x'"),
        (lambda: job(outputs={"x": "a/x", "y": "a/x"}), "two outputs go to the same volume"),
        (lambda: job(outputs={"x": "a/x"}, params={"x": 1}), "'x' is both output and param"),
        (lambda: job(params={"checkpoints": 3}), "the name is muster's own"),
        (lambda: job(params={"x": {1, 2}}), "param 'x' is"),
        (lambda: job(env={"MUSTER_HOME": "x"}), "the prefix MUSTER_ is muster's own"),
        (lambda: job(secrets={"TOKEN": "hunter2"}), r"task 'a', secrets\['TOKEN'\]: expected where"),
        (lambda: job(roles=[Role(entrypoint="a:b")]), "give roles, or an entrypoint or command, not both"),
        (lambda: job().versions["model"], "task 'a' has no output 'model'; its outputs are none"),
        (lambda: m.ValidateOperator(task_id="a", volume=3), "task 'a', volume: 3: expected an address"),
        (lambda: m.GateOperator(task_id="a", volume="x/y"), "a gate needs require, not_worse_than, or both"),
        (
            lambda: m.GateOperator(task_id="a", volume="x/y", require={"auc": "high"}),
            "task 'a', require: rule 'high'",
        ),
        (lambda: m.GateOperator(task_id="a", volume="x/y", not_worse_than="champion"), "say which metric"),
        (
            lambda: job(outputs={"x": m.Output(volume="a/b", partition="2013")}),
            r"outputs\['x'\]: partition '2013'",
        ),
        (lambda: job(outputs={"x": m.Output(volume="a/../b")}), r"outputs\['x'\]: volume 'a/../b'"),
        (lambda: job(resources={"cpus": 1}), "resources: expected Resources"),
        (
            lambda: m.ValidateOperator(task_id="a", volume="x/y", resources={"cpus": 1}),
            "resources: expected Resources",
        ),
        (lambda: m.ValidateOperator(task_id="a", volume="x/y", run_timeout=9), "run_timeout: 9: expected a"),
        (lambda: gate(run_timeout=timedelta(0)), "run_timeout: .*: expected a timedelta above 0"),
        (lambda: gate(resources=3), "resources: expected Resources"),
        (lambda: gate(tolerance="a"), "tolerance: 'a': expected a number"),
        (lambda: gate(tolerance=float("inf")), "tolerance: inf: expected a number"),
        (
            lambda: m.DeployOperator(task_id="a", name="x", model="x/y", load_timeout=60),
            "load_timeout: 60: expected a timedelta",
        ),
        (
            lambda: m.DeployOperator(task_id="a", name="x", model="x/y", resources=3),
            "resources: expected Resources",
        ),
        (
            lambda: m.DeployOperator(task_id="a", name="My Model", model="x/y"),
            "task 'a', name: 'My Model': need lower-case",
        ),
        (lambda: deploy(steps=5), "steps: 5: expected percents of the traffic, such as "),
        (lambda: deploy(steps=[25, 5, 100]), r"steps: steps is \[25, 5, 100\]: need percents that rise"),
        (lambda: deploy(steps=[5, 101]), "whole numbers from 1 to 100"),
        (lambda: deploy(steps=["5", 100]), "whole numbers from 1 to 100"),
        (lambda: deploy(steps=[]), "whole numbers from 1 to 100"),
        (lambda: deploy(hold=60), "hold: 60: expected a timedelta from 0 on"),
        (lambda: deploy(hold=timedelta(-1)), "hold: .*: expected a timedelta from 0 on"),
        (lambda: deploy(steps=[5, 100], hold=[timedelta(1)] * 3), "steps: hold_seconds .*: need one, or 2"),
        (lambda: deploy(rules={"max_error_share": 0.1}), r"rules: expected Rules\(max_error_share=…"),
        (lambda: deploy(rules=m.Rules(max_error_share=5)), "max_error_share is 5: need a share, 0 to 1"),
        (lambda: deploy(comparison="/etc/passwd"), "comparison: .*, found an absolute one"),
        (lambda: deploy(comparison="../x"), "comparison: .* leaves the Dag's folder"),
        (lambda: deploy(replicas=0), "replicas: 0: expected a whole number, 1 or more"),
        (lambda: deploy(replicas=3, most_replicas=2), "most_replicas: 2 is below its 3 replicas"),
        (lambda: m.RollbackOperator(task_id="a", name="My Model"), "name: 'My Model': need lower-case"),
        (lambda: m.RollbackOperator(task_id="a", name="x", reason="a\nb"), "reason: .*: expected one line"),
    ],
)
def test_what_is_wrong_is_refused_while_the_dag_is_parsed(
    dag: DAG, make: Callable[[], Any], says: str
) -> None:
    with dag, pytest.raises(SpecError, match=says):
        make()


def test_a_secret_given_as_a_value_is_not_shown(dag: DAG) -> None:
    with dag, pytest.raises(SpecError) as caught:
        job(secrets={"TOKEN": "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_what_is_rendered_later_is_not_judged_now(dag: DAG) -> None:
    from airflow.sdk import Asset

    with dag:
        task = job(
            entrypoint="{{ params.month }}",
            inputs={"x": "{{ params.month }}", "y": "f/x@<{{ params.month }}"},
            outputs={"z": Output(volume="f/z", partition="{{ params.month }}"), "w": "{{ params.month }}/x"},
        )
    assert task.outlets == [Asset("volume://f/z")]


def test_airflows_own_words_keep_their_meaning(dag: DAG) -> None:
    """`params`, `queue` and `resources` are the author's here; what Airflow calls so is as if unsaid."""
    from muster.airflow.authoring.references import Expression

    with dag:
        plain = m.JobOperator(task_id="plain", image="python", command=["true"])
        task = job(
            params={"month": "{{ params.month }}", "deep": 3}, queue="gpus", resources=Resources(cpus=2)
        )
        routed = job(task_id="routed", airflow_queue="celery-2")
    assert task.params.dump() == plain.params.dump() == {"month": "2013-03"}
    assert isinstance(task.job_params["month"], Expression)
    assert task.job_params["deep"] == 3
    assert (task.queue, task.job_queue) == (plain.queue, "gpus")
    assert task.resources is None
    assert task.job_resources == Resources(cpus=2)
    assert routed.queue == "celery-2"
    assert task.retries == 2
    assert job(task_id="once", retries=0, dag=dag).retries == 0


def test_of_a_mapped_task_too_the_scheduler_sees_its_own_words_alone(dag: DAG) -> None:
    """Airflow reads `resources` of a mapped task as its own, and could then load no Dag of the folder."""
    from airflow.serialization.serialized_objects import DagSerialization

    with dag:
        m.JobOperator.partial(
            task_id="a", image="python", queue="gpus", resources=Resources(cpus=2), airflow_queue="celery-2"
        ).expand(command=[["true"], ["false"]])
        m.JobOperator.partial(task_id="b", image="python").expand(command=[["true"]])
    again = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    assert [again.get_task(name).queue for name in "ab"] == ["celery-2", "default"]


def test_defaults_of_the_dag_reach_the_jobs(home: EmbeddedHome) -> None:
    from airflow.sdk import DAG

    defaults = {
        "image": "python",
        "queue": "gpus",
        "resources": Resources(cpus=4),
        "priority": "high",
        "retries": 5,
    }
    with DAG("d", schedule=None, start_date=START, default_args=defaults):
        task = m.JobOperator(task_id="a", command=["true"])
    assert (task.image, task.job_queue, task.priority, task.retries) == ("python", "gpus", "high", 5)
    assert task.job_resources == Resources(cpus=4)
    assert task.queue == "default"


def test_a_reference_makes_the_dependency_and_shows_as_jinja(dag: DAG) -> None:
    from airflow.sdk import Asset

    with dag:
        first = job(task_id="first", outputs={"x": "f/x"})
        checked = m.ValidateOperator(task_id="check", volume=first.versions["x"])
        second = m.GangOperator(
            task_id="second", image="python", entrypoint="d:go", inputs={"x": checked.passed}
        )
        many = job(task_id="many", inputs={"x": [first.versions["x"], "f/y@1"]})
    assert checked.upstream_task_ids == {"first"}
    assert second.upstream_task_ids == {"check"}
    assert many.upstream_task_ids == {"first"}
    assert "['versions']['x'] }}" in str(first.versions["x"])
    assert checked.outlets == [Asset("volume://f/x-validation")]
    assert second.launcher == "torchrun"


def test_what_the_backend_refuses_of_a_job_is_not_put_down_to_another_keyword(dag: DAG) -> None:
    class Cluster:
        def check(self, job: JobSpec) -> tuple[str, ...]:
            raise SpecError(f"queue={job.queue!r}: namespace jobs has no queue {job.queue}; there are team-a")

    backend = cast("Backend", SimpleNamespace(runner=Cluster()))
    with pytest.raises(SpecError) as refused:
        job(entrypoint=None, command=["true"], queue="team-z").check_ready(backend)
    assert str(refused.value) == (
        "task 'a', the job: queue='team-z': namespace jobs has no queue team-z; there are team-a"
    )


def test_secrets_say_where_the_value_is(dag: DAG) -> None:
    from muster.airflow.authoring.values import secret_of

    assert secret_of("connection:mlflow#login") == SecretRef(source="connection", name="mlflow#login")
    assert secret_of("environment:TOKEN") == SecretRef(source="environment", name="TOKEN")


def test_a_connections_field_is_a_secret(home: EmbeddedHome, monkeypatch: pytest.MonkeyPatch) -> None:
    from muster.airflow.site import resolve_secret

    monkeypatch.setenv("AIRFLOW_CONN_MLFLOW", "http://me:pw@host:5000/?token=abc")
    monkeypatch.setenv("PLAIN", "x")
    found = [
        resolve_secret(SecretRef(source="connection", name=f"mlflow#{f}"))
        for f in ("login", "password", "token")
    ]
    assert found == ["me", "pw", "abc"]
    assert resolve_secret(SecretRef(source="connection", name="mlflow")) == "pw"
    assert resolve_secret(SecretRef(source="environment", name="PLAIN")) == "x"
    for secret, missing in (("nosuch#password", "nosuch"), ("mlflow#nosuch", "mlflow#nosuch")):
        with pytest.raises(KeyError) as caught:
            resolve_secret(SecretRef(source="connection", name=secret))
        assert caught.value.args == (missing,)


def test_every_shipped_dag_parses(home: EmbeddedHome) -> None:
    from airflow.dag_processing.dagbag import BundleDagBag

    from muster.core.shipped import shipped

    bag = BundleDagBag(shipped("dags"), bundle_path=shipped("dags"), bundle_name="dags")
    assert bag.import_errors == {}


def test_the_dags_page_can_hold_every_operator(dag: DAG) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    with dag:
        model = job(outputs={"model": "f/model"}, params={"month": "{{ params.month }}"})
        good = m.GateOperator(task_id="gate", volume=model.versions["model"], require={"auc": "> 0.5"})
        m.DeployOperator(task_id="deploy", name="f", model=good.passed)
    written = DagSerialization.serialize_dag(dag)
    again = DagSerialization.deserialize_dag(written)
    assert again.get_task("a").job_params == {"month": "{{ params.month }}"}
    assert again.get_task("deploy").upstream_task_ids == {"gate"}


def test_parsing_imports_neither_store_nor_backend(home: EmbeddedHome, tmp_path: Path) -> None:
    source = (
        "import sys, muster.airflow as m\n"
        "[getattr(m, name) for name in m.__all__]\n"
        "heavy = ('blake3', 'uv', 'typer', 'muster.volumes.folder', 'muster.backends.local')\n"
        "print(*[name for name in heavy if name in sys.modules])\n"
    )
    assert printed(source, home=tmp_path).split() == []


def test_the_provider_is_found_through_its_entry_point(tmp_path: Path) -> None:
    source = (
        "from airflow.providers_manager import ProvidersManager\n"
        "from airflow.configuration import conf\n"
        "info = ProvidersManager().providers['airflow-provider-muster']\n"
        "print(info.version, info.data['name'], repr(conf.get('muster', 'instance')))\n"
    )
    from muster import __version__

    assert printed(source, home=tmp_path).split() == [__version__, "muster", "''"]
