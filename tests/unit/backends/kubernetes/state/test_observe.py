from __future__ import annotations

import re
from typing import Any

import pytest
from tests.unit.backends.kubernetes.recordings import (
    Document,
    Recording,
    recorded,
    set_condition,
    set_ended,
    set_status,
    set_waiting,
)

from muster.backends.capacity import QueuePlace
from muster.backends.kubernetes.cluster.facts import Flavor
from muster.backends.kubernetes.state.observe import ObservedJob, observe, plain_reason, usable
from muster.backends.kubernetes.state.seen import JobObjects, SeenPod
from muster.core.status import JobState


def look(recording: Recording, **other: Any) -> ObservedJob:
    return observe(recording.seen, recording.job, **other)


@pytest.mark.parametrize(
    ("name", "state", "reason"),
    [
        ("well-running", JobState.RUNNING, r"2 replicas run"),
        ("well-committing", JobState.COMMITTING, r"every replica has sealed"),
        ("deleted-running", JobState.RUNNING, r"2 replicas run"),
        ("evicted-running", JobState.RUNNING, r"2 replicas run"),
        ("low-running", JobState.RUNNING, r"2 replicas run"),
        (
            "low-queued",
            JobState.QUEUED,
            r"in queue team-a: was preempted by a job of higher priority and waits again; ",
        ),
        ("crowd-queued", JobState.QUEUED, r"waits for nodes: "),
        ("user-error", JobState.FAILED, r"applying FailJobSet failure policy action"),
        (
            "over-quota",
            JobState.QUEUED,
            r"in queue team-a: asks for too much nvidia.com/gpu of flavor gpu-a100 \(18, it has 16\)",
        ),
        ("no-queue", JobState.QUEUED, r"in queue team-x: LocalQueue team-x doesn't exist"),
        (
            "image-not-there",
            JobState.PREPARING,
            r"0 of 2 replicas run; main-\d on node \S+: ErrImageNeverPull: ",
        ),
        (
            "no-secret",
            JobState.PREPARING,
            r"0 of 2 replicas run; main-\d on node \S+: CreateContainerConfigError: ",
        ),
    ],
)
def test_what_a_cluster_showed(name: str, state: JobState, reason: str) -> None:
    found = look(recorded(name))
    assert found.state is state
    assert re.match(reason, found.reason), found.reason


@pytest.fixture
def running() -> Recording:
    return recorded("well-running")


def test_what_runs(running: Recording) -> None:
    found = look(running)
    assert (found.replicas, found.restarts) == (2, 0)
    assert set(found.nodes) == {"main-0", "main-1"}
    assert found.started is not None
    assert running.now - 60 < found.started <= running.now + 1


def test_one_that_has_sealed(running: Recording) -> None:
    def sealed(pod: Document) -> None:
        set_ended(0)(pod)
        pod["status"]["phase"] = "Succeeded"

    found = look(running.changed("Pod", sealed, index=0))
    assert found.state == JobState.RUNNING
    assert found.reason == "2 replicas run, 1 sealed"


def test_one_job_that_is_no_gang() -> None:
    recording = recorded("single")
    assert recording.seen.root is not None
    assert recording.seen.root["kind"] == "Job"
    assert look(recording).replicas == 1


class TestStartingAgain:
    def test_pods_of_the_start_before_do_not_count(self, running: Recording) -> None:
        found = look(running.changed("JobSet", set_status(restarts=2)))
        assert (found.state, found.restarts) == (JobState.PREPARING, 2)
        assert found.reason == "starting again (2): 0 of 2 replicas run; the other pods are being made"
        assert found.started is None

    def test_a_single_job_counts_its_failures(self) -> None:
        def again(pod: Document) -> None:
            notes = pod["metadata"].setdefault("annotations", {})
            notes["batch.kubernetes.io/job-index-failure-count"] = "2"
            notes["batch.kubernetes.io/job-index-ignored-failure-count"] = "1"

        assert look(recorded("single").changed("Pod", again)).restarts == 3


