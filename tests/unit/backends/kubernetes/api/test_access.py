"""A kubeconfig that is read without the Kubernetes client opens the same doors as with it."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.authority import Authority
from tests.unit.backends.kubernetes.api_server import Answer, api_server

from muster.backends.kubernetes.api.access import Access, by_client, connect, plain_access
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import POD
from muster.core.errors import BackendError, SpecError

FOUND = {"kind": "Pod", "metadata": {"name": "a"}}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    made = Authority(folder=tmp_path_factory.mktemp("authority"))
    made.create()
    return made


def write(path: Path, *, cluster: dict[str, Any], user: dict[str, Any], **more: Any) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://10.77.0.1:6443", **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(json.dumps(config | more))
    return path


def data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def plain(path: Path, context: str | None = None, **environment: str) -> Access | None:
    return plain_access(path, context, environment)


@pytest.mark.parametrize("as_data", [True, False])
def test_an_authority_and_a_clients_certificate(authority: Authority, tmp_path: Path, as_data: bool) -> None:
    certificate, key = authority.issue("jo", "jo", "system:masters")
    files = {"client-certificate": certificate, "client-key": key}
    of_user = {f"{name}-data": data(path) for name, path in files.items()}
    of_cluster = {"certificate-authority-data": data(authority.certificate)}
    if not as_data:  # relative to the kubeconfig
        (tmp_path / "ca.crt").write_bytes(authority.certificate.read_bytes())
        of_user, of_cluster = (
            {name: str(path) for name, path in files.items()},
            {"certificate-authority": "ca.crt"},
        )
    with api_server(Answer(body=FOUND), certificate=authority.issue("server", "server")) as server:
        path = write(tmp_path / "config", cluster={"server": server.host, **of_cluster}, user=of_user)
        access = plain(path)
        assert access is not None
        assert Client(access).get(POD, "a", namespace="ml") == FOUND
    assert "Authorization" not in server.asked[0].headers


def test_a_token(authority: Authority, tmp_path: Path) -> None:
    with api_server(Answer(body=FOUND), certificate=authority.issue("server", "server")) as server:
        of_cluster = {"server": server.host, "certificate-authority-data": data(authority.certificate)}
        path = write(tmp_path / "config", cluster=of_cluster, user={"token": "secret-token"})
        found = [plain(path), by_client(str(path), None, {})]
        for access in found:
            assert access is not None
            assert Client(access).get(POD, "a", namespace="ml") == FOUND
    one, other = server.asked
    for name in ("Authorization", "User-Agent", "Accept"):
        assert one.headers[name] == other.headers[name]
    assert one.headers["Authorization"] == "Bearer secret-token"
    assert "secret-token" not in repr(found[0])


def test_a_server_of_another_authority_is_not_trusted(authority: Authority, tmp_path: Path) -> None:
    other = Authority(folder=tmp_path / "other")
    other.create()
    with api_server(Answer(body=FOUND), certificate=authority.issue("server", "server")) as server:
        for trusted in ({"certificate-authority-data": data(other.certificate)}, {}):
            certificate, key = authority.issue("jo", "jo")
            for user in (
                {"token": "t"},
                {"client-certificate": str(certificate), "client-key": str(key)},
            ):
                path = write(tmp_path / "config", cluster={"server": server.host, **trusted}, user=user)
                access = plain(path)
                assert access is not None
                with pytest.raises(BackendError, match="is not trusted"):
                    Client(access).get(POD, "a", namespace="ml")
    assert not server.asked


def test_a_server_that_has_another_name(authority: Authority, tmp_path: Path) -> None:
    with api_server(Answer(body=FOUND), certificate=authority.issue("named", "server")) as server:
        of_cluster = {"server": server.host, "certificate-authority-data": data(authority.certificate)}
        path = write(
            tmp_path / "config",
            cluster={**of_cluster, "tls-server-name": "elsewhere"},
            user={"token": "t"},
        )
        access = plain(path)
        assert access is not None
        with pytest.raises(BackendError, match=r"is not trusted .*elsewhere"):
            Client(access).get(POD, "a", namespace="ml")


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({}, {"exec": {"command": "login"}}),
        ({}, {"tokenFile": "token"}),
        ({}, {"username": "jo", "password": "secret"}),
        ({"proxy-url": "http://proxy"}, {"token": "t"}),
        ({"certificate-authority": "gone.crt"}, {"token": "t"}),
        ({"certificate-authority-data": "!"}, {"token": "t"}),
        ({"server": "10.77.0.1:6443"}, {"token": "t"}),
    ],
    ids=["login program", "token file", "password", "proxy", "no file", "no data", "no scheme"],
)
def test_what_is_left_to_the_kubernetes_client(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any]
) -> None:
    assert plain(write(tmp_path / "config", cluster=cluster, user=user)) is None


def test_a_context_that_is_not_there_a_proxy_and_several_files(tmp_path: Path) -> None:
    path = write(tmp_path / "config", cluster={}, user={"token": "t"})
    assert plain(path) is not None
    assert plain(path, "two") is None
    assert plain(path, HTTPS_PROXY="http://proxy") is None
    assert plain(Path(f"{path}:{path}")) is None
    assert plain(write(path, cluster={}, user={}, contexts=None)) is None


def test_it_costs_no_kubernetes_client(tmp_path: Path) -> None:
    write(tmp_path / "config", cluster={}, user={"token": "t"})
    program = (
        "import sys; from muster.backends.kubernetes.api.access import connect; "
        "from muster.backends.kubernetes.state.capacity import ClusterCapacity; "
        f"connect(kubeconfig={str(tmp_path / 'config')!r}, environment={{}}); "
        "assert 'kubernetes' not in sys.modules and 'airflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


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
