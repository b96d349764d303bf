"""Gangs that wait for room, in an Airflow whose connection leads to the cluster: deferred, followed, ended with their task."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from tests.cluster import author, kubectl, left, store
from tests.cluster.inside import layout
from tests.cluster.layout import Layout
from tests.site import Site
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

SECONDS = 600
DAG = """
    from datetime import datetime, timedelta
    from airflow.sdk import dag
    from muster.airflow import GangOperator, Resources

    @dag(schedule=None, start_date=datetime(2024, 1, 1), params={"seconds": 5}, default_args={"muster": {"image": "python"}})
    def crowd() -> None:
        for name in ("one", "two"):
            GangOperator(
                task_id=name,
                entrypoint="crowd.steps:hold",
                replicas=2,
                outputs={"out": f"crowd/{name}"},
                params={"seconds": "{{ params.seconds }}"},
                resources=Resources(cpus=0.1, memory_gib=0.25, gpus=8, gpu_class=("gpu-a100",)),
                retry_delay=timedelta(seconds=1),
            )

    crowd()
"""
STEPS = """
    import os
    import time
    from pathlib import Path

    def hold(out: Path, *, seconds: int) -> None:
        print("has its cards", flush=True)
        time.sleep(seconds)
        (out / os.environ["RANK"]).write_text("done")
"""


@pytest.fixture(scope="module")
def here() -> Layout:
    return layout()


@pytest.fixture(scope="module")
def site(here: Layout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """An Airflow that keeps in its own database how the cluster is reached."""
    with author.served(here), Site(tmp_path_factory.mktemp("site")) as site:
        site.write("crowd", DAG, steps=STEPS)
        site.set("muster", connection="gpus", instance="on-cluster", inline_wait=0)
        site.up(seconds=300)
        site.airflow_command("connections", "add", "gpus", *author.connection(here))
        yield site


def succeeds(site: Site, run_id: str) -> dict[str, str]:
    """The tasks' logs of a run that comes to a good end."""
    state = site.wait("crowd", run_id, seconds=SECONDS)
    logs = {name: site.task_log("crowd", run_id, name) for name in ("one", "two")}
    assert state == "success", "\n".join(f"{name}:\n{text}" for name, text in logs.items())
    return logs


def test_one_of_two_gangs_waits_deferred_and_says_for_what(site: Site, here: Layout) -> None:
    run_id = site.trigger("crowd")
    logs = succeeds(site, run_id)
    assert all("the triggerer waits for it" in text for text in logs.values()), logs
    assert all("[rank 0] has its cards" in text for text in logs.values()), logs
    assert any("queued: " in text and "nvidia.com/gpu" in text for text in logs.values()), logs
    kubectl.until("nothing is left", lambda: not left.of_anybody(here))
    token = store.operator_token(here)
    kept = [
        path for path in site.home.rglob("*") if path.is_file() and token[:40].encode() in path.read_bytes()
    ]
    assert kept == [], "the token is in the database, encrypted, and nowhere else"


def test_a_triggerer_that_is_killed_costs_nothing(site: Site, here: Layout) -> None:
    run_id = site.trigger("crowd", {"seconds": 20})
    for name in ("one", "two"):
        site.wait_task("crowd", run_id, name, ("deferred", "success"), seconds=SECONDS)
    triggerer = site.component("triggerer")
    assert triggerer is not None
    os.kill(triggerer, signal.SIGKILL)
    succeeds(site, run_id)
    assert {site.task("crowd", run_id, name)["try_number"] for name in ("one", "two")} == {1}
    kubectl.until("nothing is left", lambda: not left.of_anybody(here))


def test_marking_a_waiting_task_ends_its_gang(site: Site, here: Layout) -> None:
    run_id = site.trigger("crowd", {"seconds": 3600})
    for name in ("one", "two"):
        site.wait_task("crowd", run_id, name, ("deferred",), seconds=SECONDS)
    logs = site.home / "up" / "logs" / "dag_id=crowd" / f"run_id={run_id}"
    assert until(lambda: len([*logs.rglob("*.trigger.*")]) == 2), "the triggerer takes both up"
    kubectl.until(
        "one of them runs",
        lambda: any(name.startswith("pod/") for name in left.of_anybody(here)),
        seconds=120,
    )
    site.mark_run("crowd", run_id, "failed")
    kubectl.until("nothing is left", lambda: not left.of_anybody(here), seconds=180)
