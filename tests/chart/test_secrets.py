"""Keys that the chart makes once: what is in the cluster already is kept, and nothing is made anew beside data that needs the old."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
import yaml
from tests.chart import helm
from tests.chart.examples import AIRFLOW
from tests.chart.helm import NAMESPACE, Document

pytestmark = pytest.mark.chart

DATA = dict.fromkeys(("fernet-key", "jwt-secret", "api-secret-key", "password", "database-password"), "eA==")
SECRET, CLAIM = "secrets/muster-airflow", "persistentvolumeclaims/muster-airflow-database"


class Cluster:
    """An API server that has the kinds of all that the chart makes, and some objects, by their paths in the namespace."""

    def __init__(self) -> None:
        self.objects: dict[str, Document] = {"serviceaccounts/default": {}}
        self.kinds: dict[str, dict[str, str]] = {"jobset.x-k8s.io/v1alpha2": {}, "v1": {"secrets": "Secret"}}
        for each in helm.render(AIRFLOW):
            self.kinds.setdefault(each["apiVersion"], {})[f"{each['kind']}s".lower()] = each["kind"]

    def answer(self, path: str) -> Document | None:
        match path.split("/"):
            case ["version"]:
                return {"major": "1", "minor": "37", "gitVersion": "v1.37.0"}
            case ["api"]:
                return {"kind": "APIVersions", "versions": ["v1"]}
            case ["apis"]:
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": self._groups()}
            case ["api" | "apis", *version] if "/".join(version) in self.kinds:
                kinds = [
                    {"name": name, "kind": kind, "namespaced": True, "singularName": "", "verbs": ["get"]}
                    for name, kind in self.kinds["/".join(version)].items()
                ]
                return {"kind": "APIResourceList", "groupVersion": "/".join(version), "resources": kinds}
            case ["api", "v1", "namespaces", namespace, plural, *name] if namespace == NAMESPACE:
                kind = self.kinds["v1"][plural]
                found = [
                    {"apiVersion": "v1", "kind": kind, "metadata": {"name": each.partition("/")[2]}, **more}
                    for each, more in self.objects.items()
                    if each == "/".join((plural, *name)) or (not name and each.startswith(f"{plural}/"))
                ]
                if not name:
                    return {"kind": f"{kind}List", "apiVersion": "v1", "metadata": {}, "items": found}
                return found[0] if found else None
        return None

    def _groups(self) -> list[Document]:
        versions = [each.split("/") for each in self.kinds if "/" in each]
        return [
            {
                "name": group,
                "versions": [{"groupVersion": f"{group}/{version}", "version": version}],
                "preferredVersion": {"groupVersion": f"{group}/{version}", "version": version},
            }
            for group, version in versions
        ]


@pytest.fixture
def cluster() -> Iterator[tuple[Cluster, str]]:
    """One, and its address."""
    made = Cluster()

    class Server(ThreadingHTTPServer):
        request_queue_size = 128  # helm asks for all groups at once
        daemon_threads = True

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            found = made.answer(self.path.partition("?")[0].strip("/"))
            missing = {"kind": "Status", "apiVersion": "v1", "reason": "NotFound", "code": 404}
            body = json.dumps(found or missing).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def rendered(address: str) -> tuple[dict[str, str], str]:
    """The keys of Airflow's Secret as an install there would make it; or with which words it is refused."""
    values = {**AIRFLOW, "airflow": {**AIRFLOW["airflow"], "secret": ""}}
    words = (
        "--dry-run=server",
        f"--kube-apiserver={address}",
        "--disable-openapi-validation",
        "--is-upgrade",
    )
    only = "--show-only=templates/airflow/secret.yaml"
    done = helm.run(
        *("template", "muster", str(helm.CHART), f"--namespace={NAMESPACE}", "--values=-", only, *words),
        stdin=yaml.safe_dump(values),
    )
    return (yaml.safe_load(done.stdout)["data"] if done.returncode == 0 else {}), done.stderr


def test_keys_are_made_once(cluster: tuple[Cluster, str]) -> None:
    there, address = cluster
    made, _ = rendered(address)
    assert made.keys() == DATA.keys()
    assert all(made.values())
    there.objects |= {SECRET: {"data": made}, CLAIM: {}}
    assert rendered(address)[0] == made


@pytest.mark.parametrize("key", ["fernet-key", "database-password"])
def test_a_secret_that_lacks_a_key_is_refused(key: str, cluster: tuple[Cluster, str]) -> None:
    there, address = cluster
    there.objects |= {SECRET: {"data": {name: value for name, value in DATA.items() if name != key}}}
    assert f"Secret muster-airflow is there and has no {key}: put it back" in rendered(address)[1]


def test_a_database_without_the_keys_that_it_was_made_with_is_refused(cluster: tuple[Cluster, str]) -> None:
    there, address = cluster
    there.objects |= {CLAIM: {}}
    assert (
        "the database of Airflow is there, claim muster-airflow-database, and Secret muster-airflow is not"
        in rendered(address)[1]
    )
