from __future__ import annotations

from pathlib import Path

import pytest

from muster.backends.kubernetes.api.connection import connect
from muster.core.errors import SpecError

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: one
clusters:
- {name: first, cluster: {server: "https://10.77.0.1:6443", insecure-skip-tls-verify: true}}
- {name: second, cluster: {server: "https://10.77.0.2:6443", insecure-skip-tls-verify: true}}
users:
- {name: jo, user: {token: secret-token}}
contexts:
- {name: one, context: {cluster: first, user: jo}}
- {name: two, context: {cluster: second, user: jo}}
"""


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "cluster.kubeconfig"
    path.write_text(KUBECONFIG)
    return path


def test_a_file(kubeconfig: Path) -> None:
    access = connect(kubeconfig=kubeconfig)
    assert access.host == "https://10.77.0.1:6443"
    headers = access.headers()
    assert headers.pop("User-Agent").startswith("muster/")
    assert headers == {"Authorization": "Bearer secret-token"}


def test_a_context(kubeconfig: Path) -> None:
    assert connect(kubeconfig=kubeconfig, context="two").host == "https://10.77.0.2:6443"


def test_the_variable(kubeconfig: Path) -> None:
    assert connect(environment={"KUBECONFIG": str(kubeconfig)}).host == "https://10.77.0.1:6443"


def test_the_users_own(kubeconfig: Path) -> None:
    own = kubeconfig.parent / ".kube" / "config"
    own.parent.mkdir()
    own.write_text(KUBECONFIG)
    assert connect(environment={}).host == "https://10.77.0.1:6443"


@pytest.mark.parametrize(
    ("text", "context", "message"),
    [
        (KUBECONFIG, "three", r"context three cannot be used: .*three"),
        ("", None, r"cannot be used"),
        ("a: [", None, r"cannot be used: while parsing"),
    ],
    ids=["context", "empty", "yaml"],
)
def test_a_file_that_is_none(kubeconfig: Path, text: str, context: str | None, message: str) -> None:
    kubeconfig.write_text(text)
    with pytest.raises(SpecError, match=f"kubeconfig {kubeconfig}.*{message}"):
        connect(kubeconfig=kubeconfig, context=context)


def test_no_file(kubeconfig: Path) -> None:
    with pytest.raises(SpecError, match=r"gone cannot be used"):
        connect(kubeconfig=kubeconfig.with_name("gone"))


def test_no_cluster_at_all(kubeconfig: Path) -> None:
    with pytest.raises(
        SpecError, match=r"no cluster: there is no ~/.kube/config, KUBECONFIG is not set, and"
    ):
        connect(environment={})


def test_a_pod_without_an_account(kubeconfig: Path) -> None:
    env = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(
        SpecError, match=r"this pod's service account cannot be used: .*automountServiceAccountToken"
    ):
        connect(environment=env)
