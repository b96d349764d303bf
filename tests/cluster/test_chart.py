"""The chart, installed: what it makes works, is kept by upgrades, and may do what it needs and nothing more."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cluster import kubectl
from tests.cluster.chart import NAME, VALUES, Release, asked, release
from tests.cluster.inside import layout
from tests.unit.ext.metrics.conftest import values
from tests.waiting import eventually

from muster.backends.base import Backend
from muster.backends.kubernetes.cluster.facts import holds
from muster.core.data import OutputTarget
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources
from muster.core.shipped import shipped
from muster.core.status import JobState
from muster.ext.metrics.table import MetricsPart
from muster.images.folders import find_image, put_image

pytestmark = pytest.mark.cluster

MUSTER = Path(sys.executable).with_name("muster")
_NAMESPACE = f"--namespace={NAME}"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    with release(layout(), tmp_path_factory.mktemp("chart")) as found:
        yield found


def test_helm_test_puts_a_version_into_the_store_and_reads_it(installed: Release) -> None:
    done = installed.helm("test", NAME, "--logs", "--timeout=180s")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok: that token may not look at volumes" in done.stdout
    assert "ok: and read again, byte for byte" in done.stdout
    assert "ok: as muster writes it, it is taken: a JobSet" in done.stdout
    assert f"ok: refused: a Job under service account {NAME}-operator" in done.stdout
    assert "ok: refused: a JobSet with the store's keys as a volume" in done.stdout


def test_gc_runs(installed: Release) -> None:
    """Its own pod, with a token that it makes itself."""
    kubectl.run(installed.layout, "create", "job", "now", f"--from=cronjob/{NAME}-gc", _NAMESPACE)
    words = ("wait", "--for=condition=complete", "job/now", _NAMESPACE, "--timeout=120s")
    kubectl.run(installed.layout, *words)
    assert "deleted " in kubectl.run(installed.layout, "logs", "job/now", _NAMESPACE)


def test_metrics_of_every_part_are_told_with_the_rights_of_their_own_account(installed: Release) -> None:
    url = f"{installed.address('metrics')}/metrics"

    def told() -> str:
        with suppress(httpx.TransportError):  # it starts
            text = httpx.get(url, timeout=30, trust_env=False).text
            return "" if "it has not answered for" in text else text  # this machine is slow now
        return ""

    text = eventually(told)
    found = values(text)
    parts = {key[1]: number for key, number in found.items() if key[0] == "muster_scrape_success"}
    where_they_are = {MetricsPart.AIRFLOW.value, MetricsPart.KEEPERS.value}
    assert parts == dict.fromkeys({part.value for part in MetricsPart} - where_they_are | {*parts}, 1), text[
        :2000
    ]
    assert found["muster_gpus", "gpu-a100", "free"] == 16
    assert found["muster_queue_jobs", NAME, "waiting"] == 0
    assert found["muster_store_bytes",] > 0


def test_what_the_notes_say_is_all_that_a_person_writes_down(installed: Release, tmp_path: Path) -> None:
    """The file that they print, a token, and muster's doctor finds nothing wrong: with the operator's rights."""
    notes = installed.helm("get", "notes", NAME).stdout
    lines = re.findall(r"^     (\w+ = .*)$", notes, re.MULTILINE)
    told = [line for line in lines if not line.startswith(("store_url", "outside_store_url", "image_prefix"))]
    account = installed.kubeconfig("operator")
    told += [f'store_url = "{installed.url()}"', 'image_prefix = "localhost"', f'kubeconfig = "{account}"']
    (tmp_path / "cluster.toml").write_text("\n".join(told))
    (tmp_path / "token").write_text(installed.token())
    environment = os.environ | {
        "MUSTER_CLUSTER": str(tmp_path / "cluster.toml"),
        "MUSTER_CACHE": str(tmp_path),
    }
    done = subprocess.run(
        [str(MUSTER), "doctor", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    checks = {each["name"]: each for each in json.loads(done.stdout)["checks"]}
    wrong = {name: each["found"] for name, each in checks.items() if each["state"] == "bad"}
    assert wrong == {}
    for name in ("store service", "rights", "reading", "claim", "queue", "flavors", "priorities", "a gang"):
        assert checks[name]["state"] == "ok", checks[name]


MAY = (
    ("operator", "create", "jobsets.jobset.x-k8s.io"),
    ("operator", "create", "secrets"),
    ("operator", "list", "pods"),
    ("reaper", "delete", "pods"),
    ("reaper", "patch", "pods/status"),
    ("metrics", "list", "jobsets.jobset.x-k8s.io"),
)
MAY_NOT = (
    ("metrics", "create", "jobsets.jobset.x-k8s.io"),
    ("metrics", "delete", "pods"),
    ("metrics", "get", "secrets"),
    ("operator", "get", "secrets"),
    ("operator", "list", "secrets"),
    ("operator", "create", "pods"),
    ("operator", "create", "podgroups.scheduling.k8s.io"),  # Kueue starts gangs whole
    ("operator", "create", "pods/exec"),
    ("operator", "create", "pods/proxy"),  # nothing is served here
    ("operator", "create", "roles.rbac.authorization.k8s.io"),
    ("operator", "create", "rolebindings.rbac.authorization.k8s.io"),
    ("operator", "update", "localqueues.kueue.x-k8s.io"),
    ("operator", "create", "networkpolicies.networking.k8s.io"),
    ("operator", "delete", "persistentvolumeclaims"),
    ("reaper", "create", "pods"),
    ("reaper", "get", "secrets"),
    ("job", "get", "pods"),
    ("store", "get", "secrets"),
    ("store", "get", "pods"),
)
MAY_NOWHERE_ELSE = (
    ("operator", "create", "jobsets.jobset.x-k8s.io"),
    ("operator", "list", "pods"),
    ("reaper", "delete", "pods"),
    ("operator", "patch", "clusterqueues.kueue.x-k8s.io"),
    ("operator", "create", "namespaces"),
    ("reaper", "patch", "nodes"),
)


@pytest.mark.parametrize(("account", "verb", "resource"), MAY)
def test_an_account_may_do_its_work(account: str, verb: str, resource: str, installed: Release) -> None:
    assert installed.may(account, verb, resource)


@pytest.mark.parametrize(("account", "verb", "resource"), MAY_NOT)
def test_an_account_may_do_nothing_else(account: str, verb: str, resource: str, installed: Release) -> None:
    assert not installed.may(account, verb, resource)


@pytest.mark.parametrize(("account", "verb", "resource"), MAY_NOWHERE_ELSE)
def test_an_account_may_do_nothing_elsewhere(
    account: str, verb: str, resource: str, installed: Release
) -> None:
    assert not installed.may(account, verb, resource, namespace=None)
    assert not installed.may(account, verb, resource, namespace="muster-jobs")


def test_reading_is_for_the_whole_cluster(installed: Release) -> None:
    assert installed.may("operator", "list", "nodes", namespace=None)
    assert installed.may("operator", "list", "clusterqueues.kueue.x-k8s.io", namespace=None)


def test_what_the_cluster_lacks_is_said_before_anything_is_made(installed: Release) -> None:
    serving = {"enabled": True, "platform": "seldon"}
    before = _generations(installed)
    said = installed.refused(serving=serving, networkPolicy={"enabled": False})
    assert "the cluster does not have what serving.platform names, seldon" in said
    assert f"namespace {NAME} has the release {NAME} of muster already" in installed.refused()
    assert _generations(installed) == before


def test_a_second_store_stands_by_and_serves_when_the_first_is_gone(
    installed: Release, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Both are ready, so that a drain may take either; no request is refused when the one that serves is killed."""
    budget = kubectl.get(installed.layout, "poddisruptionbudget", f"{NAME}-store", _NAMESPACE)["status"]
    assert (budget["currentHealthy"], budget["disruptionsAllowed"]) == (2, 1)
    (tmp_path / "hello").write_text("hello")
    with installed.store() as store:
        version = store.add("chart/standby", tmp_path / "hello")
        with asked(store, "chart/standby@latest") as said:
            for pod in _stores(installed):
                sent = said.total()
                eventually(lambda sent=sent: said.total() > sent)
                began = time.monotonic()
                words = ("delete", "pod", pod, _NAMESPACE, "--grace-period=0", "--force")
                kubectl.run(installed.layout, *words)
                sent = said.total()
                eventually(lambda sent=sent: said.total() > sent)
                record_property(
                    "one of two stores is killed: who uses it is answered again after",
                    f"{time.monotonic() - began:.1f} s",
                )
                eventually(lambda pod=pod: len(set(_stores(installed)) - {pod}) == 2)
        assert said.keys() == {version.address}


