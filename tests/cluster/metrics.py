"""The metrics server, which autoscalers ask how much pods take: there only while a test wants it.

::

    with metrics.served(layout):  # some seconds
        ...  # an autoscaler looks every 15 s, at figures that are 10 s old at most
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import daemons, kubectl
from tests.cluster.authority import Authority
from tests.cluster.daemons import Daemon
from tests.cluster.layout import Layout
from tests.cluster.probes import answers

_NAME, _PORT = "metrics-server", 8447  # the port that the manifest names
_MANIFEST = Path(__file__).with_name("manifests") / "metrics.yaml"
_SERVICE = "apiservice/v1beta1.metrics.k8s.io"


@contextmanager
def served(of: Layout) -> Iterator[None]:
    """Have it in a cluster that is up, and have autoscalers be answered.

    :raises BackendError: it does not start, or knows of no pod in time.
    """
    kubeconfig = Authority(folder=of.credentials).kubeconfig(_NAME, _NAME, "system:masters")
    one = metrics_server(of, kubeconfig)
    try:
        daemons.start(of, one)
        kubectl.run(of, "apply", "--server-side", f"--filename={_MANIFEST}")
        daemons.wait(of, one)
        kubectl.run(of, "wait", _SERVICE, "--for=condition=Available", "--timeout=60s")
        yield
    finally:
        remove(of)


def remove(of: Layout) -> None:
    """End it, also where a test was killed that had it: the API must name no server that is not there."""
    kubectl.run(of, "delete", "--ignore-not-found", "--wait", f"--filename={_MANIFEST}")
    daemons.stop(of, _NAME)


def metrics_server(of: Layout, kubeconfig: Path) -> Daemon:
    """The program."""
    return Daemon(
        name=_NAME,
        command=(
            of.programs / _NAME,
            f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={_PORT}",
            f"--cert-dir={of.root / _NAME}",
            "--kubelet-insecure-tls",
            "--kubelet-preferred-address-types=InternalIP",
            "--metric-resolution=10s",  # the least that it takes
            "--kubelet-request-timeout=5s",  # which it wants below that
        ),
        ready=answers(f"https://127.0.0.1:{_PORT}/readyz"),
    )
