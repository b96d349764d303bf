"""Extra links: what a task instance leads to, while its job runs, when it has ended and when it has failed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from muster.core.job import JobSpec, Role
from muster.volumes.folder import FolderStore

if TYPE_CHECKING:
    from muster.airflow.embedded.result import RunResult

STEPS = """
    from pathlib import Path
    def card(report: Path, *, told: bool) -> dict[str, float]:
        (report / "index.html").write_text("<h1>card</h1>")
        print("muster: link MLflow=https://mlflow.example/#/runs/1")
        if not told:
            raise ValueError("no")
        return {"auc": 0.7}
"""
TASK = """
    JobOperator(task_id="card", image="python", entrypoint="{dag}.steps:card", resources=SMALL, retries=0,
                outputs={{"report": "links/{dag}"}}, params={{"told": {told}}})
"""


@pytest.fixture
def links(dag_folder: Path) -> Callable[[str], dict[str, str]]:
    """What Airflow's API gives of one task of the test's last run, as its UI asks for it."""

    def ask(task_id: str) -> dict[str, str]:
        from airflow.models.dagrun import DagRun
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            run = session.scalar(
                select(DagRun).where(DagRun.dag_id == dag_folder.name).order_by(DagRun.id.desc()).limit(1)
            )
            rows = session.execute(
                select(XComModel.key, XComModel.value).where(
                    XComModel.dag_id == run.dag_id,
                    XComModel.run_id == run.run_id,
                    XComModel.task_id == task_id,
                )
            )
            return {key: value for key, value in rows if key.startswith(("_link_", "muster_"))}

    return ask


def test_a_job_that_succeeded(
    write_dag: Callable[..., None],
    run: Callable[..., RunResult],
    links: Callable[[str], dict[str, Any]],
    dag_folder: Path,
) -> None:
    write_dag(TASK.format(dag=dag_folder.name, told=True), steps=STEPS)
    assert run().succeeded
    found = links("card")
    version = f"links/{dag_folder.name}@1"
    assert found["muster_job"].startswith("/plugin/muster/muster/#/jobs/")
    assert found["_link_VersionsLink"] == f"/plugin/muster/muster/#/volumes/{version}"
    assert found["_link_ReportLink"] == f"/plugin/muster/muster/#/files/{version}/index.html"
    assert found["_link_TrackingLink"] == "https://mlflow.example/#/runs/1"


@pytest.mark.nightly  # in CI on Airflow 3.4
def test_a_job_that_failed(
    write_dag: Callable[..., None],
    run: Callable[..., RunResult],
    links: Callable[[str], dict[str, Any]],
    dag_folder: Path,
) -> None:
    write_dag(TASK.format(dag=dag_folder.name, told=False), steps=STEPS)
    assert not run().succeeded
    found = links("card")
    assert found["muster_job"].startswith("/plugin/muster/muster/#/jobs/")
    assert found["_link_TrackingLink"] == "https://mlflow.example/#/runs/1"
    assert set(found) == {"muster_job", "_link_TrackingLink"}, (
        "an empty link costs a request and shows nothing"
    )


@pytest.mark.nightly  # in CI on Airflow 3.4
def test_a_task_that_failed_before_it_had_a_job_leads_to_its_run(
    write_dag: Callable[..., None],
    run: Callable[..., RunResult],
    links: Callable[[str], dict[str, Any]],
    dag_folder: Path,
) -> None:
    write_dag(
        """
        JobOperator(task_id="card", image="python", command=["cat", "{inputs.rows}"], resources=SMALL, retries=0,
                    inputs={"rows": "volume://links/nothing@latest"})
        """
    )
    result = run()
    assert not result.succeeded
    place = f"/plugin/muster/muster/#/runs/{dag_folder.name}/{quote(result.run_id, safe='')}"
    assert links("card") == {"muster_job": place}


def test_a_link_that_cannot_be_computed_is_left_to_airflow_which_logs_why(home: object) -> None:
    from airflow.sdk.bases.operatorlink import BaseOperatorLink

    from muster.airflow.links import JobLink, left

    class Broken(BaseOperatorLink):
        name = "Broken"

        def get_link(self, operator: object, *, ti_key: object) -> str:
            raise OSError("the disk is gone")

    class Empty(Broken):
        def get_link(self, operator: object, *, ti_key: object) -> str:
            return ""

    class Known(Broken):
        def get_link(self, operator: object, *, ti_key: object) -> str:
            return "https://a.example"

    broken = Broken()
    found = left((JobLink(), broken, Empty(), Known()), None, None)
    assert found[0] is broken
    assert [(each.xcom_key, each.get_link(None, ti_key=None)) for each in found[1:]] == [  # type: ignore[arg-type]
        ("_link_Known", "https://a.example")
    ]


class Health(BaseHTTPRequestHandler):
    """What MLflow answers to who asks whether it is there."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    """It listens where ``muster mlflow`` does, but answers nothing until it is served."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as server:
        monkeypatch.setattr("muster.backends.tracking.SHOWN_AT", f"http://127.0.0.1:{server.server_port}")
        yield server


