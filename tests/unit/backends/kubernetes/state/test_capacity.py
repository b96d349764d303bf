"""GPUs and queues of a cluster, as they are asked for over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.backends.kubernetes.recordings import recorded
from tests.unit.backends.kubernetes.site_api import SiteApi
from tests.unit.backends.kubernetes.state.test_queueing import pod, workload

from muster.backends.capacity import HeldResources, Line, Part, QueuePlace
from muster.backends.kubernetes.api.kinds import CLUSTER_QUEUE, QUEUE_VIEW, RESOURCE_FLAVOR, WORKLOAD
from muster.backends.kubernetes.labels import JOB
from muster.backends.kubernetes.state.capacity import ClusterCapacity
from muster.core.errors import Forbidden

NAMESPACE = "muster-jobs"


def in_namespace(document: dict[str, Any], namespace: str = NAMESPACE, **more: Any) -> dict[str, Any]:
    head = {"apiVersion": "v1"} | document
    return {**head, "metadata": {**document["metadata"], "namespace": namespace, **more}}


def waits(name: str, *, minute: int, **changes: Any) -> dict[str, Any]:
    return in_namespace(workload(name, minute=minute, **changes))


def root(name: str, *, title: str) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": NAMESPACE,
        "uid": f"uid-{name}",
        "labels": {"muster.dev/job": name},
        "annotations": {"muster.dev/name": title},
    }
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": {}}


def reserve(site: SiteApi, queue: str, flavor: str, cards: int) -> None:
    """Let Kueue say that a queue has let in so many cards."""
    (found,) = [
        each
        for each in site.documents
        if each["kind"] == "ClusterQueue" and each["metadata"]["name"] == queue
    ]
    held = [{"name": "nvidia.com/gpu", "total": str(cards)}]
    found["status"] = {"flavorsReservation": [{"name": flavor, "resources": held}]}


class TestGpus:
    def test_pods_of_every_namespace_count(self, site: SiteApi, capacity: ClusterCapacity) -> None:
        site.documents += [
            in_namespace(pod("a100-0", cards=8)),
            in_namespace(pod("a100-1", cards=2), "elsewhere"),
        ]
        reserve(site, "team-a", "gpu-a100", 8)
        found = capacity.gpus()
        assert [(each.name, each.total, each.used, each.free) for each in found.by_class] == [
            ("gpu-a100", 16, 10, 6),
            ("gpu-k80", 4, 0, 4),
        ]
        assert [(each.name, each.used) for each in found.by_team] == [
            ("elsewhere/team-a", 2),
            (f"{NAMESPACE}/team-a", 8),
        ]
        assert {(each.team, each.gpu_class, each.quota, each.used) for each in found.shares} >= {
            ("team-a", "gpu-a100", 12, 8),
            ("team-b", "gpu-a100", 4, 0),
        }
        assert found.unseen == ""

    def test_where_only_the_namespace_may_be_read_queues_count_in_their_stead(
        self, site: SiteApi, capacity: ClusterCapacity
    ) -> None:
        site.refused.add(("list", "pods!"))
        site.documents += [
            in_namespace(pod("a100-0", cards=8)),
            in_namespace(pod("a100-1", cards=2), "elsewhere"),
        ]
        reserve(site, "team-b", "gpu-a100", 10)
        found = capacity.gpus()
        assert [(each.name, each.used, each.free) for each in found.by_class] == [
            ("gpu-a100", 10, 6),
            ("gpu-k80", 0, 4),
        ]
        assert [(each.name, each.used) for each in found.by_node][:2] == [("a100-0", 8), ("a100-1", 0)]
        assert "only pods of namespace muster-jobs count" in found.unseen

    def test_without_kueue_there_are_no_shares(self, site: SiteApi, capacity: ClusterCapacity) -> None:
        site.missing |= {CLUSTER_QUEUE, RESOURCE_FLAVOR}
        assert capacity.gpus().shares == ()

    def test_quotas_that_may_not_be_read(self, site: SiteApi, capacity: ClusterCapacity) -> None:
        site.refused |= {("list", f"{each.resource}!") for each in (CLUSTER_QUEUE, RESOURCE_FLAVOR)}
        assert capacity.gpus().shares == ()

    def test_nodes_that_may_not_be_read(self, site: SiteApi, capacity: ClusterCapacity) -> None:
        site.refused.add(("list", "nodes!"))
        with pytest.raises(Forbidden, match=r'ann may not list nodes in the whole cluster: .*"nodes"'):
            capacity.gpus()

    def test_pods_that_have_ended_are_not_asked_for(self, site: SiteApi, capacity: ClusterCapacity) -> None:
        capacity.gpus()
        (pods,) = [asked for asked in site.asked if asked.path == "/api/v1/pods"]
        assert pods.query["fieldSelector"] == "status.phase!=Succeeded,status.phase!=Failed"


class TestQueues:
    def test_what_waits_in_the_order_that_kueue_tells(self, site: SiteApi, capacity: ClusterCapacity) -> None:
        runs = {"type": "Admitted", "status": "True"}
        site.documents += [
            waits("old", minute=1),
            waits("young", minute=5),
            waits("runs", minute=0, conditions=[runs]),
            root("old", title="flights.train"),
        ]
        site.places["team-a"] = ["jobset-young-d8f1a", "jobset-old-d8f1a"]
        found = capacity.queues()
        assert found.lines == (
            Line(name="team-a", team="team-a", waiting=2, running=1),
            Line(name="team-b", team="team-b", waiting=0, running=0),
        )
        assert [(each.name, each.job_id, each.title, each.place) for each in found.waiting] == [
            ("young", None, "", QueuePlace(number=1, of=2)),
            ("old", "old", "flights.train", QueuePlace(number=2, of=2)),
        ]

    def test_places_are_reckoned_where_kueue_does_not_serve_them(
        self, site: SiteApi, capacity: ClusterCapacity
    ) -> None:
        site.documents += [waits("old", minute=1), waits("young", minute=5)]
        site.missing.add(QUEUE_VIEW)
        self.check_reckoned(capacity)

    def test_places_are_reckoned_where_they_may_not_be_asked_for(
        self, site: SiteApi, capacity: ClusterCapacity
    ) -> None:
        site.documents += [waits("old", minute=1), waits("young", minute=5)]
        site.refused.add(("get", QUEUE_VIEW.resource))
        self.check_reckoned(capacity)

    def test_places_are_reckoned_while_the_server_that_knows_them_is_away(
        self, site: SiteApi, capacity: ClusterCapacity
    ) -> None:
        site.documents += [waits("old", minute=1), waits("young", minute=5)]
        site.away.add(QUEUE_VIEW)
        self.check_reckoned(capacity)

    def test_what_is_in_no_queue_has_no_place(self, site: SiteApi, capacity: ClusterCapacity) -> None:
        """Kueue makes such Workloads where it manages jobs without a queue's name."""
        site.documents += [waits("foreign", minute=0, queue=""), waits("old", minute=1)]
        found = {each.name: each.place for each in capacity.queues().waiting}
        assert found == {"foreign": None, "old": QueuePlace(number=1, of=1)}
        assert [each.path for each in site.asked if each.path.endswith("/pendingworkloads")] == [
            "/apis/visibility.kueue.x-k8s.io/v1beta2/namespaces/muster-jobs/localqueues/team-a/pendingworkloads"
        ]

    def test_a_queue_that_is_refused_leaves_the_others_as_they_are(
        self, site: SiteApi, capacity: ClusterCapacity, caplog: pytest.LogCaptureFixture
    ) -> None:
        site.documents += [
            waits("odd", minute=0, queue="Team_X"),
            waits("old", minute=1),
            waits("young", minute=5),
        ]
        site.places["team-a"] = ["jobset-young-d8f1a", "jobset-old-d8f1a"]
        site.unasked.add("Team_X")
        found = {each.name: each.place for each in capacity.queues().waiting}
        assert found == {
            "odd": QueuePlace(number=1, of=1),
            "young": QueuePlace(number=1, of=2),
            "old": QueuePlace(number=2, of=2),
        }
        assert "invalid name 'Team_X'; its places are reckoned" in caplog.text

    def test_kueue_is_asked_for_all_that_wait(self, site: SiteApi, capacity: ClusterCapacity) -> None:
        site.documents += [waits(f"n{number}", minute=number) for number in range(7)]
        capacity.queues()
        (asked,) = [asked for asked in site.asked if asked.path.endswith("pendingworkloads")]
        assert asked.query["limit"] == "7"

    def check_reckoned(self, capacity: ClusterCapacity) -> None:
        assert [(each.name, each.place) for each in capacity.queues().waiting] == [
            ("old", QueuePlace(number=1, of=2)),
            ("young", QueuePlace(number=2, of=2)),
        ]

    def test_what_it_asks_does_not_grow_with_what_waits(
        self, site: SiteApi, capacity: ClusterCapacity
    ) -> None:
        site.documents.append(waits("one", minute=1))
        capacity.queues()
        few = len(site.asked)
        site.documents += [waits(f"n{number}", minute=number) for number in range(2, 50)]
        capacity.queues()
        assert len(site.asked) == 2 * few

    def test_of_the_owners_only_the_metadata_is_asked_for(
        self, site: SiteApi, capacity: ClusterCapacity
    ) -> None:
        capacity.queues()
        (asked,) = [asked for asked in site.asked if asked.path.endswith("/jobsets")]
        assert "as=PartialObjectMetadataList" in asked.headers["Accept"]
        assert asked.query["labelSelector"] == "muster.dev/job"

    def test_a_queue_that_is_stopped_says_so(self, site: SiteApi, capacity: ClusterCapacity) -> None:
        (queue,) = [
            each
            for each in site.documents
            if each["kind"] == "LocalQueue" and each["metadata"]["name"] == "team-b"
        ]
        said = {"type": "Active", "status": "False", "message": "ClusterQueue team-b is stopped"}
        queue["status"] = {"conditions": [said]}
        assert capacity.queues().lines[1].stopped == "ClusterQueue team-b is stopped"

    def test_without_kueue_what_has_no_node_waits(self, site: SiteApi, capacity: ClusterCapacity) -> None:
        site.missing.add(WORKLOAD)
        recording = recorded("crowd-queued")
        site.documents += [
            in_namespace(each) for each in recording.documents if each["kind"] in ("JobSet", "Pod")
        ]
        (found,) = capacity.queues().waiting
        job_id = recording.documents[0]["metadata"]["labels"]["muster.dev/job"]
        assert (found.job_id, found.queue, found.place) == (job_id, "", None)
        assert found.title == recording.job.name
        assert "nodes are available" in found.why or "minCount" in found.why

    def test_queues_that_may_not_be_read(self, site: SiteApi, capacity: ClusterCapacity) -> None:
        site.refused.add(("list", WORKLOAD.resource))
        with pytest.raises(Forbidden, match="may not list workloads in namespace muster-jobs"):
            capacity.queues()


