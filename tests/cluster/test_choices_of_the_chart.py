"""Airflow of the chart's own with other choices: a pod for each task, Dags of a volume, and what is set up with the tables."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster import chart_airflow, kubectl
from tests.cluster.chart import NAME, Release
from tests.cluster.chart_airflow import NAMESPACE, SECONDS, SITE, Airflow, kill, versions
from tests.cluster.inside import layout
from tests.cluster.runtime import SOURCE
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

DAG = "two_stages"
MADE = ("two/table", "two/model")
DAGS = Path(__file__).with_name("dags")
VOLUME = "site/dags"
FIRST = {
    "connections.json": json.dumps({"warehouse": {"conn_type": "postgres", "host": "warehouse.example"}}),
    "variables.json": json.dumps({"region": "north"}),
}
CHOICES = {
    **SITE,
    "executor": "KubernetesExecutor",
    "setup": {"secret": "muster-first", "pools": [{"name": "warehouse", "slots": 3}]},
    "dags": {"volume": f"{VOLUME}@latest", "refreshSeconds": 5},
    **{part: {"replicas": 1} for part in ("apiServer", "triggerer")},
}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    of = layout()
    with chart_airflow.empty(of, tmp_path_factory.mktemp("airflow")) as found:
        metadata = {"name": "muster-first", "namespace": NAME}
        kubectl.apply(of, [{"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": FIRST}])
        three = chart_airflow.three(SOURCE / "dags")  # a volume goes before a path
        found.install(*three, airflow=CHOICES)
        yield found


@pytest.fixture(scope="module")
def airflow(release: Release) -> Iterator[Airflow]:
    with Airflow(release.layout) as made:
        yield made


def put(release: Release, folder: Path) -> str:
    """Have a folder as the Dags, and return the version's number."""
    with release.store() as store:
        return str(store.add(VOLUME, folder).number)


def version(airflow: Airflow, run_id: str) -> str:
    """Of which version of the Dags a run is."""
    return str(airflow.ask("GET", f"dags/{DAG}/dagRuns/{run_id}")["bundle_version"])


def test_what_is_set_up_is_there_soon(airflow: Airflow) -> None:
    """The Job that makes it goes on for a moment once there are tables, and Airflow does not wait for it."""
    last = lambda: airflow.ask("GET", "pools")["pools"]  # noqa: E731
    eventually(
        lambda: {each["name"]: each["slots"] for each in last()}.get("warehouse") == 3, seconds=SECONDS
    )
    assert airflow.ask("GET", "connections/warehouse")["host"] == "warehouse.example"
    assert airflow.ask("GET", "variables/region")["value"] == "north"


def test_each_task_has_a_pod_and_a_run_keeps_its_dags(
    release: Release, airflow: Airflow, tmp_path: Path
) -> None:
    """The schedulers are killed amid a run, and the Dags change before its second task."""
    of = release.layout
    first = put(release, DAGS)
    run_id = airflow.trigger(rows=20, seconds=20)
    changed = shutil.copytree(DAGS, tmp_path / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    steps = changed / "two_stages" / "steps.py"
    steps.write_text(steps.read_text().replace('"the total is"', '"the sum is"'))
    eventually(lambda: airflow.tasks(run_id)["rows"]["state"] == "running", seconds=SECONDS)
    kill(of, "airflow-scheduler", ready=False)
    second = put(release, changed)
    eventually(lambda: newest(airflow) == second, seconds=SECONDS)
    assert airflow.tasks(run_id)["train"]["state"] is None, "it has not begun when the Dags change"
    assert airflow.ended(run_id) == "success", airflow.tasks(run_id)
    assert "the total is 190" in airflow.log(run_id, "train")
    hosts = {name: task["hostname"] for name, task in airflow.tasks(run_id).items()}
    assert all(host.startswith(f"two-stages-{name}-") for name, host in hosts.items()), hosts
    again = airflow.trigger(rows=30)
    assert airflow.ended(again) == "success", airflow.tasks(again)
    assert "the sum is 435" in airflow.log(again, "train")
    assert [version(airflow, each) for each in (run_id, again)] == [first, second]
    assert versions(release, *MADE) == dict.fromkeys(MADE, 2)
    left = lambda: kubectl.run(of, "get", "pods", NAMESPACE, "--selector=airflow-worker", "--output=name")  # noqa: E731
    eventually(lambda: left() == "", seconds=SECONDS)


def newest(airflow: Airflow) -> str:
    """The version of the Dags that Airflow has parsed."""
    return str(airflow.ask("GET", f"dags/{DAG}")["bundle_version"])
