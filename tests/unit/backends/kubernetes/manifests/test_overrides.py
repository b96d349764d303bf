from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import pytest
from tests.unit.backends.kubernetes.golden import EXAMPLES, KUEUE, SITE

from muster.backends.kubernetes.manifests import pods
from muster.backends.kubernetes.manifests.overrides import merge
from muster.backends.kubernetes.manifests.wiring import Submission
from muster.core.errors import SpecError


def template(name: str = "torchrun") -> dict[str, Any]:
    example = EXAMPLES[name]
    submission = Submission(job=example.job, job_id=example.job_id, attempt=1, site=SITE, cluster=KUEUE)
    return pods.template(submission, example.job.roles[0])


def merged(spec: Mapping[str, Any] | None = None, **pod: Any) -> dict[str, Any]:
    return merge({**pod, "spec": spec or {}}, template(), site=SITE)


def main(**fields: Any) -> dict[str, Any]:
    return {"containers": [{"name": "base", **fields}]}


def test_an_empty_override_changes_nothing_and_none_changes_what_it_is_merged_over() -> None:
    ours = template()
    before = deepcopy(ours)
    assert merge({}, ours, site=SITE) == before
    added = merge({"spec": main(env=[{"name": "A", "value": "1"}])}, ours, site=SITE)
    assert ours == before
    assert added != before


def test_what_is_added_stands_beside_ours() -> None:
    there = template()["spec"]
    spec = merged(
        {
            "tolerations": [{"key": "spot", "operator": "Exists"}, there["tolerations"][0]],
            "imagePullSecrets": [{"name": "other"}],
            "nodeSelector": {"zone": "b"},
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "reference"}}],
            "runtimeClassName": "nvidia",
        }
    )["spec"]
    assert spec["tolerations"] == [*there["tolerations"], {"key": "spot", "operator": "Exists"}]
    assert spec["imagePullSecrets"] == [{"name": "registry"}, {"name": "other"}]
    assert spec["nodeSelector"] == {"zone": "b"}
    assert spec["volumes"] == [
        *there["volumes"],
        {"name": "data", "persistentVolumeClaim": {"claimName": "reference"}},
    ]
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["containers"] == there["containers"]


def test_a_variable_of_the_same_name_takes_the_place_of_ours() -> None:
    reference = {"name": "NCCL_DEBUG", "valueFrom": {"secretKeyRef": {"name": "debug", "key": "level"}}}
    (container,) = merged(main(env=[reference]))["spec"]["containers"]
    assert [each for each in container["env"] if each["name"] == "NCCL_DEBUG"] == [reference]


