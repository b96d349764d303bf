from __future__ import annotations

from typing import Any

import pytest
from tests.cluster.furniture import objects
from tests.unit.backends.kubernetes.site_objects import NODES, node

from muster.backends.capacity import Cards, QueuePlace, Share
from muster.backends.kubernetes.cluster.facts import Flavor
from muster.backends.kubernetes.cluster.quantities import GIB
from muster.backends.kubernetes.state.queueing import (
    asked_places,
    gpus,
    reckoned_places,
    shares,
    waiting,
)

GPU = "nvidia.com/gpu"


def pod(
    node_name: str | None, *, cards: int, phase: str = "Running", queue: str = "team-a"
) -> dict[str, Any]:
    labels = {"kueue.x-k8s.io/local-queue-name": queue} if queue else {}
    spec: dict[str, Any] = {"containers": [{"name": "base", "resources": {"limits": {GPU: str(cards)}}}]}
    if node_name:
        spec["nodeName"] = node_name
    return {
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ml", "labels": labels},
        "spec": spec,
        "status": {"phase": phase},
    }


class TestGpus:
    PODS = (
        pod("a100-0", cards=8),
        pod("a100-1", cards=2, queue="team-b"),
        pod("a100-1", cards=1, queue="", phase="Pending"),
        pod("a100-1", cards=5, phase="Succeeded"),
        pod("a100-1", cards=5, phase="Failed"),
        pod(None, cards=4, phase="Pending"),
        pod("cpu-0", cards=0),
    )

    def test_by_class_node_and_team(self) -> None:
        found = gpus(NODES, self.PODS, resource=GPU)
        assert [(each.name, each.total, each.used, each.free) for each in found.by_class] == [
            ("gpu-a100", 16, 11, 5),
            ("gpu-k80", 4, 0, 4),
        ]
        assert [(each.name, each.gpu_class, each.total, each.used, each.free) for each in found.by_node] == [
            ("a100-0", "gpu-a100", 8, 8, 0),
            ("a100-1", "gpu-a100", 8, 3, 5),
            ("k80-0", "gpu-k80", 4, 0, 4),
        ]
        assert [(each.name, each.used) for each in found.by_team] == [
            ("ml", 1),
            ("ml/team-a", 8),
            ("ml/team-b", 2),
        ]

    @pytest.mark.parametrize(
        ("how", "why"),
        [({"ready": False}, "not ready: NodeStatusUnknown"), ({"cordoned": True}, "cordoned")],
    )
    def test_a_node_that_takes_no_pods_has_no_free_cards(self, how: dict[str, bool], why: str) -> None:
        away = node("a100-1", gpu_class="gpu-a100", gpus=8, **how)  # type: ignore[arg-type]
        found = gpus([NODES[1], away], [pod("a100-1", cards=2)], resource=GPU)
        assert [(each.name, each.total, each.used, each.free) for each in found.by_class] == [
            ("gpu-a100", 10, 2, 8)
        ]
        assert [(each.name, not each.why_not, each.used, each.free) for each in found.by_node] == [
            ("a100-0", True, 0, 8),
            ("a100-1", False, 2, 0),
        ]
        assert [each.why_not for each in found.by_node] == ["", why]

    def test_a_node_without_a_class(self) -> None:
        plain = node("box", gpus=2)
        del plain["metadata"]["labels"]["muster.dev/gpu-class"]
        assert gpus([plain], [], resource=GPU).by_class == (Cards(name="-", total=2),)

    def test_none(self) -> None:
        found = gpus([NODES[0]], self.PODS[-1:], resource=GPU)
        assert (found.by_class, found.by_node, found.by_team) == ((), (), ())


class TestShares:
    def test_what_each_team_has(self) -> None:
        queues = objects("ClusterQueue")
        queues[1]["status"] = {
            "flavorsReservation": [
                {
                    "name": "gpu-a100",
                    "resources": [
                        {"name": "cpu", "total": "3", "borrowed": "0"},
                        {"name": GPU, "total": "6", "borrowed": "2"},
                    ],
                }
            ]
        }
        flavors = {each["metadata"]["name"]: Flavor.of(each) for each in objects("ResourceFlavor")}
        found = [each for each in shares(queues, flavors, resource=GPU) if each.quota or each.used]
        assert found == [
            Share(team="team-a", flavor="gpu-a100", gpu_class="gpu-a100", quota=12, used=0, borrowed=0),
            Share(team="team-a", flavor="gpu-k80", gpu_class="gpu-k80", quota=4, used=0, borrowed=0),
            Share(team="team-b", flavor="gpu-a100", gpu_class="gpu-a100", quota=4, used=6, borrowed=2),
        ]

    def test_a_flavor_that_may_not_be_read(self) -> None:
        (first, *_) = shares(objects("ClusterQueue"), {}, resource=GPU)
        assert first.gpu_class == "-"


