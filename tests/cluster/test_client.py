"""The client against a real API server: rights, refusals, and an API server or Kueue that goes away."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.cluster import cluster, daemons, kubectl
from tests.cluster.clearing import MADE
from tests.cluster.inside import NAMESPACE, layout
from tests.cluster.layout import Layout
from tests.cluster.scripted import CLAIM, SITE, SMALL, WAIT, Jobs, connection, job, jobs

from muster.backends.capacity import QueuePlace
from muster.backends.kubernetes.api.access import connect
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import (
    JOB_SET,
    NODE,
    POD,
    QUEUE_VIEW,
    SECRET,
    WORKLOAD,
    Document,
)
from muster.backends.kubernetes.cluster.discovery import discover
from muster.backends.kubernetes.cluster.facts import Gangs
from muster.backends.kubernetes.manifests.gangs import Documents, documents
from muster.backends.kubernetes.manifests.wiring import Submission
from muster.backends.kubernetes.state.observe import observe
from muster.backends.kubernetes.state.queueing import asked_places, gpus, reckoned_places, waiting
from muster.core.errors import Conflict, Forbidden, NotFound, SpecError, Unreachable
from muster.core.job import Role
from muster.core.status import JobState

pytestmark = [pytest.mark.cluster, pytest.mark.smoke]


GOING = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "going", "labels": {MADE: "yes"}}}


@pytest.fixture
def here() -> Layout:
    return layout()


@pytest.fixture
def admin(here: Layout) -> Client:
    return Client(connect(kubeconfig=here.kubeconfig))


@pytest.fixture
def operator(here: Layout) -> Client:
    return Client(connection(here))


@pytest.fixture
def running(here: Layout) -> Iterator[Jobs]:
    with jobs(here) as found:
        yield found
        found.clear()


def secret(name: str, namespace: str = "default", **metadata: object) -> Document:
    about = {"name": name, "namespace": namespace, "labels": {"muster.dev/job": "j", MADE: "yes"}, **metadata}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": about, "data": {"a": "MQ=="}}


def written(job_id: str, running: Jobs) -> Documents:
    """The objects of a job that waits in a queue."""
    submission = Submission(
        job=job(job_id), job_id=job_id, attempt=1, site=SITE, cluster=running.cluster, queue="team-a"
    )
    return documents(submission, token="t")


class TestWhatThereIs:
    def test_found_with_the_operators_rights(self, operator: Client) -> None:
        found = discover(operator, namespace=NAMESPACE, claim=CLAIM)
        assert found.gangs is Gangs.KUEUE
        assert found.topology
        assert found.pod_group
        assert found.claim is not None
        assert (found.claim.modes, found.claim.phase) == (("ReadWriteMany",), "Bound")
        assert sorted(found.queues) == ["team-a", "team-b"]
        limits = found.queues["team-a"].limits
        assert limits is not None
        assert limits["gpu-a100"]["nvidia.com/gpu"] == 16.0
        assert found.priorities == {"high", "normal", "low"}
        assert found.nodes is not None
        assert sorted((node.name, node.room.get("nvidia.com/gpu", 0)) for node in found.nodes) == [
            ("a100-0", 8.0),
            ("a100-1", 8.0),
            ("cpu-0", 0.0),
            ("k80-0", 4.0),
        ]
        assert found.gpu_classes == {"gpu-a100", "gpu-k80"}

    def test_with_hardly_any_rights(self, here: Layout) -> None:
        with pytest.raises(Forbidden, match=r"muster-reaper may not get persistentvolumeclaims in namespace"):
            discover(Client(connection(here, "muster-reaper")), namespace=NAMESPACE, claim=CLAIM)


class TestRefusals:
    def test_no_rights(self, here: Layout) -> None:
        reaper = Client(connection(here, "muster-reaper"))
        with pytest.raises(Forbidden) as raised:
            reaper.find(SECRET, namespace=NAMESPACE)
        assert str(raised.value) == (
            f"system:serviceaccount:{NAMESPACE}:muster-reaper may not list secrets in namespace {NAMESPACE}: "
            'give it a Role with apiGroups: [""], resources: ["secrets"], verbs: ["list"]'
        )
        assert not reaper.allowed("list", SECRET, namespace=NAMESPACE)
        assert reaper.allowed("delete", POD, namespace=NAMESPACE)

    def test_rights_of_the_whole_cluster(self, here: Layout) -> None:
        with pytest.raises(
            Forbidden, match=r'in the whole cluster: give it a ClusterRole with .*"nodes".*"list"'
        ):
            Client(connection(here, "muster-reaper")).find(NODE)

    def test_a_namespace_that_is_being_deleted(self, admin: Client, here: Layout) -> None:
        kubectl.apply(here, [GOING])
        held = admin.create(secret("held", "going", finalizers=["muster.dev/held"]))
        kubectl.run(here, "delete", "namespace", "going", "--wait=false")
        try:
            with pytest.raises(SpecError, match=r"namespace going is being deleted and takes nothing new"):
                admin.create(secret("new", "going"), dry_run=True)
            assert discover(admin, namespace="going", claim=CLAIM).terminating
        finally:
            admin.patch(
                SECRET, held["metadata"]["name"], {"metadata": {"finalizers": None}}, namespace="going"
            )
            kubectl.run(here, "wait", "--for=delete", "namespace/going", "--timeout=60s")

    def test_a_namespace_that_is_not_there(self, admin: Client) -> None:
        with pytest.raises(
            SpecError, match=r"the cluster has no namespace nowhere: make it, or name another"
        ):
            admin.create(secret("a", "nowhere"))

    def test_a_field_that_is_wrong(self, running: Jobs) -> None:
        made = written("wrong", running)
        made.owner["spec"]["failurePolicy"]["restartStrategy"] = "Never"
        with pytest.raises(
            SpecError, match=r"create jobsets.jobset.x-k8s.io wrong in namespace .* refuses it: "
        ):
            running.client.create(made.owner, dry_run=True)

    def test_a_field_that_nobody_knows(self, admin: Client) -> None:
        with pytest.raises(SpecError, match=r"unknown field \"dta\""):
            admin.create({**secret("a"), "dta": {}})

    def test_a_dry_run_leaves_nothing(self, admin: Client) -> None:
        assert admin.create(secret("dry"), dry_run=True)["data"] == {"a": "MQ=="}
        assert admin.get(SECRET, "dry", namespace="default") is None


class TestObjects:
    def test_made_once(self, admin: Client) -> None:
        first = admin.create(secret("once"))
        try:
            with pytest.raises(Conflict, match="already exists"):
                admin.create(secret("once"))
            assert not admin.delete(SECRET, "once", namespace="default", uid="another")
        finally:
            assert admin.delete(SECRET, "once", namespace="default", uid=first["metadata"]["uid"])
        assert not admin.delete(SECRET, "once", namespace="default")
        with pytest.raises(NotFound):
            admin.patch(SECRET, "once", {"data": {}}, namespace="default")


class TestQueues:
    def test_cards_and_places(self, running: Jobs) -> None:
        cards = replace(SMALL, gpus=8, gpu_class=("gpu-a100",))
        spec = job("cards", Role(replicas=2, entrypoint="probe:run", resources=cards))
        for name in ("cards-1", "cards-2", "cards-3"):
            second = int(time.time())
            running.start(name, spec, WAIT)
            kubectl.until("the next is younger", lambda before=second: int(time.time()) > before + 1)
        running.until("cards-1", "it runs", lambda seen: observe(seen, spec).state is JobState.RUNNING)
        needs = "needs 16 more nvidia.com/gpu of flavor gpu-a100"
        running.until("cards-2", "it waits", lambda seen: needs in observe(seen, spec).reason)
        running.until("cards-3", "it waits", lambda seen: seen.workload)
        found = gpus(
            running.client.find(NODE),
            running.client.find(POD, namespace=NAMESPACE),
            resource="nvidia.com/gpu",
        )
        assert [(each.name, each.total, each.used, each.free) for each in found.by_class] == [
            ("gpu-a100", 16, 16, 0),
            ("gpu-k80", 4, 0, 4),
        ]
        assert [(each.name, each.used) for each in found.by_team] == [(f"{NAMESPACE}/team-a", 16)]
        owners = running.client.find(JOB_SET, namespace=NAMESPACE)
        workloads = running.client.find(WORKLOAD, namespace=NAMESPACE)
        wait = waiting(workloads, owners=owners)
        assert [(each.job_id, each.place) for each in wait] == [
            ("cards-2", QueuePlace(number=1, of=2)),
            ("cards-3", QueuePlace(number=2, of=2)),
        ]
        assert wait[0].why == needs
        assert wait[1].why in (needs, "waits its turn")  # Kueue need not look at one that is like the first
        summary = running.client.get(
            QUEUE_VIEW, "team-a", namespace=NAMESPACE, subresource="pendingworkloads"
        )
        assert summary is not None
        assert asked_places(summary) == reckoned_places(workloads)


class TestAway:
    def test_the_api_server_is_killed_and_comes_back(self, here: Layout, running: Jobs) -> None:
        spec = job("outlives")
        running.start("outlives", spec, WAIT)
        running.until("outlives", "it runs", lambda seen: observe(seen, spec).state is JobState.RUNNING)
        daemons.stop(here, "kube-apiserver")
        found: list[Document | None] = []
        asking = threading.Thread(
            target=lambda: found.append(running.client.get(JOB_SET, "outlives", namespace=NAMESPACE))
        )
        asking.start()
        with pytest.raises(
            Unreachable, match=r"10.77.0.1:6443 does not answer: Connection refused \(asked for \d+ s\)"
        ):
            running.client.patient(1).get(JOB_SET, "outlives", namespace=NAMESPACE)
        daemon = cluster.daemon(here, "kube-apiserver")
        daemons.start(here, daemon)
        daemons.wait(here, daemon)
        asking.join(60)
        assert found
        assert found[0] is not None
        kubectl.run(here, "label", "jobset", "outlives", "seen=again", f"--namespace={NAMESPACE}")
        running.until(
            "outlives",
            "the watch has gone on",
            lambda seen: seen.root and seen.root["metadata"]["labels"].get("seen") == "again",
        )
        assert observe(running.seen("outlives"), spec).state is JobState.RUNNING

    def test_kueue_is_away(self, here: Layout, running: Jobs) -> None:
        spec = job("later")
        made = written("later", running)
        daemons.stop(here, "kueue")
        try:
            with pytest.raises(Unreachable, match=r"webhook \S+ does not answer.*nothing was made"):
                running.client.patient(1).create(made.owner)
            assert running.client.get(JOB_SET, "later", namespace=NAMESPACE) is None
        finally:
            daemon = cluster.daemon(here, "kueue")
            daemons.start(here, daemon)
            daemons.wait(here, daemon)
        running.start("later", spec, WAIT)
        running.until("later", "it runs", lambda seen: observe(seen, spec).state is JobState.RUNNING)
