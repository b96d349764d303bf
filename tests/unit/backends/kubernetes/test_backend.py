"""The backend on clusters without Kueue: where the scheduler keeps a gang together, and where nothing does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.backends.kubernetes.cluster_jobs import World, world
from tests.unit.backends.kubernetes.fake_cluster import BARE, KUEUE

from muster.backends.kubernetes.api.kinds import JOB, JOB_SET, POD_GROUP
from muster.core.errors import CannotSchedule, NotFound, SpecError
from muster.core.job import Role, SecretRef
from muster.core.resources import Resources
from muster.core.status import JobState
from muster.core.verdict import Cause

LONG_AGO = "2026-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("bare"), missing=BARE, queue=None) as found:
        yield found


@pytest.fixture(scope="module")
def grouping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("grouping"), missing=KUEUE, queue=None) as found:
        yield found


def test_with_job_sets_alone_a_gang_starts_in_part_where_the_site_says_so(tmp_path: Path) -> None:
    with world(tmp_path, missing=KUEUE | {POD_GROUP}, queue=None) as there:
        with pytest.raises(CannotSchedule, match=r"install Kueue .* partial_starts"):
            there.backend().submit(there.job(), job_id="whole")
        there.partial_starts = True
        there.backend().submit(there.job(), job_id="parts")
        (root,) = there.roots("parts")
        assert root["kind"] == JOB_SET.name
        assert "suspend" not in root["spec"]


def test_what_of_mlflow_pods_alone_are_given_is_named(bare: World) -> None:
    secret = SecretRef(source="kubernetes", name="mlflow/password")
    found = bare.backend().runner.tracking(
        bare.job(
            env={"MLFLOW_TRACKING_URI": "https://mlflow.example"},
            secrets={"MLFLOW_TRACKING_PASSWORD": secret, "OTHER": secret},
        )
    )
    assert (found.chosen, found.containers, found.python) == (True, True, None)
    assert found.hidden == ("MLFLOW_TRACKING_PASSWORD",)
    assert not bare.backend().runner.tracking(bare.job()).chosen


class TestWithoutJobSets:
    def test_a_single_job_is_a_job(self, bare: World) -> None:
        bare.backend().submit(bare.job(replicas=1), job_id="one", owner="ti-1")
        (root,) = bare.roots("one")
        assert root["kind"] == JOB.name
        assert bare.ask_for_bundle("one", restart="0-0").status_code == 200
        status = bare.backend().status("one")
        assert (status.alive, status.owner, status.verdict) == (True, "ti-1", None)

    def test_it_is_followed(self, bare: World) -> None:
        backend = bare.backend()
        backend.submit(bare.job(replicas=1), job_id="followed")
        assert backend.statuses(["followed"])["followed"].alive
        assert backend.statuses(["followed"])["followed"].verdict is None

    def test_submitted_again_it_is_the_same(self, bare: World) -> None:
        for _ in range(2):
            bare.backend().submit(bare.job(replicas=1), job_id="same")
        assert bare.cluster.made.count("Job same") == 1

    def test_one_whose_job_was_deleted_is_made_again(self, bare: World) -> None:
        bare.backend().submit(bare.job(replicas=1), job_id="again")
        bare.cluster.remove(bare.roots("again")[0], JOB)
        assert not bare.backend().status("again").alive
        bare.backend().submit(bare.job(replicas=1), job_id="again")
        assert len(bare.roots("again")) == 1

    def test_it_is_cancelled(self, bare: World) -> None:
        bare.backend().submit(bare.job(replicas=1), job_id="stopped")
        bare.backend().cancel("stopped")
        assert bare.backend().status("stopped").state is JobState.CANCELLED
        assert not bare.roots("stopped")

    def test_one_that_failed_is_swept(self, bare: World) -> None:
        backend = bare.backend()
        backend.submit(bare.job(replicas=1), job_id="failed")
        (root,) = bare.roots("failed")
        late = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}
        bare.cluster.put({**root, "status": {"conditions": [late]}})
        backend.sweep()
        verdict = backend.status("failed").verdict
        assert verdict is not None
        assert verdict.cause is Cause.RUN_TIMEOUT
        assert not bare.roots("failed")

    def test_a_gang_is_refused(self, bare: World) -> None:
        with pytest.raises(CannotSchedule, match=r"install JobSet .* and Kueue"):
            bare.backend().submit(bare.job(), job_id="gang")
        with pytest.raises(NotFound):
            bare.backend().status("gang")


class TestWithPodGroups:
    def test_a_gang_has_its_group(self, grouping: World) -> None:
        grouping.backend().submit(grouping.job(), job_id="whole")
        (root,) = grouping.roots("whole")
        (group,) = [each for each in grouping.cluster.all(POD_GROUP) if each["metadata"]["name"] == "whole"]
        assert root["kind"] == JOB_SET.name
        assert group["metadata"]["ownerReferences"][0]["uid"] == root["metadata"]["uid"]
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
        assert not root["spec"].get("suspend")
        (role,) = root["spec"]["replicatedJobs"]
        assert role["template"]["spec"]["template"]["spec"]["schedulingGroup"] == {"podGroupName": "whole"}
        for index in range(2):
            assert grouping.ask_for_bundle("whole", index=index).status_code == 200
        assert grouping.backend().status("whole").alive

    def test_a_single_job_has_none(self, grouping: World) -> None:
        grouping.backend().submit(grouping.job(replicas=1), job_id="one")
        assert grouping.roots("one")[0]["kind"] == JOB_SET.name
        assert "one" not in {each["metadata"]["name"] for each in grouping.cluster.all(POD_GROUP)}

    def test_the_group_of_one_that_was_deleted_is_not_taken_for_its_own(
        self, grouping: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def pause(_: float) -> None:
            cluster.collects = True
            cluster.collect()

        cluster = grouping.cluster
        grouping.backend().submit(grouping.job(), job_id="again")
        cluster.collects = False
        cluster.remove(grouping.roots("again")[0], JOB_SET)
        clock = SimpleNamespace(monotonic=time.monotonic, sleep=pause)
        monkeypatch.setattr("muster.backends.kubernetes.lifecycle.submitting.time", clock)
        grouping.backend().submit(grouping.job(), job_id="again")
        assert cluster.collects
        (root,), group = grouping.roots("again"), cluster.objects["podgroups", "again"]
        assert group["metadata"]["ownerReferences"][0]["uid"] == root["metadata"]["uid"]
        assert cluster.made.count("PodGroup again") == 2

    def test_it_is_followed_and_cancelled(self, grouping: World) -> None:
        backend = grouping.backend()
        backend.submit(grouping.job(), job_id="stopped")
        assert backend.statuses(["stopped"])["stopped"].alive
        backend.cancel("stopped")
        assert backend.status("stopped").state is JobState.CANCELLED
        assert not grouping.roots("stopped")
        assert "stopped" not in {each["metadata"]["name"] for each in grouping.cluster.all(POD_GROUP)}

    def test_one_whose_group_was_deleted_ends(self, grouping: World) -> None:
        grouping.backend().submit(grouping.job(), job_id="ungrouped")
        grouping.cluster.remove(grouping.cluster.objects["podgroups", "ungrouped"], POD_GROUP)
        pod = grouping.pod("ungrouped", phase="Pending", creationTimestamp=LONG_AGO)
        grouping.cluster.put({**pod, "spec": {"schedulingGroup": {"podGroupName": "ungrouped"}}})
        verdict = grouping.backend().status("ungrouped").verdict
        assert verdict is not None
        assert (verdict.cause, verdict.message) == (
            Cause.BACKEND_ERROR,
            "PodGroup ungrouped is missing, so the scheduler starts none of the gang's pods",
        )

    def test_a_list_of_classes_is_refused(self, grouping: World) -> None:
        wanted = Resources(memory_gib=1, gpus=1, gpu_class=("gpu-a100", "gpu-k80"))
        role = Role(replicas=2, command=("true",), resources=wanted)
        with pytest.raises(SpecError, match="choosing among them is Kueue's work, and Kubernetes' PodGroup"):
            grouping.backend().submit(grouping.job(roles=(role,)), job_id="choosy")

    def test_a_queue_is_refused(self, grouping: World) -> None:
        with pytest.raises(
            SpecError, match="this cluster has no queues: Kubernetes' PodGroup knows no queues"
        ):
            grouping.backend().submit(grouping.job(queue="team-a"), job_id="queued")
