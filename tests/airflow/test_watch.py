"""The example flights_watch: a deployment that keeps its requests, drift that was made, the model trained again, its rows scored."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.airflow.conftest import Seen

from muster.airflow.embedded.home import EmbeddedHome
from muster.airflow.embedded.runner import Wanted, run_dag
from muster.backends.base import Backend
from muster.core.prediction import predictions_volume
from muster.core.settings import Settings
from muster.core.shipped import shipped
from muster.volumes.folder import FolderStore

pytestmark = [pytest.mark.slow, pytest.mark.data]

NAME = "flights-watch"


@pytest.fixture
def run(home: EmbeddedHome, backend: Backend, seen: Seen) -> Iterator[Callable[..., Any]]:
    """Run a Dag of the example; its deployment is retired afterwards."""
    folder = home.dags / "flights_watch"
    shutil.copytree(shipped("dags") / "flights_watch", folder)

    def go(dag_id: str, **params: Any) -> Any:
        return run_dag(dag_id, Wanted(params=params), settings=home.settings, dags=home.dags, listener=seen)

    yield go
    if NAME in backend.deployments.names():
        backend.deployments.retire(NAME)
    shutil.rmtree(folder)


def muster(settings: Settings, *words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "muster", *words, "--json"],
        env={"MUSTER_HOME": str(settings.home), "MUSTER_CACHE": str(settings.cache), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_requests_are_kept_drift_is_found_and_the_model_is_trained_again(
    run: Callable[..., Any],
    home: EmbeddedHome,
    backend: Backend,
    store: FolderStore,
    seen: Seen,
    write_dag: Callable[..., None],
    dag_folder: Path,
) -> None:
    first = run("flights_watch", requests=100)
    assert {stage.state for stage in first.stages} == {"success"}, (first.stages, seen.text[-20:])
    (report,) = store.versions(f"{NAME}/drift")
    metrics = store.record(report.address).metrics
    assert metrics["rows"] == 1000
    assert metrics["drifted"] >= 2
    document = json.loads((store.path(report.address) / "report.json").read_text())
    assert {"carrier", "distance"} <= {each["name"] for each in document["columns"] if each["drifted"]}

    (smoke,) = store.versions(f"{NAME}/smoke")
    asked = json.loads((store.path(smoke.address) / "smoke.json").read_text())
    assert len(asked) == 5
    spec = backend.deployments.champion(NAME)
    assert [(each.name, each.expect["probability"]["max"]) for each in spec.smoke] == [
        (each["name"], 1.0) for each in asked
    ]

    (identity,) = re.findall(rf"muster predictions show ({NAME}-\S+)", "\n".join(seen.text))
    shown = muster(home.settings, "predictions", "show", identity)
    (partition,) = {each.partition for each in store.resolve(f"volume://{predictions_volume(NAME)}@*")}
    assert (shown["partition"], len(shown["rows"]), shown["revision"]) == (partition, 10, "r1")
    assert abs(shown["time"] - report.created) < 3600  # seconds, as all times are
    january = store.resolve(f"volume://{NAME}/rows@2013-01")[0].address
    assert january in {each["version"] for each in shown["lineage"]["ancestors"]}

    write_dag(
        f"""
        from muster.airflow import DriftOperator
        DriftOperator(
            task_id="drift", deployment="{{{{ params.name }}}}", revision="r9", report_volume="{NAME}/other"
        )
        """,
        params=f"{{'name': '{NAME}'}}",
    )
    (unjudged,) = run(dag_folder.name).stages
    assert unjudged.state == "skipped"
    assert unjudged.message.startswith(f"the window of {NAME}, revision r9, from ")
    assert "has 0 rows, and 500 are needed to judge: nothing is known" in unjudged.message
    assert "0 rows of revision r9 (r1 answered): too few to judge, 500 are needed" in "\n".join(seen.text)

    second = run("flights_watch_again")
    assert {stage.state for stage in second.stages} == {"success"}, (second.stages, seen.text[-20:])
    champion = backend.deployments.deployment(NAME).champion
    assert champion is not None
    scores = store.resolve(f"volume://{NAME}/scores@latest")[0]
    record = store.record(scores.address)
    february = store.resolve(f"volume://{NAME}/rows@2013-02")[0]
    assert scores.partition == "2013-02"
    assert record.inputs["model"][0].address == champion.model.address == f"volume://{NAME}/model@2"
    assert record.inputs["rows"][0].address == february.address
    assert record.metrics["rows"] == store.record(february.address).metrics["rows"]