def test_a_run_that_was_tracked_here_is_where_mlflow_is_found(
    home: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mlflow: ThreadingHTTPServer
) -> None:
    from muster.airflow.links import TrackingLink
    from muster.backends.tracking import tracking_database

    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    ledger = FolderStore(tmp_path / "store").ledger
    job = JobSpec(name="a.b", image="python", image_digest=f"b3:{'0' * 64}", roles=(Role(command=("true",)),))
    for job_id in ("fit-1", "fit-2"):
        ledger.create(job_id, job)
    database = tracking_database(tmp_path)
    database.parent.mkdir()
    with closing(sqlite3.connect(database)) as connection, connection:  # the part of MLflow's that is read
        connection.execute("CREATE TABLE runs (run_uuid TEXT, experiment_id INTEGER, start_time INTEGER)")
        connection.execute("CREATE TABLE tags (run_uuid TEXT, key TEXT, value TEXT)")
        connection.execute("INSERT INTO runs VALUES ('9f2c', 3, 1)")
        connection.execute("INSERT INTO tags VALUES ('9f2c', 'muster.job_id', 'fit-1')")
    run = "#/experiments/3/runs/9f2c"
    assert TrackingLink().of_job("fit-1") == "", "nothing answers there, and a link would lead nowhere"
    thread = Thread(target=mlflow.serve_forever)
    thread.start()
    try:
        assert TrackingLink().of_job("fit-1") == f"http://127.0.0.1:{mlflow.server_port}/{run}"
        assert TrackingLink().of_job("fit-2") == ""
    finally:
        mlflow.shutdown()
        thread.join()
    monkeypatch.setenv("AIRFLOW__MUSTER__MLFLOW_URL", "https://gpu-box.example/mlflow/")
    assert TrackingLink().of_job("fit-1") == f"https://gpu-box.example/mlflow/{run}"
    assert TrackingLink().of_job("fit-2") == ""


def test_below_a_prefix(home: object, monkeypatch: pytest.MonkeyPatch) -> None:
    from muster.airflow.links import page

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.com/team/airflow/")
    assert page("#/jobs/a-1") == "/team/airflow/plugin/muster/team/airflow/muster/#/jobs/a-1"


def test_each_is_known_to_the_provider() -> None:
    """Airflow takes links of a provider from its description, by name."""
    from muster.airflow import links
    from muster.airflow.provider import get_provider_info
    from muster.ext.search import link

    made = {
        f"{module.__name__}.{name}"
        for module in (links, link)
        for name, kind in vars(module).items()
        if name.endswith("Link")
        and name[0] != "_"
        and name != "PushedLink"
        and kind.__module__ == module.__name__
    }
    assert set(get_provider_info()["extra-links"]) == made