def _generations(installed: Release) -> dict[str, int]:
    """How often each deployment and network policy of the namespace was changed."""
    found = kubectl.get(installed.layout, "deployments,networkpolicies", _NAMESPACE)["items"]
    return {f"{each['kind']}/{each['metadata']['name']}": each["metadata"]["generation"] for each in found}


def _stores(installed: Release) -> list[str]:
    """The names of the store service's pods that are ready."""
    words = (f"--selector=app={NAME}-store", _NAMESPACE)
    found = kubectl.get(installed.layout, "pods", *words)["items"]
    return [each["metadata"]["name"] for each in found if holds(each, "Ready")]


COUNTS = """
import os, time
from pathlib import Path

def run(out: Path, checkpoints: Path):
    number = 0
    while not (checkpoints / "ends").exists():
        os.write(1, f"line {number}\\n".encode())
        number += 1
        time.sleep(0.1)
    (out / os.environ["MUSTER_RANK"]).write_text(str(number))
"""


@contextmanager
def a_gang(backend: Backend, installed: Release, folder: Path) -> Iterator[None]:
    """Have a gang of two that counts all the while, and loses nothing by what happens."""
    (folder / "t.py").write_text(COUNTS)
    job = JobSpec(
        name="chart.counts",
        image="python",
        image_digest=put_image(backend.store, find_image("python", [shipped("images")])),
        code=backend.store.put(folder, ["t.py"]),
        roles=(Role(replicas=2, entrypoint="t:run", resources=Resources(cpus=0.1, memory_gib=0.25)),),
        outputs={"out": OutputTarget(volume="chart/counts")},
        max_restarts=0,
    )
    backend.submit(job, job_id="counts")
    try:
        kubectl.until("both count", lambda: lines(backend, 0) and lines(backend, 1), seconds=240)
        yield
        staging = backend.store.staging("counts")
        assert staging is not None
        (installed.layout.claim / NAME / staging.checkpoints.relative_to("/claim") / "ends").touch()
        kubectl.until("it has ended", lambda: backend.status("counts").state.ended, seconds=240)
        status = backend.status("counts")
        assert (status.state, status.restarts) == (JobState.SUCCEEDED, 0), status.verdict
        assert status.result is not None
        (made,) = status.result.outputs["out"]
        for rank in (0, 1):
            said = int((backend.store.path(made) / str(rank)).read_text())
            assert lines(backend, rank) == list(range(said))
    finally:
        backend.cancel("counts")


