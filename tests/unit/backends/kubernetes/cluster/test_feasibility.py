from __future__ import annotations

from dataclasses import replace

import pytest
from tests.cluster.furniture import objects
from tests.unit.backends.kubernetes.site_objects import claim, cluster, node

from muster.backends.kubernetes.cluster.facts import (
    Cluster,
    Flavor,
    Gangs,
    Node,
    Queue,
    VolumeClaim,
    limits_of,
)
from muster.backends.kubernetes.cluster.feasibility import (
    PodSet,
    check_job,
    check_place,
    choose_queue,
    pod_sets,
)
from muster.backends.kubernetes.cluster.quantities import GIB
from muster.core.errors import CannotSchedule, SpecError
from muster.core.job import JobSpec, Role
from muster.core.resources import Resources

SITE = cluster()
QUEUE = SITE.queues["team-a"]
GPU = "nvidia.com/gpu"


def pods(role: str = "main", *, count: int = 2, cpus: float = 1, gpus: int = 0, **more: object) -> PodSet:
    needs = {"cpu": float(cpus), "memory": float(more.get("memory_gib", 1)) * GIB, "pods": 1.0}  # type: ignore[arg-type]
    if gpus:
        needs[GPU] = float(gpus)
    return PodSet(role=role, count=count, needs=needs, gpu_class=tuple(more.get("gpu_class", ())))  # type: ignore[call-overload]


class TestPlace:
    def test_a_good_one(self) -> None:
        check_place(SITE, claim="muster-store")

    @pytest.mark.parametrize(
        ("facts", "message"),
        [
            (
                {"terminating": True},
                "namespace muster-jobs is being deleted: use another, or make it again when it is gone",
            ),
            (
                {"claim": None},
                "namespace muster-jobs has no PersistentVolumeClaim muster-store: make it, ReadWriteMany",
            ),
            (
                {"claim": VolumeClaim.of(claim("ReadWriteOnce"))},
                (
                    "claim muster-store has access mode ReadWriteOnce: replicas on several nodes share it, so it must "
                    "be ReadWriteMany; make it on storage that can be mounted by many nodes (NFS, CephFS …)"
                ),
            ),
            (
                {"claim": VolumeClaim.of(claim("ReadWriteMany", phase="Lost"))},
                "claim muster-store has lost its volume: see `kubectl describe pvc muster-store`",
            ),
        ],
    )
    def test_a_bad_one(self, facts: dict[str, object], message: str) -> None:
        with pytest.raises(SpecError) as raised:
            check_place(cluster(**facts), claim="muster-store")
        assert str(raised.value) == message

    def test_a_claim_that_is_not_bound_yet(self) -> None:
        check_place(
            cluster(claim=VolumeClaim.of(claim("ReadWriteMany", phase="Pending"))), claim="muster-store"
        )


class TestQueue:
    def test_the_one_named(self) -> None:
        assert choose_queue(SITE, "team-a", gang=True) is QUEUE

    def test_the_only_one(self) -> None:
        assert choose_queue(cluster(queues={"team-a": QUEUE}), None, gang=True) is QUEUE

    def test_a_single_job_waits_in_one_as_well(self) -> None:
        """Else it would go past the quota, and its priority be one of pods."""
        assert choose_queue(cluster(queues={"team-a": QUEUE}), None, gang=False) is QUEUE
        with pytest.raises(SpecError) as raised:
            choose_queue(SITE, None, gang=False)
        assert str(raised.value) == "a job waits in a queue: name one with queue=; there are team-a, team-b"

    def test_a_single_job_needs_none_where_there_is_none(self) -> None:
        assert choose_queue(cluster(queues={}), None, gang=False) is None

    def test_without_kueue(self) -> None:
        assert choose_queue(cluster(kueue=False, queues={}), None, gang=True) is None

    @pytest.mark.parametrize(
        ("site", "wanted", "message"),
        [
            (
                SITE,
                "team-x",
                "queue='team-x': namespace muster-jobs has no queue team-x; there are team-a, team-b",
            ),
            (
                cluster(queues={}),
                "team-x",
                "queue='team-x': namespace muster-jobs has no queue team-x; there is none: make a LocalQueue",
            ),
            (SITE, None, "a gang waits in a queue: name one with queue=; there are team-a, team-b"),
            (
                cluster(kueue=False, queues={}),
                "team-a",
                "queue='team-a': this cluster has no queues: Kubernetes' PodGroup knows no queues; name none, here or in the cluster's settings",
            ),
            (
                cluster(kueue=False, pod_group=False, queues={}),
                "team-a",
                "queue='team-a': this cluster has no queues: Kueue is not installed; name none, here or in the cluster's settings",
            ),
        ],
    )
    def test_none_to_be_had(self, site: Cluster, wanted: str | None, message: str) -> None:
        with pytest.raises(SpecError) as raised:
            choose_queue(site, wanted, gang=True)
        assert str(raised.value) == message


