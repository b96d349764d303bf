"""The control plane: etcd, API server, controllers, scheduler and DNS."""

from __future__ import annotations

from tests.cluster.authority import Authority
from tests.cluster.daemons import Daemon
from tests.cluster.layout import API_PORT, API_URL, CONTROL_ADDRESS, SERVICE_RANGE, Layout
from tests.cluster.probes import answers

NODE_GRACE_SECONDS = 20  # until a node that is not heard of counts as lost
_ETCD = "http://127.0.0.1:2379"
_ETCD_PEERS = "http://127.0.0.1:2380"
_GATES = "--feature-gates=GenericWorkload=true"  # the in-tree PodGroup
_DNS_READY = "127.0.0.1:8181"
_COREFILE = """.:53 {{
  bind {address}
  ready {ready}
  errors
  kubernetes cluster.local in-addr.arpa {{
    kubeconfig {kubeconfig}
    pods insecure
    ttl 1
  }}
}}
"""  # no cache: its negative answers would delay the rendezvous of a gang


def prepare(layout: Layout) -> None:
    """Write every credential and file that the programs read."""
    authority = Authority(folder=layout.credentials)
    authority.create()
    authority.issue("apiserver", "kube-apiserver")
    authority.issue("apiserver-kubelet", "kube-apiserver", "system:masters")
    authority.issue("front-proxy", "front-proxy")
    authority.kubeconfig("admin", "admin", "system:masters")
    authority.kubeconfig("controllers", "system:kube-controller-manager")
    authority.kubeconfig("scheduler", "system:kube-scheduler")
    authority.kubeconfig("coredns", "coredns", "system:masters")
    authority.kubeconfig("proxy", "system:kube-proxy")
    (layout.root / "Corefile").write_text(
        _COREFILE.format(
            address=CONTROL_ADDRESS, ready=_DNS_READY, kubeconfig=layout.credentials / "coredns.kubeconfig"
        )
    )


def etcd(layout: Layout) -> Daemon:
    """The store of the API server, of the version that this Kubernetes is released with."""
    return Daemon(
        name="etcd",
        command=(
            layout.programs / "etcd",
            "--name=default",
            f"--data-dir={layout.root / 'etcd'}",
            f"--listen-client-urls={_ETCD}",
            f"--advertise-client-urls={_ETCD}",
            f"--listen-peer-urls={_ETCD_PEERS}",
            f"--initial-advertise-peer-urls={_ETCD_PEERS}",
            f"--initial-cluster=default={_ETCD_PEERS}",
            "--logger=zap",
            "--log-level=warn",
        ),
        ready=answers(f"{_ETCD}/health"),
    )


def api_server(layout: Layout) -> Daemon:
    """The API server, whose defaults stand, those of tolerations too."""
    own = layout.credentials
    return Daemon(
        name="kube-apiserver",
        command=(
            layout.programs / "kube-apiserver",
            f"--etcd-servers={_ETCD}",
            f"--bind-address={CONTROL_ADDRESS}",
            f"--advertise-address={CONTROL_ADDRESS}",
            f"--secure-port={API_PORT}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--endpoint-reconciler-type=lease",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            _GATES,
            "--runtime-config=scheduling.k8s.io/v1beta1=true",
            "--kubelet-preferred-address-types=InternalIP",
            f"--kubelet-client-certificate={own / 'apiserver-kubelet.crt'}",
            f"--kubelet-client-key={own / 'apiserver-kubelet.key'}",
            f"--client-ca-file={own / 'ca.crt'}",
            f"--token-auth-file={own / 'tokens.csv'}",
            f"--tls-cert-file={own / 'apiserver.crt'}",
            f"--tls-private-key-file={own / 'apiserver.key'}",
            f"--service-account-key-file={own / 'accounts.pub'}",
            f"--service-account-signing-key-file={own / 'accounts.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--requestheader-client-ca-file={own / 'ca.crt'}",
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={own / 'front-proxy.crt'}",
            f"--proxy-client-key-file={own / 'front-proxy.key'}",
        ),
        ready=answers(f"{API_URL}/readyz", authority=own / "ca.crt"),
    )


def controllers(layout: Layout) -> Daemon:
    """The controllers; a node counts as lost after 20 s without a sign of life."""
    own = layout.credentials
    kubeconfig = own / "controllers.kubeconfig"
    return Daemon(
        name="kube-controller-manager",
        command=(
            layout.programs / "kube-controller-manager",
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={own / 'accounts.key'}",
            f"--root-ca-file={own / 'ca.crt'}",
            f"--cluster-signing-cert-file={own / 'ca.crt'}",
            f"--cluster-signing-key-file={own / 'ca.key'}",
            f"--node-monitor-grace-period={NODE_GRACE_SECONDS}s",
            "--node-monitor-period=2s",
            _GATES,
        ),
        ready=answers("https://127.0.0.1:10257/healthz"),
    )


def scheduler(layout: Layout) -> Daemon:
    """The scheduler."""
    kubeconfig = layout.credentials / "scheduler.kubeconfig"
    return Daemon(
        name="kube-scheduler",
        command=(
            layout.programs / "kube-scheduler",
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            "--leader-elect=false",
            _GATES,
        ),
        ready=answers("https://127.0.0.1:10259/healthz"),
    )


def dns(layout: Layout) -> Daemon:
    """CoreDNS, which the pods ask."""
    return Daemon(
        name="coredns",
        command=(layout.programs / "coredns", "-conf", layout.root / "Corefile"),
        ready=answers(f"http://{_DNS_READY}/ready"),
    )
