from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.backends.kubernetes.golden import EXAMPLES, KUEUE, SITE, job

from muster.backends.kubernetes.manifests import pods
from muster.backends.kubernetes.manifests.wiring import Submission
from muster.core.job import Role
from muster.core.resources import Resources


def templates(name: str) -> Iterator[dict[str, Any]]:
    owner = EXAMPLES[name].documents().owner["spec"]
    for each in owner.get("replicatedJobs") or [{"template": {"spec": owner}}]:
        yield each["template"]["spec"]["template"]


def pod(role: Role, *, site: Any = SITE, **changes: Any) -> dict[str, Any]:
    submission = Submission(job=job(role, **changes), job_id="t-1", attempt=1, site=site, cluster=KUEUE)
    return dict(pods.template(submission, role)["spec"])


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_pod_keeps_to_pod_security_restricted(name: str) -> None:
    """As https://kubernetes.io/docs/concepts/security/pod-security-standards has it."""
    for template in templates(name):
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & set(spec)
        for container in (*spec["initContainers"], *spec["containers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
        assert kinds <= {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_of_the_store_a_pod_sees_its_inputs_read_only_and_its_own_start(name: str) -> None:
    job_id = EXAMPLES[name].job_id
    for template in templates(name):
        spec = template["spec"]
        claims = {volume["name"] for volume in spec["volumes"] if "persistentVolumeClaim" in volume}
        assert len(claims) == 1
        for container in (*spec["initContainers"], *spec["containers"]):
            for mount in container["volumeMounts"]:
                if mount["name"] not in claims:
                    continue
                if mount.get("readOnly"):
                    assert mount["subPath"].startswith("store/v/")
                    assert "/data" in mount["subPath"]
                else:
                    assert mount["subPathExpr"].startswith(f"store/staging/{job_id}/")
                    assert len(mount["subPathExpr"].split("/")) == 5
                assert ".." not in mount.get("subPath", mount.get("subPathExpr"))
        assert claims.isdisjoint(
            mount["name"] for each in spec["initContainers"] for mount in each["volumeMounts"]
        )


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_store_at_the_claims_own_root_has_no_folder(name: str) -> None:
    example = replace(EXAMPLES[name], site=replace(SITE, folder=""))
    text = str(example.documents().owner)
    assert "staging/" in text
    assert "store/staging" not in text
    assert "'subPath': '/" not in text


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_two_mounts_hide_each_other(name: str) -> None:
    for template in templates(name):
        for container in (*template["spec"]["initContainers"], *template["spec"]["containers"]):
            paths = [mount["mountPath"] for mount in container["volumeMounts"]]
            assert len(set(paths)) == len(paths)
            assert not [(a, b) for a in paths for b in paths if b.startswith(f"{a}/")]
            volumes = {volume["name"] for volume in template["spec"]["volumes"]}
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_amounts_are_rounded_up_and_memory_is_both_asked_for_and_the_limit() -> None:
    resources = Resources(cpus=0.0001, memory_gib=0.0001, disk_gib=0.5)
    spec = pod(Role(entrypoint="a:b", resources=resources))
    assert spec["containers"][0]["resources"] == {
        "requests": {"cpu": "1m", "memory": "1Mi"},
        "limits": {"memory": "1Mi"},
    }
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["muster-scratch"]["emptyDir"] == {"sizeLimit": "512Mi"}
    assert volumes["muster-shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Mi"}


def test_scratch_has_no_limit_where_none_is_asked_for() -> None:
    volumes = {volume["name"]: volume for volume in pod(Role(entrypoint="a:b"))["volumes"]}
    assert volumes["muster-scratch"]["emptyDir"] == {}


def test_the_worker_has_time_to_say_how_its_ranks_ended() -> None:
    assert pod(Role(entrypoint="a:b"), grace_seconds=0.5)["terminationGracePeriodSeconds"] == 6


def test_a_platform_that_chooses_the_user_is_let() -> None:
    spec = pod(Role(entrypoint="a:b"), site=replace(SITE, user=None))
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_gpus_bring_their_taint_and_their_classes() -> None:
    assert "affinity" not in pod(Role(entrypoint="a:b", resources=Resources(gpus=1)))
    assert len(pod(Role(entrypoint="a:b"))["tolerations"]) == 2
    other = pod(
        Role(entrypoint="a:b", resources=Resources(gpus=2, gpu_class=("mi300",))),
        site=replace(SITE, gpu_resource="amd.com/gpu"),
    )
    assert other["tolerations"][-1]["key"] == "amd.com/gpu"
    assert other["containers"][0]["resources"]["limits"]["amd.com/gpu"] == "2"
    assert set(other["affinity"]["nodeAffinity"]) == {"requiredDuringSchedulingIgnoredDuringExecution"}