def test_a_node_must_satisfy_both() -> None:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}
    field = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    wanted = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term, field]}}
    affinity = merged({"affinity": {"nodeAffinity": wanted}})["spec"]["affinity"]
    classes = {"key": "muster.dev/gpu-class", "operator": "In", "values": ["a100", "k80"]}
    required = affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required["nodeSelectorTerms"] == [
        {"matchExpressions": [classes, *term["matchExpressions"]]},
        {"matchExpressions": [classes], **field},
    ]
    assert len(affinity["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]) == 2


def test_a_node_affinity_stands_alone_where_no_class_is_asked_for() -> None:
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}
    single = merge({"spec": {"affinity": {"nodeAffinity": preferred}}}, template("single"), site=SITE)
    assert single["spec"]["affinity"] == {"nodeAffinity": preferred}
    both = merged({"affinity": {"nodeAffinity": preferred}})["spec"]["affinity"]["nodeAffinity"]
    assert len(both["preferredDuringSchedulingIgnoredDuringExecution"]) == 3


def test_a_cpu_limit_and_other_devices_may_be_asked_for() -> None:
    (container,) = merged(main(resources={"limits": {"cpu": "4", "rdma/hca": "1"}}))["spec"]["containers"]
    assert container["resources"]["limits"] == {
        "memory": "4096Mi",
        "nvidia.com/gpu": "2",
        "cpu": "4",
        "rdma/hca": "1",
    }


def volume(**source: Any) -> dict[str, Any]:
    return {"volumes": [{"name": "theirs", **source}]}


def mount(path: Any, name: str = "theirs") -> dict[str, Any]:
    return main(volumeMounts=[{"name": name, "mountPath": path}])


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"serviceAccountName": "admin"}, "spec.serviceAccountName"),
        ({"serviceAccount": "admin"}, "spec.serviceAccount"),
        ({"automountServiceAccountToken": True}, "spec.automountServiceAccountToken"),
        ({"securityContext": {"runAsUser": 0}}, "spec.securityContext"),
        ({"initContainers": []}, "spec.initContainers"),
        ({"ephemeralContainers": []}, "spec.ephemeralContainers"),
        ({"hostNetwork": True}, "spec.hostNetwork"),
        ({"hostPID": True}, "spec.hostPID"),
        ({"nodeName": "n1"}, "spec.nodeName"),
        ({"restartPolicy": "Always"}, "spec.restartPolicy"),
        ({"priorityClassName": "system-node-critical"}, "spec.priorityClassName"),
        ({"schedulingGates": []}, "spec.schedulingGates"),
        ({"schedulingGroup": {}}, "spec.schedulingGroup"),
        ({"shareProcessNamespace": True}, "spec.shareProcessNamespace"),
        ({"subdomain": "x"}, "spec.subdomain"),
        ({"nodeSelector": {"muster.dev/gpu-class": "a100"}}, "spec.nodeSelector.muster.dev/gpu-class"),
        (volume(hostPath={"path": "/"}), "spec.volumes[0].hostPath"),
        (volume(nfs={"server": "s", "path": "/"}), "spec.volumes[0].nfs"),
        (volume(projected={"sources": []}), "spec.volumes[0].projected"),
        (volume(csi={"driver": "nfs.csi.k8s.io"}), "spec.volumes[0].csi"),
        (volume(ephemeral={"volumeClaimTemplate": {}}), "spec.volumes[0].ephemeral"),
        ({"affinity": {"podAntiAffinity": {}}}, "spec.affinity.podAntiAffinity"),
        ({"affinity": {"podAffinity": {}}}, "spec.affinity.podAffinity"),
        ({"topologySpreadConstraints": []}, "spec.topologySpreadConstraints"),
        ({"schedulerName": "mine"}, "spec.schedulerName"),
        ({"dnsPolicy": "None"}, "spec.dnsPolicy"),
        (
            volume(persistentVolumeClaim={"claimName": "muster-store"}),
            "spec.volumes[0].persistentVolumeClaim.claimName",
        ),
        (volume(secret={"secretName": "muster-other-1"}), "spec.volumes[0].secret.secretName"),
        ({"volumes": [{"name": "muster-claim", "emptyDir": {}}]}, "spec.volumes[0].name"),
        ({"imagePullSecrets": [{"name": "muster-t-1"}]}, "spec.imagePullSecrets[0].name"),
        ({"containers": [{"name": "sidecar"}]}, "spec.containers[0].name"),
        (main(image="other"), "spec.containers[0].image"),
        (main(command=["sh"]), "spec.containers[0].command"),
        (main(args=[]), "spec.containers[0].args"),
        (main(securityContext={"privileged": True}), "spec.containers[0].securityContext"),
        (main(lifecycle={}), "spec.containers[0].lifecycle"),
        (main(terminationMessagePath="/x"), "spec.containers[0].terminationMessagePath"),
        (main(resources={"limits": {"memory": "1Gi"}}), "spec.containers[0].resources.limits.memory"),
        (main(resources={"requests": {"cpu": "1"}}), "spec.containers[0].resources.requests.cpu"),
        (
            main(resources={"requests": {"nvidia.com/gpu": "8"}}),
            "spec.containers[0].resources.requests.nvidia.com/gpu",
        ),
        (main(resources={"claims": []}), "spec.containers[0].resources.claims"),
        (main(env=[{"name": "MUSTER_RESTART", "value": "0"}]), "MUSTER_RESTART"),
        (
            main(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "muster-t-1", "key": "token"}}}]),
            "spec.containers[0].env[0].valueFrom.secretKeyRef.name",
        ),
        (
            main(envFrom=[{"secretRef": {"name": "muster-t-1"}}]),
            "spec.containers[0].envFrom[0].secretRef.name",
        ),
        (mount("/data", name="muster-claim"), "spec.containers[0].volumeMounts[0].name"),
        (mount("/"), "spec.containers[0].volumeMounts[0].mountPath"),
        (mount("/mnt"), "spec.containers[0].volumeMounts[0].mountPath"),
        (mount("/mnt/muster"), "spec.containers[0].volumeMounts[0].mountPath"),
        (mount("/mnt/muster/inputs/features/0/deep"), "spec.containers[0].volumeMounts[0].mountPath"),
        (mount("/muster//worker.pyz"), "spec.containers[0].volumeMounts[0].mountPath"),
        (mount("/data/../muster"), "spec.containers[0].volumeMounts[0].mountPath"),
        (mount("data"), "spec.containers[0].volumeMounts[0].mountPath"),
        (mount(None), "spec.containers[0].volumeMounts[0].mountPath"),
    ],
)
def test_what_reaches_for_what_is_ours_is_refused_by_its_path(spec: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as refused:
        merged(spec)
    assert path in str(refused.value)


@pytest.mark.parametrize(
    ("pod", "path"),
    [
        ({"status": {}}, "status"),
        ({"metadata": {"name": "x"}}, "metadata.name"),
        ({"metadata": {"namespace": "kube-system"}}, "metadata.namespace"),
        ({"metadata": {"ownerReferences": []}}, "metadata.ownerReferences"),
        ({"metadata": {"labels": {"muster.dev/job": "other"}}}, "metadata.labels.muster.dev/job"),
        (
            {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "q"}}},
            "metadata.labels.kueue.x-k8s.io/queue-name",
        ),
        ({"metadata": {"annotations": {"muster.dev/dag": "other"}}}, "metadata.annotations.muster.dev/dag"),
        (
            {"metadata": {"annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "zone"}}},
            "metadata.annotations.alpha.jobset.sigs.k8s.io/exclusive-topology",
        ),
        ({"metadata": {"labels": {"app": "muster-store"}}}, "metadata.labels.app"),
        ({"metadata": {"labels": {"seldon-app": "flights"}}}, "metadata.labels.seldon-app"),
        (
            {"metadata": {"labels": {"serving.kserve.io/inferenceservice": "flights"}}},
            "metadata.labels.serving.kserve.io/inferenceservice",
        ),
        ({"metadata": {"labels": {"team": 1}}}, "metadata.labels.team"),
        ({"metadata": []}, "metadata"),
    ],
)
def test_a_pods_place_and_marks_stay_ours(pod: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as refused:
        merged({}, **pod)
    assert f"pod override {path}: " in str(refused.value)


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": {}},
        {"containers": ["base"]},
        {"containers": [{}]},
        {"volumes": "all"},
        {"volumes": [{"name": 3}]},
        {"volumes": [{"name": "a", "secret": "x"}]},
        {"volumes": [{"name": "a", "persistentVolumeClaim": "muster-store"}]},
        {"tolerations": {}},
        {"nodeSelector": []},
        {"affinity": []},
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}},
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}},
        {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": "x"}]
                    }
                }
            }
        },
        {"imagePullSecrets": [{}]},
        main(env={}),
        main(env=[{"name": "A", "valueFrom": "x"}]),
        main(envFrom=["x"]),
        main(resources=[]),
        main(resources={"limits": []}),
        main(volumeMounts=[{}]),
        main(ports="80"),
    ],
)
def test_what_is_no_pod_is_a_spec_error_and_never_another(spec: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"pod override|environment variable"):
        merged(spec)
