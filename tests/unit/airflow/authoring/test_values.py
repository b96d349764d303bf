"""A pod override as authors write it: as cncf.kubernetes' users know it, or as a mapping; refused while a Dag is parsed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from muster.airflow.authoring.values import check_pod, read_pod
from muster.core.errors import SpecError

WRITTEN = {
    "metadata": {"labels": {"cost-centre": "7"}},
    "spec": {
        "containers": [{"name": "base", "env": [{"name": "NCCL_DEBUG", "value": "{{ params.debug }}"}]}],
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
    },
}


def test_a_v1pod_becomes_what_the_api_calls_it() -> None:
    from kubernetes import client as k8s

    pod = k8s.V1Pod(
        metadata=k8s.V1ObjectMeta(labels={"cost-centre": "7"}),
        spec=k8s.V1PodSpec(
            containers=[
                k8s.V1Container(
                    name="base", env=[k8s.V1EnvVar(name="NCCL_DEBUG", value="{{ params.debug }}")]
                )
            ],
            node_selector={"zone": "a"},
            tolerations=[k8s.V1Toleration(key="spot", operator="Exists")],
        ),
    )
    assert read_pod(pod) == WRITTEN
    assert read_pod(WRITTEN) == WRITTEN


def test_none_is_none() -> None:
    assert read_pod(None) == {}
    check_pod({})


@pytest.mark.parametrize("given", ["spec", 7, [WRITTEN], ()])
def test_what_is_no_pod(given: Any) -> None:
    with pytest.raises(SpecError, match="expected a V1Pod"):
        read_pod(given)


def test_a_part_of_a_pod_is_no_pod() -> None:
    from kubernetes import client as k8s

    with pytest.raises(SpecError, match="expected a V1Pod"):
        read_pod(k8s.V1PodSpec(containers=[]))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"serviceAccountName": "admin"}, r"spec\.serviceAccountName: not to be set"),
        ({"securityContext": {"runAsUser": 0}}, r"spec\.securityContext: not to be set"),
        ({"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}, r"spec\.volumes\[0\]\.hostPath"),
        ({"containers": [{"name": "sidecar", "image": "x"}]}, r"'sidecar' is not 'base'"),
        ({"containers": [{"name": "base", "volumeMounts": [{"name": "x", "mountPath": "/muster"}]}]}, "hide each"),
        ({"nodeSelector": ["a"]}, r"spec\.nodeSelector: need a mapping"),
    ],
)  # fmt: skip
def test_what_no_cluster_takes_is_refused_where_it_is_written(spec: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        check_pod({"spec": spec})


def test_what_a_run_will_fill_in_waits_for_it() -> None:
    check_pod({"spec": {"serviceAccountName": "{{ params.account }}"}})


@pytest.mark.slow
def test_a_dag_that_names_no_class_of_kubernetes_does_not_import_it() -> None:
    code = (
        "import sys; from muster.airflow.authoring.values import check_pod, read_pod;"
        "check_pod(read_pod({'spec': {'nodeSelector': {'zone': 'a'}}})); assert 'kubernetes' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