class TestPreparing:
    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (set_waiting("ContainerCreating"), r"1 of 2 replicas run; main-1 on node \S+ is being set up"),
            (
                set_waiting("ErrImagePull", "connection refused"),
                r"1 of 2 replicas run; main-1 on node \S+: ErrImagePull: connection refused",
            ),
            (set_ended(64), r"1 of 2 replicas run; main-1 on node \S+ has ended with exit code 64"),
        ],
    )
    def test_what_keeps_a_replica(self, running: Recording, change: Any, reason: str) -> None:
        found = look(running.changed("Pod", change, index=1))
        assert found.state is JobState.PREPARING
        assert re.fullmatch(reason, found.reason), found.reason

    def test_a_node_that_is_gone(self, running: Recording) -> None:
        def deleted(pod: Document) -> None:
            pod["metadata"]["deletionTimestamp"] = "2026-11-21T19:00:00Z"

        found = look(running.changed("Pod", deleted, index=0))
        assert found.state is JobState.PREPARING
        assert re.search(r"main-0 is being taken off node \S+", found.reason)

    def test_fetching(self, running: Recording) -> None:
        def fetches(pod: Document) -> None:
            set_waiting("PodInitializing")(pod)
            pod["status"]["initContainerStatuses"][0]["state"] = {
                "running": {"startedAt": "2026-11-21T19:00:00Z"}
            }

        found = look(running.changed("Pod", fetches, index=1))
        assert re.search(r"main-1 on node \S+ fetches its code and the worker", found.reason)

    def test_placed_by_kueue(self, running: Recording) -> None:
        def gated(pod: Document) -> None:
            del pod["spec"]["nodeName"]
            pod["status"] = {
                "phase": "Pending",
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "SchedulingGated",
                        "message": "blocked",
                    }
                ],
            }

        found = look(running.changed("Pod", gated))
        assert found.state is JobState.PREPARING
        assert found.reason == "0 of 2 replicas run; Kueue chooses a node for main-0"
        assert found.nodes == {}

    def test_one_waits_for_a_node(self, running: Recording) -> None:
        def unplaced(pod: Document) -> None:
            del pod["spec"]["nodeName"]
            said = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/4 nodes",
            }
            pod["status"] = {"phase": "Pending", "conditions": [said]}

        found = look(running.changed("Pod", unplaced, index=1))
        assert (found.state, found.reason) == (
            JobState.PREPARING,
            "1 of 2 replicas run; main-1 waits for a node: 0/4 nodes",
        )


class TestWaiting:
    def test_the_place(self) -> None:
        found = look(recorded("low-queued"), place=QueuePlace(number=3, of=7))
        assert found.reason.startswith("in queue team-a, place 3 of 7: was preempted")

    def test_an_admission_check(self) -> None:
        def reserved(workload: Document) -> None:
            set_condition("QuotaReserved", reason="QuotaReserved")(workload)
            set_condition("Evicted", status="False")(workload)
            workload["status"]["admissionChecks"] = [
                {"name": "nodes", "state": "Pending"},
                {"name": "budget", "state": "Ready"},
            ]

        found = look(recorded("low-queued").changed("Workload", reserved))
        assert found.reason == "in queue team-a: has its quota, waits for the admission check nodes"

    def test_another_team_took_back_what_it_had_lent(self) -> None:
        preempted = set_condition("Preempted", reason="InCohortReclamation")
        found = look(recorded("low-queued").changed("Workload", preempted))
        assert "gave back what its team had borrowed and waits again; needs " in found.reason

    def test_kueue_has_not_seen_it(self, running: Recording) -> None:
        recording = running.changed("JobSet", lambda root: root["spec"].update(suspend=True))
        found = look(recording.without("Workload").without("Pod"))
        assert (found.state, found.reason) == (JobState.QUEUED, "waits until Kueue has seen it")

    def test_nothing_is_there_yet(self, running: Recording) -> None:
        found = observe(JobObjects(), running.job)
        assert (found.state, found.reason) == (JobState.QUEUED, "its objects are not to be seen yet")

    @pytest.mark.parametrize(
        ("message", "plain"),
        [
            (
                (
                    "couldn't assign flavors to pod set w: insufficient unused quota for nvidia.com/gpu in flavor gpu-a100, "
                    "4 more needed, insufficient unused quota for nvidia.com/gpu in flavor gpu-k80, 2 more needed"
                ),
                "needs 4 more nvidia.com/gpu of flavor gpu-a100 or 2 more nvidia.com/gpu of flavor gpu-k80",
            ),
            (
                "couldn't assign flavors to pod set w: topology \"hosts\" doesn't allow",
                'topology "hosts" doesn\'t allow',
            ),
            (
                (
                    "couldn't assign flavors to pod set w: flavor cpu doesn't match node affinity, insufficient quota for "
                    "nvidia.com/gpu in flavor gpu-a100, previously considered podsets requests (4) + current podset "
                    "request (16) > maximum capacity (16)"
                ),
                "asks for too much nvidia.com/gpu of flavor gpu-a100 (4 + 16, it has 16)",
            ),
            (
                (
                    "couldn't assign flavors to pod set w: flavor cpu doesn't match node affinity, "
                    "flavor gpu-k80 doesn't match node affinity"
                ),
                (
                    "flavor cpu doesn't match node affinity, flavor gpu-k80 doesn't match node affinity; "
                    "Kueue tells only of what it tried last"
                ),
            ),
            ("The workload is waiting", "The workload is waiting"),
        ],
    )
    def test_kueues_reasons_in_fewer_words(self, message: str, plain: str) -> None:
        assert plain_reason(message) == plain