class TestGangs:
    BARE = cluster(job_set=False, kueue=False, pod_group=False, queues={}, flavors={})
    GROUPS = cluster(kueue=False, queues={}, flavors={})

    def test_what_keeps_them_together(self) -> None:
        assert (SITE.gangs, self.GROUPS.gangs, self.BARE.gangs) == (Gangs.KUEUE, Gangs.POD_GROUP, Gangs.NONE)

    def test_a_gang_needs_something(self) -> None:
        with pytest.raises(CannotSchedule, match=r"install JobSet 0.12 or newer and Kueue 0.19.2 or newer"):
            check_job(self.BARE, [pods()], queue=None)

    def test_kueue_alone_is_missing(self) -> None:
        with pytest.raises(CannotSchedule, match=r"install Kueue 0.19.2 or newer \(or, with JobSet, turn on"):
            check_job(cluster(kueue=False, pod_group=False, queues={}), [pods()], queue=None)

    def test_one_pod_is_no_gang(self) -> None:
        assert check_job(self.BARE, [pods(count=1)], queue=None) == ()

    def test_two_roles_of_one_pod_are(self) -> None:
        with pytest.raises(CannotSchedule, match="nothing on this cluster starts a gang whole"):
            check_job(self.BARE, [pods("a", count=1), pods("b", count=1)], queue=None)

    def test_partial_starts_by_name(self) -> None:
        sets = replace(self.BARE, job_set=True)
        assert check_job(sets, [pods()], queue=None, partial_starts=True) == ()
        with pytest.raises(CannotSchedule, match=r"install Kueue .*partial_starts"):
            check_job(sets, [pods()], queue=None)
        with pytest.raises(CannotSchedule, match=r"install JobSet 0\.12 or newer"):
            check_job(self.BARE, [pods()], queue=None, partial_starts=True)

    def test_a_list_of_classes_is_kueues_work(self) -> None:
        with pytest.raises(
            SpecError, match=r"role main lists GPU classes gpu-a100, gpu-k80.*PodGroup knows no"
        ):
            check_job(self.GROUPS, [pods(gpus=1, gpu_class=("gpu-a100", "gpu-k80"))], queue=None)
        assert check_job(self.GROUPS, [pods(gpus=1, gpu_class=("gpu-a100",))], queue=None) == ()


