"""What a validation passes on is what its job looked at."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.airflow.embedded.home import EmbeddedHome
from muster.core.data import Input
from muster.core.job import JobSpec, Role
from muster.core.origin import Origin
from muster.core.status import JobResult, JobState, JobStatus
from muster.volumes.base import Version
from muster.volumes.folder import FolderStore


@pytest.fixture
def own(tmp_path: Path) -> FolderStore:
    """A store of the test's own."""
    return FolderStore(tmp_path / "store")


@pytest.fixture
def add(own: FolderStore, tmp_path: Path) -> Any:
    def add(volume: str, name: str, text: str) -> Version:
        folder = tmp_path / volume.replace("/", "-") / str(len(text))
        folder.mkdir(parents=True)
        (folder / name).write_text(text)
        return own.add(volume, folder)

    return add


@pytest.fixture
def perform(home: EmbeddedHome, own: FolderStore, add: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Try again to validate ``d/rows@latest``: an earlier try's job looked at @1, and @2 is there since."""
    from muster.airflow import ValidateOperator
    from muster.airflow.attempts.run import JobOutcome

    def perform(*, success: bool, retired: str = "", results: Any = None, error: str = "") -> Any:
        looked_at = add("d/rows", "rows", "1")
        if retired:
            own.retire(looked_at.address, reason=retired)
        evaluated = [] if success else [{"success": False, "expectation_config": {"type": "e", "kwargs": {}}}]
        document: dict[str, Any] = {"success": success, "results": evaluated if results is None else results}
        if error:
            document = {"success": False, "error": error}
        result = add("d/rows-validation", "result.json", json.dumps(document))
        zeros = "b3:" + "0" * 64
        data = Input(versions=(looked_at.pinned,), many=True)
        spec = JobSpec(
            name="d.check",
            image="python",
            image_digest=zeros,
            roles=(Role(entrypoint="a:b"),),
            inputs={"data": data},
        )
        own.ledger.create("d-check-1", spec)
        add("d/rows", "rows", "22")
        status = JobStatus(
            job_id="d-check-1",
            state=JobState.SUCCEEDED,
            submitted=0.0,
            result=JobResult(outputs={"result": (result.address,)}),
        )
        outcome = JobOutcome(status=status)
        task = SimpleNamespace(
            backend=SimpleNamespace(store=own), make=lambda build, **_: outcome, origin=Origin()
        )
        monkeypatch.setattr("muster.airflow.attempts.run.TaskRun.of", lambda *_: task)
        operator = ValidateOperator(task_id="check", volume="d/rows@latest")
        return operator.perform({"task": SimpleNamespace(outlets=[])})  # type: ignore[typeddict-item]

    return perform


def test_what_was_looked_at_is_passed_on_and_not_what_came_since(perform: Any) -> None:
    assert perform(success=True)["passed"] == "volume://d/rows@1"


def test_what_was_looked_at_is_retired_and_not_what_came_since(perform: Any, own: FolderStore) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException, match="on volume://d/rows@1"):
        perform(success=False)
    assert [bool(version.retired) for version in own.versions("d/rows")] == [True, False]


def test_what_the_suite_retired_comes_back_when_it_passes(perform: Any, own: FolderStore) -> None:
    perform(success=True, retired="failed expectations.json, see volume://d/rows-validation@1")
    assert [version.retired for version in own.versions("d/rows")] == [None, None]


def test_what_was_retired_for_another_reason_stays_so(perform: Any, own: FolderStore) -> None:
    perform(success=True, retired="wrong rows")
    assert own.versions("d/rows")[0].retired == "wrong rows"


def test_a_suite_that_cannot_be_held_against_the_data_is_named_and_retires_nothing(
    perform: Any, own: FolderStore
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException) as caught:
        perform(success=False, error="no Parquet or CSV file in data")
    assert str(caught.value).splitlines()[:2] == [
        "suite expectations.json cannot be held against volume://d/rows@1",
        "no Parquet or CSV file in data",
    ]
    assert [version.retired for version in own.versions("d/rows")] == [None, None]


