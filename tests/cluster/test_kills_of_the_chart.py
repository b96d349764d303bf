"""Each part of the chart's Airflow, and the store's leader, killed ten times amid runs of a Dag with a gang: doubles and losses."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from tests.cluster import chart_airflow, kubectl, nodes
from tests.cluster.chart import NAME, Release
from tests.cluster.chart_airflow import NAMESPACE, SITE, Airflow, kill, running, three, versions
from tests.cluster.inside import layout
from tests.cluster.layout import Layout, node_called
from tests.cluster.runtime import SOURCE
from tests.waiting import eventually, until

pytestmark = [pytest.mark.cluster, pytest.mark.soak]

SECONDS = 1800
MADE = ("two/table", "two/model")
ROUNDS = 10
STORE, STORES = "store", "cpu-0"  # where alone its pods may be
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
PARTS = (
    "airflow-scheduler",
    "airflow-triggerer",
    "airflow-api-server",
    "airflow-dag-processor",
    "airflow-database",
    STORE,
)
TITLE = "Airflow of the chart's own, each part killed ten times amid runs"
Show = Callable[[str, object], None]


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    with chart_airflow.empty(layout(), tmp_path_factory.mktemp("airflow")) as found:
        found.install(*three(SOURCE / "tests" / "cluster" / "dags"), airflow=SITE)
        yield found


@pytest.fixture(scope="module")
def airflow(release: Release) -> Iterator[Airflow]:
    with Airflow(release.layout) as made:
        yield made


def test_ten_kills_of_each_part_double_nothing_and_lose_nothing(
    release: Release, airflow: Airflow, record_property: Show
) -> None:
    """In each round one run, amid which all parts are killed, in another order and at other moments each time.

    None waits for the one before it to be back, so there are moments without any of them.
    """
    of, chosen = release.layout, random.Random(45)
    killed: Counter[str] = Counter()
    states: Counter[str] = Counter()
    tries: Counter[str] = Counter()
    began = time.monotonic()
    for number in range(ROUNDS):
        run_id = airflow.trigger(rows=100 + number, seconds=30)
        if number % 2:  # else the parts go while the run begins
            eventually(lambda: running(of, 2), seconds=SECONDS)
        for part in chosen.sample(PARTS, len(PARTS)):
            kill(of, part, pod=leader(of) if part == STORE else "", ready=False)
            killed[part] += 1
        eventually(lambda: all(ready(of, part) for part in PARTS), seconds=SECONDS)
        states[airflow.ended(run_id, seconds=SECONDS)] += 1
        for name, task in airflow.tasks(run_id).items():
            tries[name] += int(task["try_number"])
    there = versions(release, *MADE)
    seconds = time.monotonic() - began
    record_property(TITLE, f"{dict(killed)} in {seconds:.0f} s, {dict(states)}")
    record_property(TITLE, f"tries of Airflow's: {dict(tries)}; versions: {there}")
    assert killed == dict.fromkeys(PARTS, ROUNDS)
    assert states == {"success": ROUNDS}
    assert there == dict.fromkeys(MADE, ROUNDS)


def test_a_run_goes_on_though_the_database_is_away_for_a_minute(
    release: Release, airflow: Airflow, record_property: Show
) -> None:
    of, before = release.layout, versions(release, *MADE)
    run_id = airflow.trigger(rows=200, seconds=30)
    eventually(lambda: running(of, 2), seconds=SECONDS)
    scale(release, "airflow-database", 0)
    gone = time.monotonic()
    eventually(lambda: time.monotonic() > gone + 60)
    scale(release, "airflow-database", 1)
    away = time.monotonic() - gone
    assert airflow.ended(run_id, seconds=SECONDS) == "success", airflow.tasks(run_id)
    record_property(TITLE, f"a run went on though the database was away for {away:.0f} s")
    assert versions(release, *MADE) == {name: number + 1 for name, number in before.items()}


def test_a_node_of_airflow_is_lost_amid_a_run(
    release: Release, airflow: Airflow, record_property: Show
) -> None:
    """It is marked out of service, as the administrator of a cluster does, and what ran there runs elsewhere."""
    of, before = release.layout, versions(release, *MADE)
    run_id = airflow.trigger(rows=300, seconds=30)
    eventually(lambda: running(of, 2), seconds=SECONDS)
    pods = kubectl.get(of, "pods", NAMESPACE)["items"]
    parts = [pod for pod in pods if pod["metadata"]["labels"].get("app", "").startswith(f"{NAME}-airflow-")]
    there = Counter(pod["spec"]["nodeName"] for pod in parts if pod["spec"]["nodeName"] != STORES)
    ((lost, number),) = there.most_common(1)
    node, began = node_called(lost), time.monotonic()
    nodes.power_off(of, node)
    try:
        kubectl.until(f"{lost} is gone", lambda: not nodes.is_ready(of, node), seconds=SECONDS)
        kubectl.run(of, "taint", "node", lost, OUT_OF_SERVICE)
        state = airflow.ended(run_id, seconds=SECONDS)
        eventually(lambda: all(ready(of, part) for part in PARTS), seconds=SECONDS)
    finally:
        nodes.power_on(of, node)
        kubectl.ask(of, "taint", "node", lost, f"{OUT_OF_SERVICE}-")
    record_property(TITLE, f"{lost} lost with {number} parts: {state} after {time.monotonic() - began:.0f} s")
    assert state == "success", airflow.tasks(run_id)
    assert versions(release, *MADE) == {name: number + 1 for name, number in before.items()}


def scale(release: Release, part: str, replicas: int) -> None:
    """Scale a part to `replicas` pods, and return once they are ready or gone."""
    name = f"{NAME}-{part}"
    kubectl.run(release.layout, "scale", f"deployment/{name}", NAMESPACE, f"--replicas={replicas}")
    words = ("get", "pods", NAMESPACE, f"--selector=app={name}", "--output=name")
    assert until(
        lambda: ready(release.layout, part) if replicas else kubectl.run(release.layout, *words) == "",
        seconds=SECONDS,
    )


def ready(of: Layout, part: str) -> bool:
    """Whether as many pods of a part are ready as there should be, none of which is going."""
    status = kubectl.get(of, "deployment", f"{NAME}-{part}", NAMESPACE)
    pods = kubectl.get(of, "pods", NAMESPACE, f"--selector=app={NAME}-{part}")["items"]
    ready = [
        pod
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        and any(
            each["type"] == "Ready" and each["status"] == "True"
            for each in pod["status"].get("conditions", ())
        )
    ]
    return len(ready) == len(pods) == int(status["spec"]["replicas"])


def leader(of: Layout) -> str:
    """The pod of the store service that has the store's lock: the lock's file has its address."""
    address = (of.claim / NAME / "store" / "service.lock").read_text().partition(":")[0]
    pods = kubectl.get(of, "pods", NAMESPACE, f"--selector=app={NAME}-{STORE}")["items"]
    (found,) = [pod["metadata"]["name"] for pod in pods if pod["status"].get("podIP") == address]
    return str(found)