class TestParts:
    def test_the_pods_of_a_job_with_their_nodes(self, site: SiteApi, capacity: ClusterCapacity) -> None:
        recording = recorded("well-running")
        pods = [in_namespace(each) for each in recording.documents if each["kind"] == "Pod"]
        site.documents += pods
        found = capacity.parts(pods[0]["metadata"]["labels"]["muster.dev/job"])
        assert found == tuple(
            Part(
                name=f"main-{number}",
                process=f"pod {each['metadata']['name']}",
                node=each["spec"]["nodeName"],
            )
            for number, each in enumerate(sorted(pods, key=lambda pod: pod["metadata"]["name"]))
        )

    def test_of_a_job_that_does_not_run_there_are_none(self, capacity: ClusterCapacity) -> None:
        assert capacity.parts("unknown-1") == ()


class TestHeld:
    def test_what_each_job_has_by_node_in_one_request(self, site: SiteApi, capacity: ClusterCapacity) -> None:
        def of_job(job_id: str, node: str | None, cards: int, **more: Any) -> dict[str, Any]:
            return in_namespace(pod(node, cards=cards), labels={JOB: job_id}, **more)

        site.documents += [
            of_job("one-1", "a100-0", 2, name="p0"),
            of_job("one-1", "a100-1", 1, name="p1"),
            of_job("one-1", "a100-1", 1, name="p2"),
            of_job("two-1", None, 4, name="p3"),
            of_job("three-1", "a100-0", 1, name="p4"),
            of_job("two-1", "a100-0", 4, name="p5", deletionTimestamp="2026-11-26T00:00:00Z"),
        ]
        found = capacity.held(["one-1", "two-1"])
        assert found == {
            "one-1": (HeldResources(node="a100-0", gpus=2), HeldResources(node="a100-1", gpus=2))
        }
        assert capacity.held([]) == {}
