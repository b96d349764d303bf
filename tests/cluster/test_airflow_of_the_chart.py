"""Airflow of the chart's own: three values bring it up in an empty namespace, and what runs there outlives its pods."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from tests.cluster import chart, images, kubectl
from tests.cluster.chart import NAME, Release
from tests.cluster.inside import layout
from tests.cluster.layout import Layout
from tests.cluster.runtime import SOURCE
from tests.waiting import eventually, until

pytestmark = [pytest.mark.cluster, pytest.mark.nightly]

SECONDS = 600
DAG = "two_stages"
DATABASE = f"{NAME}-airflow-database"
SECRET = f"muster-{NAME}-airflow"
THREE = {
    "airflow.enabled": "true",
    "airflow.database.small.enabled": "true",
    "airflow.dags.path": f"{SOURCE}/tests/cluster/dags",
}
VALUES = (*(f"--set={name}={value}" for name, value in THREE.items()), f"--timeout={SECONDS}s")
SITE = {
    "image": chart.VALUES["image"],  # which has Airflow here, whatever it is called
    "database": {"small": {"storageClassName": "shared"}},  # this cluster has no default
}
_NAMESPACE = f"--namespace={NAME}"


class Airflow:
    """It, asked over its REST API as its first user."""

    def __init__(
        self, of: Layout, *, release: str = NAME, namespace: str = NAME, secret: str = SECRET
    ) -> None:
        self._of, self._place, self._secret = of, f"--namespace={namespace}", secret
        service = kubectl.get(of, "service", f"{release}-airflow-api-server", self._place)
        self.url = f"http://{service['spec']['clusterIP']}:8080"
        self._client = httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    def log_in(self) -> None:
        """With the password that the chart made."""
        secret = kubectl.get(self._of, "secret", self._secret, self._place)["data"]
        asked = {"username": "admin", "password": base64.b64decode(secret["password"]).decode()}
        answer = self._client.post("/auth/token", json=asked)
        assert answer.status_code == 201, answer.text
        self._client.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """The JSON that it answers, once it does: a part of it may be starting again."""
        answers: list[httpx.Response] = []

        def answered() -> bool:
            try:
                answers[:] = [self._client.request(method, f"/api/v2/{path}", **options)]
            except httpx.TransportError:
                return False
            return answers[0].status_code < 500

        assert until(answered, seconds=SECONDS), f"{method} {path}: {answers}"
        assert answers[0].status_code < 300, f"{method} {path}: {answers[0].status_code} {answers[0].text}"
        return answers[0].json()

    def trigger(self, **conf: object) -> str:
        known = lambda: DAG in [each["dag_id"] for each in self.ask("GET", "dags")["dags"]]  # noqa: E731
        assert until(known, seconds=SECONDS), self.ask("GET", "importErrors")
        self.ask("PATCH", f"dags/{DAG}", json={"is_paused": False})
        begun = self.ask("POST", f"dags/{DAG}/dagRuns", json={"logical_date": None, "conf": conf})
        return str(begun["dag_run_id"])

    def tasks(self, run_id: str) -> dict[str, dict[str, Any]]:
        found = self.ask("GET", f"dags/{DAG}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {each["task_id"]: each for each in found}

    def ended(self, run_id: str) -> str:
        """How a run ended."""
        state = lambda: str(self.ask("GET", f"dags/{DAG}/dagRuns/{run_id}")["state"])  # noqa: E731
        assert until(lambda: state() in ("success", "failed"), seconds=SECONDS), self.tasks(run_id)
        return state()

    def log(self, run_id: str, task_id: str, attempt: int) -> str:
        """A task's log, as the page shows it."""
        path = f"dags/{DAG}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{attempt}"
        content = self.ask("GET", path, params={"full_content": True}, headers={"Accept": "application/json"})
        return "\n".join(str(each.get("event", each)) for each in content["content"])


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Release, float]]:
    """The chart with Airflow, in a namespace that was empty, and how long that took."""
    of, folder = layout(), tmp_path_factory.mktemp("airflow")
    try:
        with chart.place(of, folder, release=NAME, namespace=NAME):
            metadata = {"name": NAME, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
            kubectl.apply(of, [namespace, _volume(of)])
            began = time.monotonic()
            release = Release(of, folder)
            release.install(*VALUES, airflow=SITE)
            yield release, time.monotonic() - began
    finally:
        kubectl.run(of, "delete", "--ignore-not-found", "persistentvolume", DATABASE)


@pytest.fixture(scope="module")
def airflow(installed: tuple[Release, float]) -> Airflow:
    made = Airflow(installed[0].layout)
    made.log_in()
    return made


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
    assert "wrote 20 rows" in airflow.log(run_id, "rows", 1)
    assert versions(installed[0]) == {"two/table": 1, "two/model": 1}


def test_a_log_is_read_after_its_pod_is_gone(installed: tuple[Release, float], airflow: Airflow) -> None:
    run_id = airflow.trigger(rows=30)
    assert airflow.ended(run_id) == "success", airflow.tasks(run_id)
    kill(installed[0].layout, "scheduler")
    kill(installed[0].layout, "triggerer")
    assert "wrote 30 rows" in airflow.log(run_id, "rows", 1)


@pytest.mark.parametrize(("part", "rows"), [("scheduler", 40), ("triggerer", 50), ("database", 60)])
def test_a_part_that_dies_during_a_run_costs_no_stage_a_second_time(
    part: str, rows: int, installed: tuple[Release, float], airflow: Airflow
) -> None:
    before = versions(installed[0])
    run_id = airflow.trigger(rows=rows, seconds=20)
    eventually(lambda: running(installed[0].layout), seconds=SECONDS)
    kill(installed[0].layout, part)
    assert airflow.ended(run_id) == "success", airflow.tasks(run_id)
    assert versions(installed[0]) == {name: number + 1 for name, number in before.items()}


def test_no_job_mounts_the_claim_of_the_database(installed: tuple[Release, float]) -> None:
    words = ("test", NAME, "--logs", f"--filter=name={NAME}-test-accounts", "--timeout=180s")
    done = installed[0].helm(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"ok: refused: a JobSet with the whole of claim {DATABASE}" in done.stdout


def test_an_upgrade_keeps_keys_and_password(installed: tuple[Release, float], airflow: Airflow) -> None:
    of = installed[0].layout
    before = kubectl.get(of, "secret", SECRET, _NAMESPACE)["data"]
    installed[0].install(*VALUES, "--set=airflow.dags.refreshSeconds=20", command="upgrade", airflow=SITE)
    assert kubectl.get(of, "secret", SECRET, _NAMESPACE)["data"] == before
    airflow.log_in()
    assert airflow.ask("GET", f"dags/{DAG}/dagRuns")["total_entries"] > 0


def test_an_uninstall_keeps_its_data_and_nothing_that_runs(installed: tuple[Release, float]) -> None:
    release = installed[0]
    done = release.helm("uninstall", NAME, "--wait", "--timeout=240s")
    assert done.returncode == 0, done.stdout + done.stderr
    kept = kubectl.run(
        release.layout, "get", "secrets,persistentvolumeclaims", _NAMESPACE, "--output=name"
    ).split()
    assert f"secret/{SECRET}" in kept
    assert f"persistentvolumeclaim/{DATABASE}" in kept
    words = ("get", "pods,deployments.apps,services,cronjobs.batch", _NAMESPACE, "--output=name")
    kubectl.until("nothing of it runs", lambda: kubectl.run(release.layout, *words) == "", seconds=120)


def versions(release: Release) -> dict[str, int]:
    """How many versions each stage has made."""
    with release.store() as store:
        return {name: len(store.versions(name)) for name in ("two/table", "two/model")}


def running(of: Layout) -> bool:
    """Whether both pods of the gang run."""
    label = "--selector=jobset.sigs.k8s.io/jobset-name"
    pods = kubectl.get(of, "pods", _NAMESPACE, label)["items"]
    return sum(each["status"]["phase"] == "Running" for each in pods) == 2


def kill(of: Layout, part: str) -> None:
    """All pods of a part at once, without a word before; return when others are ready in their place."""
    app = f"--selector=app={NAME}-airflow-{part}"
    kubectl.run(of, "delete", "pods", _NAMESPACE, app, "--grace-period=0", "--force")
    kubectl.run(
        of, "rollout", "status", f"deployment/{NAME}-airflow-{part}", _NAMESPACE, f"--timeout={SECONDS}s"
    )


def _volume(of: Layout) -> dict[str, Any]:
    """Room for the small database."""
    folder = of.claim / NAME / "database"
    folder.mkdir(mode=0o700)
    os.chown(folder, images.USER, images.USER)
    return chart.volume(DATABASE, namespace=NAME, claim=DATABASE, folder=f"{NAME}/database")