class TestNamedClass:
    """A gang that names a GPU class hears of that alone: others it never gets, whatever Kueue tried last."""

    @pytest.mark.parametrize(
        ("message", "plain"),
        [
            (
                (
                    "couldn't assign flavors to pod set w: topology \"hosts\" doesn't allow to fit any of 10 pod(s), "
                    "insufficient quota for nvidia.com/gpu in flavor gpu-k80, previously considered podsets requests (0) + "
                    "current podset request (10) > maximum capacity (4)"
                ),
                'topology "hosts" doesn\'t allow to fit any of 10 pod(s)',
            ),
            (
                "couldn't assign flavors to pod set w: no topology domains at level: kubernetes.io/hostname",
                "no node that it may use takes pods now and has label kubernetes.io/hostname",
            ),
            (
                (
                    "couldn't assign flavors to pod set w: flavor cpu doesn't match node affinity, "
                    "flavor gpu-k80 doesn't match node affinity"
                ),
                "waits for room of flavor gpu-a100; Kueue tells only of what it tried last",
            ),
            (
                (
                    "couldn't assign flavors to pod set w: insufficient quota for nvidia.com/gpu in flavor gpu-k80, "
                    "previously considered podsets requests (0) + current podset request (10) > maximum capacity (4)"
                ),
                "waits for room of flavor gpu-a100; Kueue tells only of what it tried last",
            ),
            (
                (
                    "couldn't assign flavors to pod set w: insufficient unused quota for nvidia.com/gpu in flavor gpu-a100, "
                    "4 more needed, insufficient unused quota for nvidia.com/gpu in flavor gpu-k80, 2 more needed"
                ),
                "needs 4 more nvidia.com/gpu of flavor gpu-a100",
            ),
            ("The workload is waiting", "The workload is waiting"),
        ],
    )
    def test_it_hears_of_no_other(self, message: str, plain: str) -> None:
        assert plain_reason(message, usable={"w": frozenset({"gpu-a100"})}) == plain

    def test_each_role_hears_of_its_own(self) -> None:
        message = (
            "couldn't assign flavors to pod set ps: insufficient unused quota for cpu in flavor cpu, 2 more needed; "
            "couldn't assign flavors to pod set w: insufficient unused quota for nvidia.com/gpu in flavor gpu-k80, 1 more "
            "needed"
        )
        assert plain_reason(message, usable={"w": frozenset({"gpu-a100"})}) == (
            "needs 2 more cpu of flavor cpu and waits for room of flavor gpu-a100; Kueue tells only of what it tried last"
        )

    def test_the_class_is_read_off_the_workload_and_its_flavor_off_the_cluster(self) -> None:
        terms = [
            {"matchExpressions": [{"key": "muster.dev/gpu-class", "operator": "In", "values": ["gpu-a100"]}]}
        ]
        node = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        affinity = {"affinity": {"nodeAffinity": node}}
        sets = [{"name": "w", "template": {"spec": affinity}}, {"name": "ps", "template": {"spec": {}}}]
        workload = {"spec": {"podSets": sets}}
        assert usable(workload) == {"w": {"gpu-a100"}}
        flavors = {
            name: Flavor(name=name, gpu_class=of)
            for name, of in (("a", "gpu-a100"), ("k", "gpu-k80"), ("c", "cpu"))
        }
        assert usable(workload, flavors) == {"w": {"a"}}


def test_hostile_text_is_one_line(running: Recording) -> None:
    found = look(running.changed("Pod", set_waiting("ErrImagePull", "a\nb\x1b[2J" + 1000 * "x"), index=1))
    assert "\n" not in found.reason
    assert "\x1b" not in found.reason
    assert len(found.reason) <= 400


def test_of_two_pods_of_one_replica_the_newer_counts(running: Recording) -> None:
    older = running.seen.pods[0]
    newer = {
        **older,
        "metadata": {
            **older["metadata"],
            "uid": "n",
            "name": "newer",
            "creationTimestamp": "2099-01-01T00:00:00Z",
        },
    }
    assert next(pod.name for pod in running.with_one(newer).seen.replicas()) == "newer"


def test_a_pod_that_is_hardly_there() -> None:
    pod = SeenPod.of({"metadata": {"name": "p", "labels": {"muster.dev/role": "main"}}, "spec": {}})
    assert (pod.replica, pod.phase, pod.node, pod.runs, pod.sealed) == ("main-0", "Pending", "", False, False)
