"""Airflow of the chart's own: installed in an empty namespace by three values, asked over its REST API, and hurt."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
from tests.cluster import chart, images, kubectl
from tests.cluster.chart import NAME, Release
from tests.cluster.layout import Layout
from tests.waiting import until

SECONDS = 600
DATABASE = f"{NAME}-airflow-database"
SECRET = f"muster-{NAME}-airflow"
SITE = {
    "image": chart.VALUES["image"],  # which has Airflow here, whatever it is called
    "database": {"small": {"storageClassName": "shared"}},  # this cluster has no default
}
NAMESPACE = f"--namespace={NAME}"
_USER = "admin"


def three(dags: Path) -> tuple[str, ...]:
    """The three values, and how long helm waits."""
    values = {
        "airflow.enabled": "true",
        "airflow.database.small.enabled": "true",
        "airflow.dags.path": str(dags),
    }
    return (*(f"--set={name}={value}" for name, value in values.items()), f"--timeout={SECONDS}s")


class Airflow:
    """It, asked as its first user; a context. :param dag: of which runs are asked for."""

    def __init__(
        self,
        of: Layout,
        *,
        dag: str = "two_stages",
        release: str = NAME,
        namespace: str = NAME,
        secret: str = SECRET,
    ) -> None:
        self._of, self._place, self._secret, self._dag = of, f"--namespace={namespace}", secret, dag
        service = kubectl.get(of, "service", f"{release}-airflow-api-server", self._place)
        self.url = f"http://{service['spec']['clusterIP']}:8080"
        self.client = httpx.Client(base_url=self.url, timeout=60, trust_env=False)

    def __enter__(self) -> Self:
        self.log_in()
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def password(self) -> str:
        """The one that the chart made."""
        secret = kubectl.get(self._of, "secret", self._secret, self._place)["data"]
        return base64.b64decode(secret["password"]).decode()

    def log_in(self) -> None:
        asked = {"username": _USER, "password": self.password()}
        answer = self.client.post("/auth/token", json=asked)
        assert answer.status_code == 201, answer.text
        self.client.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """The JSON that it answers, once it does: a part of it may be starting again."""
        answers: list[httpx.Response] = []

        def answered() -> bool:
            try:
                answers[:] = [self.client.request(method, f"/api/v2/{path}", **options)]
            except httpx.TransportError:
                return False
            return answers[0].status_code < 500

        assert until(answered, seconds=SECONDS), f"{method} {path}: {answers}"
        assert answers[0].status_code < 300, f"{method} {path}: {answers[0].status_code} {answers[0].text}"
        return answers[0].json()

    def known(self) -> None:
        """Return once the Dag is there."""
        there = lambda: self._dag in [each["dag_id"] for each in self.ask("GET", "dags")["dags"]]  # noqa: E731
        assert until(there, seconds=SECONDS), self.ask("GET", "importErrors")

    def trigger(self, **conf: object) -> str:
        """Switch the Dag on, and have a run of it."""
        self.known()
        self.ask("PATCH", f"dags/{self._dag}", json={"is_paused": False})
        begun = self.ask("POST", f"dags/{self._dag}/dagRuns", json={"logical_date": None, "conf": conf})
        return str(begun["dag_run_id"])

    def tasks(self, run_id: str) -> dict[str, dict[str, Any]]:
        found = self.ask("GET", f"dags/{self._dag}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {each["task_id"]: each for each in found}

    def ended(self, run_id: str, *, seconds: float = SECONDS) -> str:
        """How a run ended."""
        state = lambda: str(self.ask("GET", f"dags/{self._dag}/dagRuns/{run_id}")["state"])  # noqa: E731
        assert until(lambda: state() in ("success", "failed"), seconds=seconds), self.tasks(run_id)
        return state()

    def log(self, run_id: str, task_id: str) -> str:
        """The log of a task's last try, as the page shows it."""
        attempt = self.tasks(run_id)[task_id]["try_number"]
        path = f"dags/{self._dag}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{attempt}"
        content = self.ask("GET", path, params={"full_content": True}, headers={"Accept": "application/json"})
        return "\n".join(str(each.get("event", each)) for each in content["content"])

    def result(self, run_id: str, task_id: str) -> Any:
        """What a task returned."""
        path = f"dags/{self._dag}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value"
        return self.ask("GET", path, params={"deserialize": True})["value"]


@contextmanager
def empty(of: Layout, folder: Path) -> Iterator[Release]:
    """A namespace with nothing in it, and volumes that wait for its claims; nothing of it is left afterwards."""
    gone = ("delete", "--ignore-not-found", "persistentvolume", DATABASE)
    try:
        with chart.place(of, folder, release=NAME, namespace=NAME):
            kubectl.run(of, *gone)  # of a test that was killed
            metadata = {"name": NAME, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
            kubectl.apply(of, [{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}, _volume(of)])
            yield Release(of, folder)
    finally:
        kubectl.run(of, *gone)


def kill(of: Layout, part: str, *, pod: str = "", ready: bool = True) -> None:
    """Kill all pods of a part, or one, without a word before.

    :param part: such as ``airflow-scheduler``.
    :param ready: return only when others are ready in their place.
    """
    which = (pod,) if pod else (f"--selector=app={NAME}-{part}",)
    kubectl.run(of, "delete", "pods", NAMESPACE, *which, "--grace-period=0", "--force")
    if ready:
        words = ("rollout", "status", f"deployment/{NAME}-{part}", NAMESPACE, f"--timeout={SECONDS}s")
        kubectl.run(of, *words)


def running(of: Layout, pods: int) -> bool:
    """Whether this number of pods of gangs runs."""
    label = "--selector=jobset.sigs.k8s.io/jobset-name"
    found = kubectl.get(of, "pods", NAMESPACE, label)["items"]
    return sum(each["status"]["phase"] == "Running" for each in found) == pods


def versions(release: Release, *volumes: str) -> dict[str, int]:
    """How many versions each volume has."""
    with release.store() as store:
        return {name: len(store.versions(name)) for name in volumes}


def _volume(of: Layout) -> dict[str, Any]:
    """Room for the small database."""
    folder = of.claim / NAME / "database"
    folder.mkdir(mode=0o700)
    os.chown(folder, images.USER, images.USER)
    return chart.volume(DATABASE, namespace=NAME, claim=DATABASE, folder=f"{NAME}/database")