class TestFit:
    @pytest.mark.parametrize(
        "asked",
        [
            [pods()],
            [pods(count=2, gpus=8, gpu_class=("gpu-a100",))],
            [pods(count=16, gpus=1)],
            [pods("chief", count=1), pods("workers", count=2, gpus=8, gpu_class=("gpu-a100", "gpu-k80"))],
            [
                pods("new", count=2, gpus=8, gpu_class=("gpu-a100",)),
                pods("old", count=4, gpus=1, gpu_class=("gpu-k80",)),
            ],
        ],
    )
    def test_what_fits(self, asked: list[PodSet]) -> None:
        assert check_job(SITE, asked, queue=QUEUE, priority="high") == ()

    @pytest.mark.parametrize(
        ("asked", "message"),
        [
            (
                [pods(gpus=1, gpu_class=("h100",))],
                "role main asks for GPU class h100, which no node has; there are gpu-a100, gpu-k80",
            ),
            (
                [pods(count=17, gpus=1, gpu_class=("gpu-a100",))],
                (
                    "role main asks for 17 nvidia.com/gpu, and queue team-a can never give more than "
                    "16 nvidia.com/gpu (flavor gpu-a100): ask for less, or for more quota"
                ),
            ),
            (
                [pods(count=17, gpus=1)],
                (
                    "role main asks for 17 nvidia.com/gpu, and queue team-a can never give more than "
                    "16 nvidia.com/gpu (flavor cpu or gpu-a100 or gpu-k80): ask for less, or for more quota"
                ),
            ),
            (
                [
                    pods("a", count=9, gpus=1, gpu_class=("gpu-a100",)),
                    pods("b", count=9, gpus=1, gpu_class=("gpu-a100",)),
                ],
                (
                    "the whole gang asks for 18 nvidia.com/gpu, and queue team-a can never give more than "
                    "16 nvidia.com/gpu (flavor gpu-a100): ask for less, or for more quota"
                ),
            ),
            (
                [PodSet(role="main", count=1, needs={"cpu": 1.0, "example.com/tpu": 1.0, "pods": 1.0})],
                (
                    "queue team-a has no quota for example.com/tpu, which role main asks for; "
                    "it has some for cpu, memory, nvidia.com/gpu"
                ),
            ),
            (
                [pods(count=1, gpus=9, gpu_class=("gpu-a100",))],
                (
                    "one replica of role main asks for 1 cpu, 1 GiB memory, 9 nvidia.com/gpu; "
                    "the largest node of class gpu-a100 has 8 nvidia.com/gpu"
                ),
            ),
            (
                [pods(count=5, gpus=3, gpu_class=("gpu-a100",))],
                (
                    "role main has 5 replicas of 1 cpu, 1 GiB memory, 3 nvidia.com/gpu each, and "
                    "the 2 nodes that suit it have room for 4 even when they are empty"
                ),
            ),
            (
                [pods(count=1, cpus=17)],
                "one replica of role main asks for 17 cpu, 1 GiB memory; the largest node has 16 cpu",
            ),
            (
                [pods("a", count=3, cpus=16), pods("b", count=2, cpus=16)],
                "the whole gang asks for 80 cpu, and all nodes together have 64 cpu",
            ),
        ],
        ids=[
            "class",
            "quota",
            "quota, any class",
            "together",
            "resource",
            "node",
            "nodes",
            "cpus",
            "all nodes",
        ],
    )
    def test_what_never_can(self, asked: list[PodSet], message: str) -> None:
        with pytest.raises(CannotSchedule) as raised:
            check_job(SITE, asked, queue=QUEUE)
        assert str(raised.value) == message

    def test_processors_and_cards_in_resource_groups_of_their_own(self) -> None:
        limits = {
            "any": {"cpu": 8.0, "memory": 64.0 * GIB},
            "gpu-a100": {GPU: 16.0},
            "gpu-k80": {GPU: 4.0},
        }
        apart = cluster(topology=False, flavors=SITE.flavors | {"any": Flavor(name="any")})
        queue = replace(QUEUE, limits=limits)
        classes = ("gpu-a100", "gpu-k80")
        check_job(apart, [pods(count=4, gpus=4, gpu_class=classes), pods("etl", count=4)], queue=queue)
        with pytest.raises(
            CannotSchedule, match=r"role main asks for 9 cpu, .* more than 8 cpu \(flavor any\)"
        ):
            check_job(apart, [pods(count=9, gpus=1, gpu_class=classes)], queue=queue)
        with pytest.raises(CannotSchedule, match=r"the whole gang asks for 10 cpu.* \(flavor any\)"):
            check_job(apart, [pods(count=5, gpus=1), pods("etl", count=5)], queue=queue)
        with pytest.raises(CannotSchedule, match=r"role main asks for 5 nvidia.com/gpu.* \(flavor gpu-k80\)"):
            check_job(apart, [pods(count=5, gpus=1, gpu_class=("gpu-k80",))], queue=queue)

    def test_flavors_without_a_topology_are_given_to_no_gang(self) -> None:
        """Kueue passes over them, since every pod of ours asks to be placed."""
        half = {name: replace(each, topology=None) for name, each in SITE.flavors.items() if name != "cpu"}
        site = cluster(flavors={**SITE.flavors, **half})
        asked = [pods(gpus=1, gpu_class=("gpu-a100", "gpu-k80"))]
        with pytest.raises(
            CannotSchedule, match=r"name a Topology in flavor gpu-a100 or gpu-k80 \(topologyName"
        ):
            check_job(site, asked, queue=QUEUE)
        assert check_job(site, [pods()], queue=QUEUE) == ()
        assert check_job(replace(site, topology=False), asked, queue=QUEUE) == ()

    def test_nodes_of_which_each_lacks_something(self) -> None:
        nodes = (Node.of(node("fat", cpus=2, gpus=8)), Node.of(node("thin", cpus=64)))
        with pytest.raises(CannotSchedule, match=r"none of the 2 nodes has all of that"):
            check_job(cluster(nodes=nodes), [pods(count=1, cpus=8, gpus=1)], queue=QUEUE)

    def test_a_control_plane_is_no_room(self) -> None:
        taint = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
        nodes = (Node.of(node("master", taints=[taint])), Node.of(node("small", cpus=2)))
        with pytest.raises(CannotSchedule, match=r"the largest node has 2 cpu"):
            check_job(cluster(nodes=nodes), [pods(count=1, cpus=4)], queue=QUEUE)

    def test_nodes_that_are_away_may_come_back(self) -> None:
        nodes = (Node.of(node("away", ready=False)), Node.of(node("cordoned", cordoned=True)))
        assert check_job(cluster(nodes=nodes), [pods(count=2, cpus=16)], queue=QUEUE) == ()

    def test_nodes_that_are_not_to_be_seen(self) -> None:
        assert check_job(cluster(nodes=None), [pods(count=1, cpus=17)], queue=QUEUE) == ()

    def test_a_class_that_only_a_flavor_stands_for(self) -> None:
        with pytest.raises(CannotSchedule, match=r"the largest node of class gpu-k80 has 0 cpu"):
            check_job(cluster(nodes=SITE.nodes[:3]), [pods(gpus=1, gpu_class=("gpu-k80",))], queue=QUEUE)  # type: ignore[index]
        assert check_job(cluster(nodes=None), [pods(gpus=1, gpu_class=("gpu-k80",))], queue=QUEUE) == ()

    @pytest.mark.parametrize(
        "away", [{"starting": True}, {"starting": True, "ready": False}], ids=["ready", "not ready"]
    )
    @pytest.mark.parametrize(
        ("asked", "hoped_for"),
        [
            (pods(gpus=1, gpu_class=("gpu-k80",)), "k80-0"),
            (pods(count=2, gpus=8, gpu_class=("gpu-a100",)), "a100-1"),
            (pods(count=20, gpus=1), "a100-1, k80-0"),
        ],
    )
    def test_cards_that_are_not_to_be_seen_just_now_are_waited_for(
        self, away: dict[str, bool], asked: PodSet, hoped_for: str
    ) -> None:
        """A kubelet that starts shows none, until the device plugin has registered with it."""
        nodes = (
            Node.of(node("cpu-0")),
            Node.of(node("a100-0", gpu_class="gpu-a100", gpus=8)),
            Node.of(node("a100-1", gpu_class="gpu-a100", gpus=8, **away)),  # type: ignore[arg-type]
            Node.of(node("k80-0", gpu_class="gpu-k80", gpus=4, **away)),  # type: ignore[arg-type]
        )
        (warning,) = check_job(cluster(nodes=nodes), [asked], queue=None)
        assert warning == (
            f"role main waits for devices that no node shows now: {hoped_for} may have them when it is ready and "
            "its device plugin has registered"
        )

    @pytest.mark.parametrize(
        ("asked", "message"),
        [
            (
                pods(gpus=1, gpu_class=("h100",)),
                "GPU class h100, which no node has; there are gpu-a100, gpu-k80",
            ),
            (
                pods(count=1, cpus=17, gpus=1, gpu_class=("gpu-a100",)),
                "the largest node of class gpu-a100 has 16 cpu",
            ),
            (pods(count=9, gpus=1, gpu_class=("gpu-k80",)), "the 1 nodes that suit it have room for 4"),
        ],
    )
    def test_what_no_node_can_have_is_refused_meanwhile(self, asked: PodSet, message: str) -> None:
        nodes = (
            Node.of(node("cpu-0")),
            Node.of(node("a100-0", gpu_class="gpu-a100", gpus=8, starting=True)),
            Node.of(node("k80-0", gpu_class="gpu-k80", gpus=4)),
        )
        with pytest.raises(CannotSchedule, match=message):
            check_job(cluster(nodes=nodes), [asked], queue=None)

    def test_an_unknown_priority(self) -> None:
        with pytest.raises(
            SpecError, match=r"priority='urgent': there is no such priority; there are high, low, normal"
        ):
            check_job(SITE, [pods()], queue=QUEUE, priority="urgent")

    def test_one_that_waits_in_no_queue_names_a_priority_of_pods(self) -> None:
        """Those are what is found where the namespace has no queue."""
        site = cluster(queues={}, priorities=frozenset(("system-node-critical",)))
        assert check_job(site, [pods(count=1)], queue=None, priority="system-node-critical") == ()
        with pytest.raises(SpecError, match="have the class created"):
            check_job(site, [pods(count=1)], queue=None, priority="low")

    def test_classes_are_tried_in_the_order_of_the_queue(self) -> None:
        assert check_job(SITE, [pods(gpus=1, gpu_class=("gpu-a100", "gpu-k80"))], queue=QUEUE) == ()
        (warning,) = check_job(SITE, [pods(gpus=1, gpu_class=("gpu-k80", "gpu-a100"))], queue=QUEUE)
        assert warning == (
            "role main prefers GPU class gpu-k80 to gpu-a100, and queue team-a tries gpu-a100 before gpu-k80: "
            "the order of its flavors decides"
        )

    def test_a_stopped_queue_is_a_warning(self) -> None:
        local = objects("LocalQueue")[0]
        said = {"type": "Active", "status": "False", "reason": "Stopped", "message": "LocalQueue is stopped"}
        queue = Queue.of({**local, "status": {"conditions": [said]}}, {})
        assert check_job(SITE, [pods()], queue=queue) == ("queue team-a is stopped: LocalQueue is stopped",)


