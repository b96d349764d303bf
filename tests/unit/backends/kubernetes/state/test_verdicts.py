from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.unit.backends.kubernetes.recordings import (
    Document,
    Recording,
    names,
    recorded,
    set_condition,
    set_ended,
    set_status,
    set_unmounted,
    set_waiting,
    warning,
)
from tests.unit.backends.kubernetes.site_objects import cluster, node

from muster.backends.kubernetes.cluster.facts import Node, Queue, holds
from muster.backends.kubernetes.state.seen import seconds
from muster.backends.kubernetes.state.verdicts import overdue, vanished, verdict
from muster.core.job import Role
from muster.core.replica import Report
from muster.core.resources import Resources
from muster.core.status import JobState
from muster.core.verdict import Cause, ExitCode, Verdict
from muster.core.wire import dumps

RECORDED = {
    "user-error": (
        Cause.USER_ERROR,
        0,
        "the worker of replica main-0 ended with exit code 64: ValueError: the loss",
    ),
    "spec-error": (
        Cause.SPEC_ERROR,
        0,
        "the worker of replica main-0 ended with exit code 65: no module flights",
    ),
    "single": (Cause.USER_ERROR, 0, "the worker of replica main-0 ended with exit code 64: KeyError: day"),
    "rank-lost": (
        Cause.RANK_LOST,
        0,
        "the worker of replica main-0 ended with exit code 68: gloo: connection closed",
    ),
    "single-rank-lost": (
        Cause.RANK_LOST,
        0,
        "the worker of replica main-0 was killed by signal 9 (it was started",
    ),
    "out-of-memory": (
        Cause.OUT_OF_MEMORY,
        1,
        "replica main-1 outgrew its memory limit of 0.0625 GiB on node ",
    ),
    "run-timeout": (
        Cause.RUN_TIMEOUT,
        None,
        "it ran longer than it may: Job was active longer than specified",
    ),
    "image-not-there": (Cause.IMAGE_UNAVAILABLE, None, "node "),
    "registry-away": (Cause.IMAGE_UNAVAILABLE, None, "node "),
    "image-name": (Cause.SPEC_ERROR, None, "image 'localhost/Not An Image' is no image's name: "),
    "no-python": (Cause.SPEC_ERROR, None, "image localhost/shell:1 has no python3: muster's worker runs in"),
    "no-secret": (Cause.SPEC_ERROR, None, "replica main-"),
    "disk": (Cause.SPEC_ERROR, 0, "replica main-0 wrote more than it may: Usage of EmptyDir volume "),
    "over-quota": (Cause.UNSCHEDULABLE, None, "queue team-a can never hold it: "),
    "no-queue": (Cause.SPEC_ERROR, None, "it waits in queue team-x, and LocalQueue team-x doesn't exist"),
    "pod-security": (Cause.SPEC_ERROR, None, "the cluster admits none of its pods: "),
    "orphan-group": (
        Cause.BACKEND_ERROR,
        None,
        "PodGroup orphan is missing, so the scheduler starts none of the",
    ),
}
EXCEEDED = 'Error creating: pods "a" is forbidden: exceeded quota: q, '
GOES_ON = [name for name in names() if name not in RECORDED]


def judge(recording: Recording, *, later: float = 0.0) -> Verdict | None:
    """Judge it as a hub does: with what the cluster has where a queue holds it."""
    seen = recording.seen
    held = seen.workload is not None and not holds(seen.workload, "Admitted")
    return verdict(seen, recording.job, now=recording.now + later, cluster=cluster() if held else None)


def certain(recording: Recording, *, later: float = 0.0) -> Verdict:
    found = judge(recording, later=later)
    assert found is not None
    return found


@pytest.mark.parametrize("name", RECORDED)
def test_what_a_cluster_showed(name: str) -> None:
    cause, rank, message = RECORDED[name]
    found = certain(recorded(name))
    assert found.cause is cause
    assert found.message.startswith(message)
    assert rank is None or found.rank == rank
    assert found.advice


@pytest.mark.parametrize("name", GOES_ON)
def test_what_goes_on_has_none(name: str) -> None:
    assert judge(recorded(name)) is None


@pytest.fixture
def running() -> Recording:
    """Two replicas that run."""
    return recorded("well-running")