def lines(backend: Backend, rank: int) -> list[int]:
    """What a rank has counted, as the log has it."""
    text, after = b"", 0
    while (more := backend.store.ledger.read("counts", after=after))[0]:
        text, after = text + more[0], more[1]
    return [
        int(number) for number in re.findall(rf"^\[rank {rank}\] line (\d+)$", text.decode(), re.MULTILINE)
    ]


def test_upgrade_and_rollback_keep_keys_and_store_and_lose_no_call_and_no_gang(
    installed: Release, tmp_path: Path
) -> None:
    """Who uses the store all the while waits for it, and is refused nothing; a gang that runs goes on."""
    keys = installed.secret()
    (tmp_path / "hello").write_text("hello")
    with installed.store() as store, installed.backend() as backend, a_gang(backend, installed, tmp_path):
        version = store.add("chart/kept", tmp_path / "hello")
        with asked(store, "chart/kept@latest") as said:
            requests = {"requests": {"cpu": "90m", "memory": "200Mi"}, "limits": {"memory": "1Gi"}}
            installed.install(command="upgrade", store={**VALUES["store"], "resources": requests})
            assert installed.secret() == keys
            done = installed.helm("rollback", NAME, "1", "--wait", "--timeout=240s")
            assert done.returncode == 0, done.stderr
    assert said.keys() == {version.address}
    assert installed.secret() == keys


def test_an_uninstall_under_a_job_deletes_nothing_and_names_it(installed: Release) -> None:
    before = _left(installed)
    kubectl.apply(installed.layout, [_a_job("gang-1")])
    try:
        began = time.monotonic()
        done = installed.helm("uninstall", NAME, "--wait", "--timeout=240s")
        print(f"refused after {time.monotonic() - began:.1f} s:\n{done.stdout}{done.stderr}")
        assert done.returncode != 0
        assert _left(installed) >= before
        said = kubectl.run(installed.layout, "logs", f"{NAME}-uninstall", _NAMESPACE)
        assert "in use: 1 job (gang-1): wait for the end, or `muster jobs cancel JOB`" in said
    finally:
        kubectl.run(installed.layout, "delete", "job", "gang-1", _NAMESPACE)


def _a_job(job_id: str) -> dict[str, Any]:
    """A job of muster's that waits."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "base", "image": "localhost/shell:1"}]}
    metadata = {"name": job_id, "namespace": NAME, "labels": {"muster.dev/job": job_id}}
    spec = {"suspend": True, "template": {"spec": pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def test_an_uninstall_keeps_what_cannot_be_made_again(installed: Release, tmp_path: Path) -> None:
    keys, token = installed.secret(), installed.token()
    (tmp_path / "hello").write_text("hello")
    with installed.store(token=token) as store:
        version = store.add("chart/outlives", tmp_path / "hello")
    done = installed.helm("uninstall", NAME, "--wait", "--timeout=240s")
    assert done.returncode == 0, done.stderr
    assert installed.secret() == keys
    # what goes last is pods, after what they belong to; those of `helm test`, which are over, stay
    tests = {f"pod/{NAME}-test", f"pod/{NAME}-test-accounts"}
    kubectl.until("all else is gone", lambda: _left(installed) <= tests)
    assert kubectl.get(installed.layout, "persistentvolumeclaim", f"{NAME}-store", _NAMESPACE)

    installed.install()
    assert installed.secret() == keys
    with installed.store(token=token) as store:
        assert store.resolve("chart/outlives@latest")[0].digest == version.digest


def _left(installed: Release) -> set[str]:
    """What is there and is called after the release, but for what is kept."""
    here = "deployments,replicasets,pods,services,roles,rolebindings,cronjobs,networkpolicies"
    whole = "clusterroles,clusterrolebindings"
    queues = ("clusterqueues", "localqueues", "resourceflavors", "topologies", "workloadpriorityclasses")
    kinds = ",".join((here, whole, *(f"{each}.kueue.x-k8s.io" for each in queues)))
    found = kubectl.run(installed.layout, "get", kinds, _NAMESPACE, "--output=name")
    return {name for name in found.split() if f"/{NAME}" in name}