def workload(
    name: str, *, queue: str = "team-a", priority: int = 100, minute: int = 0, **status: Any
) -> dict[str, Any]:
    """Return a Workload as Kueue 0.19 makes it of a JobSet."""
    said = "couldn't assign flavors to pod set w: insufficient unused quota for nvidia.com/gpu in flavor gpu-a100, 4 more needed"
    reserved = {"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": said}
    resources = {"limits": {GPU: "2"}, "requests": {"cpu": "500m", "memory": "1Gi", GPU: "2"}}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {
            "name": f"jobset-{name}-d8f1a",
            "namespace": "ml",
            "uid": f"workload-{name}",
            "creationTimestamp": f"2026-11-21T18:{minute:02}:00Z",
            "ownerReferences": [
                {
                    "apiVersion": "jobset.x-k8s.io/v1alpha2",
                    "kind": "JobSet",
                    "name": name,
                    "uid": f"uid-{name}",
                    "controller": True,
                }
            ],
        },
        "spec": {
            "active": True,
            "queueName": queue,
            "priority": priority,
            "priorityClassRef": {
                "group": "kueue.x-k8s.io",
                "kind": "WorkloadPriorityClass",
                "name": "normal",
            },
            "podSets": [
                {
                    "name": "w",
                    "count": 3,
                    "template": {"spec": {"containers": [{"name": "base", "resources": resources}]}},
                }
            ],
        },
        "status": {"conditions": [reserved, *status.get("conditions", ())]},
    }


class TestWaiting:
    def test_in_the_order_in_which_they_leave(self) -> None:
        found = waiting(
            [
                workload("old", minute=1),
                workload("urgent", priority=1000, minute=9),
                workload("young", minute=5),
                workload("other", queue="team-b", minute=2),
                workload("runs", conditions=[{"type": "Admitted", "status": "True"}]),
                workload("done", conditions=[{"type": "Finished", "status": "True"}]),
            ],
            owners=[{"metadata": {"uid": "uid-old", "labels": {"muster.dev/job": "old-1"}}}],
        )
        assert [(each.queue, each.name, each.place) for each in found] == [
            ("team-a", "urgent", QueuePlace(number=1, of=3)),
            ("team-a", "old", QueuePlace(number=2, of=3)),
            ("team-a", "young", QueuePlace(number=3, of=3)),
            ("team-b", "other", QueuePlace(number=1, of=1)),
        ]
        assert [each.job_id for each in found] == [None, "old-1", None, None]
        assert found[1].why == "needs 4 more nvidia.com/gpu of flavor gpu-a100"
        assert found[1].needs == {"cpu": 1.5, "memory": 3.0 * GIB, GPU: 6.0}
        assert found[1].since == 1795284060.0
        assert found[0].priority == 1000

    def test_one_that_did_not_start_goes_to_the_back(self) -> None:
        late = {
            "type": "Evicted",
            "status": "True",
            "reason": "PodsReadyTimeout",
            "lastTransitionTime": "2026-11-21T18:30:00Z",
        }
        preempted = {**late, "reason": "Preempted"}
        places = reckoned_places(
            [
                workload("late", minute=1, conditions=[late]),
                workload("preempted", minute=2, conditions=[preempted]),
                workload("new", minute=3),
            ]
        )
        assert [name for name, _ in sorted(places.items(), key=lambda item: item[1].number)] == [
            "ml/jobset-preempted-d8f1a",
            "ml/jobset-new-d8f1a",
            "ml/jobset-late-d8f1a",
        ]

    def test_places_as_kueue_tells_them(self) -> None:
        summary = {
            "kind": "PendingWorkloadsSummary",
            "items": [
                {
                    "metadata": {"name": f"jobset-{name}-d8f1a", "namespace": "ml"},
                    "priority": 100,
                    "localQueueName": "team-a",
                    "positionInClusterQueue": 4 + position,
                    "positionInLocalQueue": position,
                }
                for position, name in enumerate(("young", "old"))
            ],
        }
        found = waiting(
            [workload("old", minute=1), workload("young", minute=5)], places=asked_places(summary)
        )
        assert [(each.name, each.place) for each in found] == [
            ("young", QueuePlace(number=1, of=2)),
            ("old", QueuePlace(number=2, of=2)),
        ]

    def test_a_workload_of_nobody(self) -> None:
        lonely = workload("x")
        del lonely["metadata"]["ownerReferences"]
        (found,) = waiting([lonely])
        assert (found.name, found.job_id) == ("jobset-x-d8f1a", None)