def failed(recording: Recording, *, reason: str = "FailedJobs", message: str = "jobset failed") -> Recording:
    return recording.changed("JobSet", set_condition("Failed", reason=reason, message=message))


class TestPods:
    def test_a_report_says_it_best(self, running: Recording) -> None:
        said = Verdict(cause=Cause.GPU_OUT_OF_MEMORY, rank=1, message="CUDA out of memory", advice="use less")
        report = Report(exit_code=ExitCode.OUT_OF_MEMORY, verdict=said, at=5.0)
        recording = failed(running.changed("Pod", set_ended(67, dumps(report)), index=1))
        assert certain(recording) == said

    def test_the_first_report_counts(self, running: Recording) -> None:
        def report(at: float, message: str) -> str:
            said = Verdict(cause=Cause.USER_ERROR, message=message, advice="mend it")
            return dumps(Report(exit_code=ExitCode.USER_ERROR, verdict=said, at=at))

        late = running.changed(
            "Pod", set_ended(64, report(20.0, "second"), at="2026-11-21T18:59:00Z"), index=0
        )
        both = failed(late.changed("Pod", set_ended(64, report(10.0, "first")), index=1))
        assert certain(both).message == "first"

    def test_a_report_that_was_cut_off(self, running: Recording) -> None:
        recording = failed(
            running.changed("Pod", set_ended(64, '{"kind":"Report","schema":1,"verd'), index=0)
        )
        assert certain(recording).message == "the worker of replica main-0 ended with exit code 64"

    @pytest.mark.parametrize("head", ['{"a":', '{"kind":"Report"}\n{"a":'])
    def test_last_words_that_nobody_can_read(self, running: Recording, head: str) -> None:
        said = head + 200_000 * "["
        found = certain(failed(running.changed("Pod", set_ended(64, said), index=0)))
        assert found.message == "the worker of replica main-0 ended with exit code 64"

    def test_who_was_told_to_stop_comes_after_who_failed(self, running: Recording) -> None:
        stopped = running.changed("Pod", set_ended(70, at="2026-11-21T18:59:00Z"), index=0)
        recording = failed(stopped.changed("Pod", set_ended(64, "ValueError"), index=1))
        found = certain(recording)
        assert (found.cause, found.rank) == (Cause.USER_ERROR, 1)

    def test_so_does_who_is_being_deleted(self, running: Recording) -> None:
        def deleted(pod: Document) -> None:
            set_ended(137, at="2026-11-21T18:59:00Z")(pod)
            pod["metadata"]["deletionTimestamp"] = "2026-11-21T18:58:00Z"

        recording = failed(running.changed("Pod", deleted, index=0).changed("Pod", set_ended(66), index=1))
        assert certain(recording).cause is Cause.HANG

    def test_who_lost_a_peer_comes_after_who_failed_whatever_the_clocks_say(self, running: Recording) -> None:
        def report(cause: Cause, code: ExitCode, message: str, *, at: float) -> str:
            said = Verdict(cause=cause, rank=int(at), message=message, advice="look")
            return dumps(Report(exit_code=code, verdict=said, at=at))

        peer = report(Cause.RANK_LOST, ExitCode.RANK_LOST, "Connection closed by peer", at=1.0)
        raised = report(Cause.USER_ERROR, ExitCode.USER_ERROR, "ValueError: NaN", at=2.0)
        recording = running.changed("Pod", set_ended(68, peer), index=0)
        found = certain(failed(recording.changed("Pod", set_ended(64, raised), index=1)))
        assert (found.cause, found.rank, found.message) == (Cause.USER_ERROR, 2, "ValueError: NaN")

    def test_memory_explains_all_else(self, running: Recording) -> None:
        lost = running.changed("Pod", set_ended(68, at="2026-11-21T18:59:00Z"), index=0)
        recording = failed(lost.changed("Pod", set_ended(137, reason="OOMKilled"), index=1))
        found = certain(recording)
        assert (found.cause, found.rank) == (Cause.OUT_OF_MEMORY, 1)

    def test_the_memory_of_what_fetches_the_code_is_not_the_roles(self, running: Recording) -> None:
        def outgrew(pod: Document) -> None:
            pod["status"]["phase"] = "Failed"
            (status,) = pod["status"]["initContainerStatuses"]
            status["name"] = "muster-bootstrap"
            status["state"] = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}

        found = certain(running.changed("Pod", outgrew, index=1))
        assert found.cause is Cause.BACKEND_ERROR
        assert found.message.startswith(
            "container muster-bootstrap of replica main-1 outgrew its memory limit on "
        )
        assert "memory_gib" not in found.advice

    def test_a_hang_says_where_all_ranks_stood(self, running: Recording) -> None:
        def hang(rank: int) -> str:
            said = f"no line and no progress for 60 s: rank {rank} in train.py:{rank}"
            told = Verdict(cause=Cause.HANG, rank=rank, message=said, advice="look")
            return dumps(Report(exit_code=ExitCode.HANG, verdict=told, at=1.0 + rank))

        recording = running
        for index in (0, 1):
            recording = recording.changed("Pod", set_ended(66, hang(index)), index=index)
        found = certain(failed(recording))
        assert found.message == "no line and no progress for 60 s: rank 0 in train.py:0, rank 1 in train.py:1"
        assert found.rank is None

    @pytest.mark.parametrize(
        ("code", "cause"),
        [
            (64, Cause.USER_ERROR),
            (65, Cause.SPEC_ERROR),
            (66, Cause.HANG),
            (67, Cause.OUT_OF_MEMORY),
            (68, Cause.RANK_LOST),
            (69, Cause.COMMIT_FAILED),
            (70, Cause.RANK_LOST),
            (137, Cause.RANK_LOST),
            (143, Cause.RANK_LOST),
            (1, Cause.BACKEND_ERROR),
            (139, Cause.BACKEND_ERROR),
        ],
    )
    def test_exit_codes(self, running: Recording, code: int, cause: Cause) -> None:
        assert certain(failed(running.changed("Pod", set_ended(code), index=0))).cause is cause

    @pytest.mark.parametrize(
        ("reason", "cause", "words"),
        [
            ("PreemptionByScheduler", Cause.EVICTED, "was preempted by a pod of higher priority"),
            ("EvictionByEvictionAPI", Cause.EVICTED, "was evicted: its node is being drained"),
            (
                "TerminationByKubelet",
                Cause.EVICTED,
                "was ended by its node, which ran short of something or shut down",
            ),
            (
                "DeletionByTaintManager",
                Cause.NODE_LOST,
                "was given up: its node no longer answers, or is not for it",
            ),
            ("DeletionByPodGC", Cause.NODE_LOST, "was given up: its node is gone"),
            ("SomethingNew", Cause.EVICTED, "was ended (SomethingNew)"),
        ],
    )
    def test_disruptions(self, running: Recording, reason: str, cause: Cause, words: str) -> None:
        disrupted = set_condition("DisruptionTarget", reason=reason, message="in the API's words")
        recording = failed(
            running.changed("Pod", set_ended(137), index=1).changed("Pod", disrupted, index=1)
        ).changed("JobSet", set_status(restarts=3))
        recording = recording.changed("Pod", _restart(3))
        found = certain(recording)
        node = recording.seen.replicas()[1].node
        assert found.cause is cause
        assert found.message == (
            f"replica main-1 on node {node} {words}: in the API's words (it was started again 3 times)"
        )

    def test_nobody_cancelled_a_pod_that_was_deleted(self, running: Recording) -> None:
        """Its worker knows of a SIGTERM alone, and calls that cancelled."""
        told = Verdict(cause=Cause.CANCELLED, message="replica main-1 was told to stop", advice="")
        report = dumps(Report(exit_code=ExitCode.STOPPED, verdict=told, at=1.0))
        found = certain(
            failed(running.changed("Pod", set_ended(int(ExitCode.STOPPED), said=report), index=1))
        )
        assert found.cause is Cause.EVICTED
        assert "replica main-1 was told to stop: its pod on node " in found.message
        assert found.message.endswith(" was deleted, or its queue put the job back")

    def test_a_pod_that_kueue_gave_up(self, running: Recording) -> None:
        """It waited for a node that was lost: that is no exit code, and no backend error."""
        gone = set_condition(
            "TerminatedByKueue", reason="UnschedulableOnAssignedNode", message="due to node taint"
        )
        found = certain(failed(running.changed("Pod", gone, index=1)))
        assert found.cause is Cause.NODE_LOST
        assert (
            "was given up by Kueue: the node that it had chosen takes no pods: due to node taint"
            in found.message
        )

    @pytest.mark.parametrize(
        ("reason", "message", "cause"),
        [
            ("Evicted", "The node was low on resource: memory.", Cause.EVICTED),
            ("NodeLost", "Node k80-0 which was running pod is unresponsive", Cause.NODE_LOST),
            ("Terminated", "Pod was terminated in response to imminent node shutdown.", Cause.NODE_LOST),
            ("OutOfcpu", "Node didn't have enough resource: cpu", Cause.BACKEND_ERROR),
            (
                "Evicted",
                "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.",
                Cause.SPEC_ERROR,
            ),
        ],
    )
    def test_what_a_kubelet_ends(self, running: Recording, reason: str, message: str, cause: Cause) -> None:
        recording = running.changed(
            "Pod", set_status(phase="Failed", reason=reason, message=message), index=0
        )
        found = certain(failed(recording))
        assert found.cause is cause
        assert message in found.message

    def test_memory_is_final_though_the_cluster_tries_again(self, running: Recording) -> None:
        """JobSet cannot tell it from a kill; the pods of the start before are still known."""
        recording = running.changed("Pod", set_ended(137, reason="OOMKilled"), index=0)
        recording = recording.changed("JobSet", set_status(restarts=1))
        assert certain(recording).cause is Cause.OUT_OF_MEMORY

    def test_a_lost_rank_is_not(self, running: Recording) -> None:
        assert judge(running.changed("Pod", set_ended(137), index=0)) is None

    def test_a_program_that_is_not_in_the_image(self, running: Recording) -> None:
        said = 'failed to create task: exec: "python3": executable file not found in $PATH: unknown'
        found = certain(running.changed("Pod", set_ended(128, said, reason="StartError"), index=0))
        assert found.cause is Cause.SPEC_ERROR
        assert "has no python3" in found.message

    def test_a_container_that_cannot_be_started(self, running: Recording) -> None:
        said = "failed to create task: no space left on device"
        found = certain(failed(running.changed("Pod", set_ended(128, said, reason="StartError"), index=0)))
        assert found.cause is Cause.BACKEND_ERROR
        assert found.message == f"replica main-0: container base cannot be started: {said}"

    def test_the_init_container(self, running: Recording) -> None:
        def refused(pod: Document) -> None:
            pod["status"]["phase"] = "Failed"
            (status,) = pod["status"]["initContainerStatuses"]
            said = "muster bootstrap: the store at http://s refuses this job's token (HTTP 403)\n"
            status["state"] = {"terminated": {"exitCode": 65, "reason": "Error", "message": said}}
            pod["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "PodInitializing"}}

        found = certain(failed(running.changed("Pod", refused, index=0)))
        assert found.cause is Cause.SPEC_ERROR
        assert found.message == (
            "container muster-bootstrap of replica main-0 ended with exit code 65: "
            "muster bootstrap: the store at http://s refuses this job's token (HTTP 403)"
        )


def _restart(number: int) -> object:
    def change(pod: Document) -> None:
        pod["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] = str(number)

    return change


class TestNoPodsLeft:
    @pytest.mark.parametrize(
        ("reason", "message", "cause", "words"),
        [
            (
                "PodFailurePolicy",
                "Container base for pod ml/tr1-main-0-1-x2f failed with exit code 64 matching FailJob rule at index 0",
                Cause.USER_ERROR,
                "pod ml/tr1-main-0-1-x2f ended with exit code 64",
            ),
            (
                "PodFailurePolicy",
                "Pod ml/tr1-main-0-1-x2f has condition DisruptionTarget matching FailJob rule at index 1",
                Cause.EVICTED,
                "the cluster took pod ml/tr1-main-0-1-x2f away",
            ),
            (
                "BackoffLimitExceeded",
                "Job has reached the specified backoff limit",
                Cause.BACKEND_ERROR,
                "it failed and none of its pods is left: Job has reached the specified backoff limit",
            ),
        ],
    )
    def test_what_the_controllers_wrote_down(
        self, running: Recording, reason: str, message: str, cause: Cause, words: str
    ) -> None:
        job_failed = set_condition("Failed", reason=reason, message=message)
        found = certain(failed(running.changed("Job", job_failed)).without("Pod"))
        assert (found.cause, found.message) == (cause, words)

    def test_nothing_at_all(self, running: Recording) -> None:
        assert judge(running.without("JobSet").without("Job").without("Pod")) is None


@pytest.mark.parametrize(
    ("age", "message"),
    [
        (60.0, "train-1 was deleted on the cluster, by hand or by another program, while it had not ended"),
        (90_000.0, "train-1 was deleted on the cluster, by hand or a day after its end, which was not seen"),
    ],
)
def test_a_job_whose_objects_are_gone_tells_one_story(age: float, message: str) -> None:
    found = vanished("train-1", age_seconds=age)
    assert (found.cause, found.message) == (Cause.BACKEND_ERROR, message)


class TestQueue:
    @pytest.mark.parametrize(
        ("message", "never"),
        [
            (
                (
                    "couldn't assign flavors to pod set w: insufficient quota for nvidia.com/gpu in flavor gpu-a100, "
                    "previously considered podsets requests (0) + current podset request (20) > maximum capacity (16)"
                ),
                True,
            ),
            (
                (
                    "couldn't assign flavors to pod set w: flavor cpu doesn't match node affinity, insufficient quota for "
                    "nvidia.com/gpu in flavor gpu-a100, previously considered podsets requests (0) + current podset "
                    "request (20) > maximum capacity (16)"
                ),
                True,
            ),
            (
                "couldn't assign flavors to pod set w: resource example.com/tpu unavailable in ClusterQueue",
                True,
            ),
            (
                (
                    'couldn\'t assign flavors to pod set w: Flavor "gpu-a100" does not support TopologyAwareScheduling, '
                    "flavor cpu doesn't match node affinity"
                ),
                True,
            ),
            (
                (
                    'couldn\'t assign flavors to pod set w: Flavor "gpu-a100" does not support TopologyAwareScheduling, '
                    "insufficient unused quota for nvidia.com/gpu in flavor gpu-k80, 4 more needed"
                ),
                False,
            ),
            (
                (
                    "couldn't assign flavors to pod set w: insufficient unused quota for nvidia.com/gpu in flavor gpu-a100, "
                    "4 more needed, insufficient quota for nvidia.com/gpu in flavor gpu-k80, previously considered "
                    "podsets requests (0) + current podset request (8) > maximum capacity (4)"
                ),
                False,
            ),
            (
                (
                    "couldn't assign flavors to pod set w: insufficient unused quota for cpu in flavor cpu, 4 more needed; "
                    "couldn't assign flavors to pod set v: resource example.com/tpu unavailable in ClusterQueue"
                ),
                True,
            ),
            (
                (
                    "couldn't assign flavors to pod set w: topology \"hosts\" doesn't allow to fit any of 2 pod(s). Total "
                    'nodes: 3; excluded: resource "nvidia.com/gpu": 3'
                ),
                False,
            ),
            ("couldn't assign flavors to pod set w: flavor gpu-k80 doesn't match node affinity", False),
            ("The workload is waiting for evaluation", False),
        ],
    )
    def test_what_can_never_be_given(self, message: str, never: bool) -> None:
        """In a queue that has the flavors which Kueue tells of."""
        recording = _reserved(recorded("low-queued"), message)
        limits = {flavor: {} for flavor in re.findall(r'lavor "?([a-z0-9-]+)', message)}
        there = cluster(queues={"team-a": Queue(name="team-a", cluster_queue="team-a", limits=limits)})
        found = verdict(recording.seen, recording.job, now=recording.now, cluster=there)
        assert (found is not None) is never
        assert found is None or found.cause is Cause.UNSCHEDULABLE

    @pytest.mark.parametrize(
        ("tried", "never"), [(("cpu", "gpu-a100", "gpu-k80"), True), (("gpu-k80",), False)]
    )
    def test_of_flavors_that_were_not_tried_nothing_is_known(
        self, tried: tuple[str, ...], never: bool
    ) -> None:
        """Kueue goes on with the flavor after the one that it tried last."""
        too_much = (
            "insufficient quota for nvidia.com/gpu in flavor {}, previously considered podsets requests (0) + "
            "current podset request (20) > maximum capacity (16)"
        )
        said = "couldn't assign flavors to pod set w: " + ", ".join(map(too_much.format, tried))
        recording = _reserved(recorded("low-queued"), said)
        found = verdict(recording.seen, recording.job, now=recording.now, cluster=cluster())
        assert (found is not None) is never

    def test_it_tells_of_one_resource_group_at_a_time(self) -> None:
        limits = {"any": {"cpu": 8.0}, "gpu-a100": {"nvidia.com/gpu": 16.0}}
        there = cluster(queues={"team-a": Queue(name="team-a", cluster_queue="team-a", limits=limits)})
        said = "couldn't assign flavors to pod set w: insufficient quota for nvidia.com/gpu in flavor gpu-a100 > maximum capacity (16)"
        recording = _reserved(recorded("low-queued"), said)
        found = verdict(recording.seen, recording.job, now=recording.now, cluster=there)
        assert found is not None
        assert found.cause is Cause.UNSCHEDULABLE

    def test_a_queue_that_somebody_is_just_making(self) -> None:
        recording = recorded("no-queue")
        waits = recording.seen.workload
        assert waits is not None
        assert judge(recording) is not None
        assert judge(recording, later=-3600 + 10) is None

    @pytest.mark.parametrize(
        ("message", "cause"),
        [
            ("The workload is deactivated due to exceeding the maximum execution time", Cause.RUN_TIMEOUT),
            (
                "The workload is deactivated due to exceeding the maximum number of re-queuing retries",
                Cause.QUEUE_TIMEOUT,
            ),
            ("The workload is deactivated", Cause.CANCELLED),
        ],
    )
    def test_deactivated(self, message: str, cause: Cause) -> None:
        evicted = set_condition("Evicted", reason="Deactivated", message=message)
        assert certain(recorded("low-queued").changed("Workload", evicted)).cause is cause


def _reserved(recording: Recording, message: str) -> Recording:
    fields = {"status": "False", "reason": "Pending", "message": message}
    return recording.changed("Workload", set_condition("QuotaReserved", **fields)).changed(
        "Workload", set_condition("Evicted", status="False")
    )


class TestStuck:
    @pytest.mark.parametrize(
        ("reason", "message", "at_once", "in_the_end"),
        [
            ("ErrImagePull", "dial tcp: connect: connection refused", None, Cause.IMAGE_UNAVAILABLE),
            ("ImagePullBackOff", 'Back-off pulling image "x"', None, Cause.IMAGE_UNAVAILABLE),
            (
                "ImagePullBackOff",
                'Back-off pulling image "r/x:1": ErrImagePull: r/x:1: not found',
                Cause.IMAGE_UNAVAILABLE,
                Cause.IMAGE_UNAVAILABLE,
            ),
            ("ErrImagePull", "pull access denied, repository does not exist", None, Cause.IMAGE_UNAVAILABLE),
            ("ErrImageNeverPull", "", Cause.IMAGE_UNAVAILABLE, Cause.IMAGE_UNAVAILABLE),
            ("InvalidImageName", "couldn't parse image name", Cause.SPEC_ERROR, Cause.SPEC_ERROR),
            ("CreateContainerConfigError", 'secret "s" not found', None, Cause.SPEC_ERROR),
            ("CreateContainerConfigError", "couldn't find key k in Secret ml/s", None, Cause.SPEC_ERROR),
            (
                "CreateContainerConfigError",
                "container has runAsNonRoot and image will run as root",
                None,
                Cause.SPEC_ERROR,
            ),
            (
                "CreateContainerConfigError",
                "failed to prepare subPath for volumeMount",
                None,
                Cause.BACKEND_ERROR,
            ),
            ("ContainerCreating", "", None, None),
            ("PodInitializing", "", None, None),
        ],
    )
    def test_containers_that_wait(
        self, running: Recording, reason: str, message: str, at_once: Cause | None, in_the_end: Cause | None
    ) -> None:
        recording = running.changed("Pod", set_waiting(reason, message), index=1)
        for later, wanted in ((0.0, at_once), (3600.0, in_the_end)):
            found = judge(recording, later=later)
            assert (found and found.cause) == wanted

    def test_volumes_that_a_node_cannot_mount(self, running: Recording) -> None:
        recording = running.changed("Pod", set_unmounted, index=1)
        said = 'MountVolume.SetUp failed for volume "pv" : hostPath type check failed'

        def judged(*, later: float) -> Verdict | None:
            times = {"first": recording.now, "last": recording.now + later - 100}
            event = warning("FailedMount", said, recording.seen.pods[1], **times)
            return judge(recording.with_one(event), later=later)

        assert judged(later=200) is None
        found = judged(later=400)
        assert found is not None
        assert found.cause is Cause.BACKEND_ERROR
        assert re.match(
            r"replica main-1: node \S+ cannot mount its volumes: MountVolume.SetUp failed", found.message
        )

    def test_volumes_that_were_mounted_at_the_second_try(self, running: Recording) -> None:
        """Nodes fail at the first now and then; what takes long after that is an image, or the store."""
        unmounted = running.changed("Pod", set_unmounted, index=1)
        mounted = unmounted.changed("Pod", set_condition("PodReadyToStartContainers"), index=1)
        event = warning(
            "FailedMount", "try again", running.seen.pods[1], first=running.now, last=running.now + 590
        )
        assert judge(unmounted.with_one(event), later=600) is not None
        assert judge(mounted.with_one(event), later=600) is None
        old = warning("FailedMount", "try again", running.seen.pods[1], first=running.now, last=running.now)
        assert judge(unmounted.with_one(old), later=600) is None, "nothing was heard of it since"

    def test_a_container_is_given_time_from_when_it_is_its_turn(self, running: Recording) -> None:
        """Its image may have taken long, and so may the one before it."""

        def slow(pod: Document) -> None:
            set_waiting("CreateContainerConfigError", 'secret "s" not found')(pod)
            (first,) = pod["status"]["initContainerStatuses"]
            first["state"]["terminated"]["finishedAt"] = "2026-11-21T21:00:00Z"

        recording = running.changed("Pod", slow, index=1)
        turn = seconds("2026-11-21T21:00:00Z")
        assert turn is not None
        assert judge(recording, later=turn - recording.now + 5) is None
        assert certain(recording, later=turn - recording.now + 35).cause is Cause.SPEC_ERROR

    def test_a_kubelet_that_has_not_heard_of_a_secret_yet(self, running: Recording) -> None:
        said = "failed to sync secret cache: timed out waiting for the condition"
        recording = running.changed("Pod", set_waiting("CreateContainerConfigError", said), index=1)
        assert judge(recording, later=60) is None
        assert certain(recording, later=3600).cause is Cause.BACKEND_ERROR

    def test_an_image_that_took_long_and_failed_is_tried_again(self, running: Recording) -> None:
        said = 'Failed to pull image "r/x:1": unexpected EOF'
        recording = running.changed("Pod", set_waiting("ImagePullBackOff", "Back-off pulling image"), index=1)
        pod = recording.seen.replicas()[1]
        assert pod.placed_at is not None
        failed = pod.placed_at + 600
        event = warning("Failed", said, recording.seen.pods[1], first=failed, last=failed)
        recording = recording.with_one(event)
        assert judge(recording, later=failed + 590 - recording.now) is None
        late = failed + 600 + 190 - recording.now
        assert certain(recording, later=late).cause is Cause.IMAGE_UNAVAILABLE

    def test_pods_that_are_not_admitted(self, running: Recording) -> None:
        """What they lack may be made a moment later: then there are pods."""
        said = (
            'Error creating: pods "a" is forbidden: error looking up service account ml/muster-job: not found'
        )
        bare = running.without("Pod")
        (job,) = bare.seen.jobs
        event = warning("FailedCreate", said, job, first=bare.now, last=bare.now)
        assert judge(bare.with_one(event), later=10) is None
        assert certain(bare.with_one(event), later=40).cause is Cause.SPEC_ERROR
        assert judge(running.with_one(event), later=40) is None

    def test_a_namespace_whose_quota_is_used_up_may_have_room_later(self, running: Recording) -> None:
        said = EXCEEDED + "requested: pods=1, used: pods=9, limited: pods=9"
        bare = running.without("Pod")
        event = warning("FailedCreate", said, bare.seen.jobs[0], first=bare.now, last=bare.now)
        assert judge(bare.with_one(event), later=3600) is None

    def test_a_namespace_whose_quota_is_too_small_for_all_pods_of_a_role(self, running: Recording) -> None:
        asked = "limits.memory=3Gi,pods=1,requests.cpu=500m"
        said = f"{EXCEEDED}requested: {asked}, used: limits.memory=3Gi,pods=1,requests.cpu=1, limited: "
        allowed = "limits.memory=5Gi,pods=9,requests.cpu=800m"
        now = running.now
        event = warning("FailedCreate", said + allowed, running.seen.jobs[0], first=now, last=now)
        found = certain(running.with_one(event))
        assert found.cause is Cause.UNSCHEDULABLE
        assert found.message == (
            "its namespace can never hold it: its 2 pods ask for 6 GiB memory (limits), 1 cpu (requests), and "
            "ResourceQuota q allows 5 GiB memory (limits), 0.8 cpu (requests)"
        )

    def test_nodes_that_will_never_do(self) -> None:
        recording = recorded("crowd-queued")
        found = verdict(recording.seen, recording.job, now=recording.now, cluster=cluster())
        assert found is not None
        assert found.cause is Cause.UNSCHEDULABLE
        assert "the 4 nodes that suit it have room for 4 even when they are empty" in found.message
        soon = verdict(recording.seen, recording.job, now=recording.now - 3590, cluster=cluster())
        assert soon is None
        assert verdict(recording.seen, recording.job, now=recording.now, cluster=cluster(nodes=None)) is None

    def test_cards_that_are_not_to_be_seen_just_now_may_be_again(self) -> None:
        def wants_cards(job_set: Document) -> None:
            (role,) = job_set["spec"]["replicatedJobs"]
            spec = role["template"]["spec"]["template"]["spec"]
            spec["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "8"}}

        recording = recorded("crowd-queued").changed("JobSet", wants_cards)
        for starting, refused in ((False, True), (True, False)):
            cards = [node(f"a100-{number}", gpus=8, starting=starting and number == 0) for number in range(4)]
            there = cluster(nodes=tuple(map(Node.of, cards)))
            found = verdict(recording.seen, recording.job, now=recording.now, cluster=there)
            assert (found is not None) is refused

    def test_a_node_that_a_gang_had_is_given_time_to_come_back(self) -> None:
        recording = recorded("crowd-queued")
        facts = {"now": recording.now, "cluster": cluster()}
        assert verdict(recording.seen, recording.job, **facts) is not None
        assert verdict(recording.seen, recording.job, started=recording.now - 3600, **facts) is None
        again = recording.changed("JobSet", set_status(restarts=1))
        again = again.changed("Pod", _restart(1))
        assert verdict(again.seen, again.job, **facts) is None


class TestOverdue:
    JOB = replace(
        recorded("user-error").job,
        queue_timeout_seconds=100,
        run_timeout_seconds=50,
        roles=(Role(entrypoint="a:b", resources=Resources()),),
    )

    @pytest.mark.parametrize(
        ("state", "submitted", "started", "cause"),
        [
            (JobState.QUEUED, 950.0, None, None),
            (JobState.QUEUED, 899.0, None, Cause.QUEUE_TIMEOUT),
            (JobState.PREPARING, 899.0, None, None),
            (JobState.RUNNING, 0.0, 960.0, None),
            (JobState.RUNNING, 0.0, 949.0, Cause.RUN_TIMEOUT),
            (JobState.QUEUED, 0.0, 949.0, Cause.RUN_TIMEOUT),
            (JobState.COMMITTING, 0.0, 1.0, None),
            (JobState.SUCCEEDED, 0.0, 1.0, None),
        ],
    )
    def test_at_a_thousand(
        self, state: JobState, submitted: float, started: float | None, cause: Cause | None
    ) -> None:
        found = overdue(self.JOB, state=state, submitted=submitted, started=started, now=1000.0)
        assert (found and found.cause) == cause

    @pytest.mark.parametrize(
        ("state", "back", "now", "cause"),
        [
            (JobState.QUEUED, True, 990.0, None),
            (JobState.QUEUED, True, 1011.0, Cause.QUEUE_TIMEOUT),
            (JobState.RUNNING, False, 949.0, None),
            (JobState.RUNNING, False, 951.0, Cause.RUN_TIMEOUT),
        ],
    )
    def test_to_wait_again_is_not_to_run(
        self, state: JobState, back: bool, now: float, cause: Cause | None
    ) -> None:
        """It ran for 10 s; then its queue put it back, or let it in again, at 910 s."""
        workload = {
            "status": {
                "accumulatedPastExecutionTimeSeconds": 10,
                "conditions": [
                    {
                        "type": "Admitted",
                        "status": "False" if back else "True",
                        "lastTransitionTime": "1970-01-01T00:15:10Z",
                    }
                ],
            }
        }
        found = overdue(self.JOB, state=state, submitted=0.0, started=100.0, now=now, workload=workload)
        assert (found and found.cause) == cause