def test_what_could_not_be_evaluated_retires_nothing(perform: Any, own: FolderStore) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    raised = {
        "success": False,
        "exception_info": {"raised_exception": True, "exception_message": "no column"},
    }
    with pytest.raises(AirflowFailException, match="nothing is retired"):
        perform(success=False, results=[raised])
    assert [version.retired for version in own.versions("d/rows")] == [None, None]


def no_link(**_: object) -> None:
    """No XCom of a task that Airflow does not run."""


def test_the_first_task_of_a_dag_checks_the_files_of_all(
    home: EmbeddedHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk import DAG
    from airflow.sdk.exceptions import AirflowFailException

    from muster.airflow import JobOperator, ValidateOperator

    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "s.json").write_text('{"expectations": [{"type": "expect_colum_to_exist"}]}')
    with DAG("d", schedule=None) as dag:
        rows = JobOperator(task_id="rows", image="python", command=["x"], outputs={"rows": "d/rows"})
        last = ValidateOperator(task_id="check", volume=rows.versions["rows"], suite="s.json")
    dag.fileloc = str(tmp_path / "d" / "dag.py")
    task_instance = SimpleNamespace(
        dag_id="d", run_id="r", task_id="rows", map_index=-1, start_date=None, id="0", xcom_push=no_link
    )
    context: Any = {"dag": dag, "ti": task_instance}
    for each in (JobOperator, ValidateOperator):
        monkeypatch.setattr(each, "perform", lambda self, context: f"{self.task_id} was done")
    with pytest.raises(
        AirflowFailException, match=r"task 'check', suite: .*did you mean expect_column_to_exist"
    ):
        rows.execute(context)
    assert rows.resume(context) == "rows was done", "a job that has run is not lost to an edit of that file"
    assert last.execute(context) == "check was done", "a task before it has checked them"


@pytest.mark.parametrize(
    ("conf", "warned"),
    [
        ({"epoch": 6}, "'epoch', which is no Param; did you mean epochs?"),
        ({"epochs": 6, "note": "x"}, ""),
        (None, ""),
    ],
)
def test_a_param_that_is_misspelt_in_a_runs_conf_is_warned_of(
    home: EmbeddedHome, monkeypatch: pytest.MonkeyPatch, *, conf: Any, warned: str
) -> None:
    """A trigger over the API with such a name trained with the default, and nothing said so."""
    from airflow.sdk import DAG

    from muster.airflow import JobOperator

    with DAG("d", schedule=None, params={"epochs": 5}) as dag:
        task = JobOperator(task_id="rows", image="python", command=["x"])
    task_instance = SimpleNamespace(
        dag_id="d", run_id="r", task_id="rows", map_index=-1, start_date=None, id="0", xcom_push=no_link
    )
    said: list[str] = []
    monkeypatch.setattr(JobOperator, "perform", lambda self, context: "done")
    monkeypatch.setattr(JobOperator, "warn", lambda self, text: said.append(text))
    context: Any = {"dag": dag, "ti": task_instance, "dag_run": SimpleNamespace(conf=conf)}
    assert task.execute(context) == "done"
    assert warned in "".join(said)
    assert bool(said) == bool(warned)


@pytest.mark.parametrize("skipped", [False, True])
def test_a_task_that_a_defect_ends_has_failed_in_its_run_and_one_that_is_skipped_has_not(
    home: EmbeddedHome, store: FolderStore, monkeypatch: pytest.MonkeyPatch, *, skipped: bool
) -> None:
    from airflow.sdk import DAG
    from airflow.sdk.exceptions import AirflowSkipException

    from muster.airflow import JobOperator

    error = AirflowSkipException("nothing to do") if skipped else KeyError("rows")

    def perform(self: object, context: object) -> None:
        raise error

    with DAG("defect", schedule=None):
        rows = JobOperator(task_id="rows", image="python", command=["x"], outputs={"rows": "d/rows"})
    monkeypatch.setattr(JobOperator, "perform", perform)
    run = f"skipped-{skipped}"
    ti = SimpleNamespace(
        dag_id="defect", run_id=run, task_id="rows", map_index=-1, start_date=None, id=run, xcom_push=no_link
    )
    with pytest.raises(type(error)):
        rows.resume({"ti": ti})  # type: ignore[arg-type]
    ends = [end.line for end in store.ledger.task_ends(dag_id="defect", run_id=run)]
    assert ends == ([] if skipped else ["KeyError: 'rows'"])
