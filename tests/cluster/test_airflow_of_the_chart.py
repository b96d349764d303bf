"""Airflow of the chart's own: three values bring it up in an empty namespace, and what runs there outlives its pods."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from tests.cluster import kubectl
from tests.cluster.chart import NAME, Release
from tests.cluster.chart_airflow import (
    DATABASE,
    NAMESPACE,
    SECONDS,
    SECRET,
    SITE,
    Airflow,
    empty,
    kill,
    running,
    three,
    versions,
)
from tests.cluster.inside import layout
from tests.cluster.runtime import SOURCE
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

DAG = "two_stages"
MADE = ("two/table", "two/model")
VALUES = three(SOURCE / "tests" / "cluster" / "dags")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Release, float]]:
    """The chart with Airflow, in a namespace that was empty, and how long that took."""
    with empty(layout(), tmp_path_factory.mktemp("airflow")) as release:
        began = time.monotonic()
        release.install(*VALUES, airflow=SITE)
        yield release, time.monotonic() - began


@pytest.fixture(scope="module")
def airflow(installed: tuple[Release, float]) -> Iterator[Airflow]:
    with Airflow(installed[0].layout) as made:
        yield made


def test_three_values_and_a_run_is_green(
    installed: tuple[Release, float], airflow: Airflow, record_property: Callable[[str, object], None]
) -> None:
    began = time.monotonic()
    run_id = airflow.trigger(rows=20)
    assert airflow.ended(run_id) == "success", airflow.tasks(run_id)
    record_property(
        "Airflow of the chart's own: seconds",
        f"{installed[1]:.0f} until all of it is ready, {time.monotonic() - began:.0f} more until a job and a gang have run",
    )
    assert "wrote 20 rows" in airflow.log(run_id, "rows")
    assert versions(installed[0], *MADE) == {"two/table": 1, "two/model": 1}


def test_a_log_is_read_after_its_pod_is_gone(installed: tuple[Release, float], airflow: Airflow) -> None:
    run_id = airflow.trigger(rows=30)
    assert airflow.ended(run_id) == "success", airflow.tasks(run_id)
    kill(installed[0].layout, "airflow-scheduler")
    kill(installed[0].layout, "airflow-triggerer")
    assert "wrote 30 rows" in airflow.log(run_id, "rows")


@pytest.mark.parametrize(("part", "rows"), [("scheduler", 40), ("triggerer", 50), ("database", 60)])
def test_a_part_that_dies_during_a_run_costs_no_stage_a_second_time(
    part: str, rows: int, installed: tuple[Release, float], airflow: Airflow
) -> None:
    before = versions(installed[0], *MADE)
    run_id = airflow.trigger(rows=rows, seconds=20)
    eventually(lambda: running(installed[0].layout, 2), seconds=SECONDS)
    kill(installed[0].layout, f"airflow-{part}")
    assert airflow.ended(run_id) == "success", airflow.tasks(run_id)
    assert versions(installed[0], *MADE) == {name: number + 1 for name, number in before.items()}


def test_no_job_mounts_the_claim_of_the_database(installed: tuple[Release, float]) -> None:
    words = ("test", NAME, "--logs", f"--filter=name={NAME}-test-accounts", "--timeout=180s")
    done = installed[0].helm(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"ok: refused: a JobSet with the whole of claim {DATABASE}" in done.stdout


def test_an_upgrade_keeps_keys_and_password(installed: tuple[Release, float], airflow: Airflow) -> None:
    of = installed[0].layout
    before = kubectl.get(of, "secret", SECRET, NAMESPACE)["data"]
    installed[0].install(*VALUES, "--set=airflow.dags.refreshSeconds=20", command="upgrade", airflow=SITE)
    assert kubectl.get(of, "secret", SECRET, NAMESPACE)["data"] == before
    airflow.log_in()
    assert airflow.ask("GET", f"dags/{DAG}/dagRuns")["total_entries"] > 0


def test_an_uninstall_keeps_its_data_and_nothing_that_runs(installed: tuple[Release, float]) -> None:
    release = installed[0]
    done = release.helm("uninstall", NAME, "--wait", "--timeout=240s")
    assert done.returncode == 0, done.stdout + done.stderr
    kept = kubectl.run(
        release.layout, "get", "secrets,persistentvolumeclaims", NAMESPACE, "--output=name"
    ).split()
    assert f"secret/{SECRET}" in kept
    assert f"persistentvolumeclaim/{DATABASE}" in kept
    words = ("get", "pods,deployments.apps,services,cronjobs.batch", NAMESPACE, "--output=name")
    kubectl.until("nothing of it runs", lambda: kubectl.run(release.layout, *words) == "", seconds=120)


def test_it_comes_back_with_what_it_had(installed: tuple[Release, float]) -> None:
    """Keys, password, runs and logs of before the uninstall; and it runs more."""
    release, _ = installed
    before = kubectl.get(release.layout, "secret", SECRET, NAMESPACE)["data"]
    release.install(*VALUES, airflow=SITE)
    assert kubectl.get(release.layout, "secret", SECRET, NAMESPACE)["data"] == before
    with Airflow(release.layout) as again:
        (oldest, *_) = again.ask("GET", f"dags/{DAG}/dagRuns", params={"order_by": "run_after"})["dag_runs"]
        assert "wrote 20 rows" in again.log(oldest["dag_run_id"], "rows")
        made = versions(release, *MADE)
        run_id = again.trigger(rows=70)
        assert again.ended(run_id) == "success", again.tasks(run_id)
        assert versions(release, *MADE) == {name: number + 1 for name, number in made.items()}
