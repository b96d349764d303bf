"""Extra links: what a task instance leads to, while its job runs, when it has ended and when it has failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

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
    assert found["_link_VersionsLink"] == found["_link_ReportLink"] == ""
    assert found["_link_TrackingLink"] == "https://mlflow.example/#/runs/1"


def test_below_a_prefix(home: object, monkeypatch: pytest.MonkeyPatch) -> None:
    from muster.airflow.links import page

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.com/team/airflow/")
    assert page("#/jobs/a-1") == "/team/airflow/plugin/muster/team/airflow/muster/#/jobs/a-1"


def test_each_is_known_to_the_provider() -> None:
    """Airflow takes links of a provider from its description, by name."""
    import muster.airflow.links as module
    from muster.airflow.provider import get_provider_info

    named = {name.rpartition(".")[2] for name in get_provider_info()["extra-links"]}
    assert named == {
        name
        for name in vars(module)
        if name.endswith("Link") and name not in ("BaseOperatorLink", "_JobsLink")
    }