class TestLimits:
    """What one workload can ever get."""

    def limits(self, *, cohorts: list[dict[str, object]] | None = (), **quota: object) -> float:  # type: ignore[assignment]
        first, second = objects("ClusterQueue")
        for flavor in first["spec"]["resourceGroups"][0]["flavors"]:
            for resource in flavor["resources"]:
                resource.update({key: text for key, text in quota.items() if key != "lendingLimit"})
        for flavor in second["spec"]["resourceGroups"][0]["flavors"]:
            for resource in flavor["resources"]:
                resource.update({key: text for key, text in quota.items() if key == "lendingLimit"})
        return limits_of([first, second], cohorts)["team-a"]["gpu-a100"][GPU]

    def test_own_and_what_others_lend(self) -> None:
        assert self.limits() == 16.0

    def test_borrowing_is_limited(self) -> None:
        assert self.limits(borrowingLimit="1") == 13.0

    def test_so_is_lending(self) -> None:
        assert self.limits(lendingLimit="2") == 14.0

    def test_a_cohort_with_quota_of_its_own_is_kueues_to_judge(self) -> None:
        cohort = {"metadata": {"name": "site"}, "spec": {"resourceGroups": [{"flavors": []}]}}
        assert self.limits(cohorts=[cohort]) == float("inf")
        assert self.limits(cohorts=None) == float("inf")
        assert self.limits(cohorts=[{"metadata": {"name": "site"}, "spec": {}}]) == 16.0


def test_the_pods_of_an_object() -> None:
    template = {
        "metadata": {"labels": {"muster.dev/role": "workers"}},
        "spec": {"containers": [{"name": "base", "resources": {"limits": {GPU: "2"}}}]},
    }
    spec = {"parallelism": 3, "completions": 3, "template": template}
    job = JobSpec(
        name="flights.train",
        image="train",
        image_digest="b3:" + 64 * "0",
        roles=(
            Role(
                name="workers", replicas=3, entrypoint="a:b", resources=Resources(gpus=2, gpu_class=("k80",))
            ),
        ),
    )
    wanted = (PodSet(role="workers", count=3, needs={GPU: 2.0, "pods": 1.0}, gpu_class=("k80",)),)
    assert pod_sets({"kind": "Job", "spec": spec}, job) == wanted
    job_set = {
        "kind": "JobSet",
        "spec": {"replicatedJobs": [{"name": "workers", "template": {"spec": spec}}]},
    }
    assert pod_sets(job_set, job) == wanted
