"""What serves models in the cluster: KServe in Standard mode, and Traefik as the Gateway. Not part of ``up``.

::

    serving.up(layout)  # some 10 s
    daemons.stop(layout, "traefik")  # no user is served
    serving.start(layout, "traefik")

Both run beside the control plane. The Gateway answers at :data:`GATEWAY_URL`, and does what it is told within
a tenth of a second and what its controller needs; the programs go with the cluster.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster import daemons, environments, extensions, images, kubectl, programs, rendered
from tests.cluster.authority import Authority
from tests.cluster.daemons import Daemon
from tests.cluster.layout import API_URL, CONTROL_ADDRESS, NODES, Layout
from tests.cluster.probes import answers
from tests.packages import installed
from tests.serving.kinds import KINDS, python_of

from muster.core.errors import BackendError
from muster.core.locks import locked

GATEWAY = "gateways/public"
GATEWAY_SECONDS = 0.6  # Traefik collects changes for a tenth of a second
PORT = 8000
GATEWAY_URL = f"http://{CONTROL_ADDRESS}:{PORT}"
_HEALTH, _METRICS, _TRAEFIK = 8086, 8446, 8088
GATEWAY_METRICS = f"http://127.0.0.1:{_TRAEFIK}/metrics"
_MANIFESTS = Path(__file__).with_name("manifests")
_CONFIG = "inferenceservice-config"
_NAMES = ("kserve", "traefik")
_TESTS = (
    "test_deployments.py",
    "test_bad_revisions.py",
    "test_grpc.py",
    "test_python_models.py",
    "test_requests.py",
    "test_flights.py",
    "test_flights_of_the_chart.py",
    "test_releases.py",
    "test_installing.py",
    "test_backup.py",
    "test_keys.py",
    "test_upgrade.py",
    "test_seldon.py",
    "test_streams.py",
    "test_kinds.py",
)
_TRITON = Path(__file__).parents[1] / "serving" / "triton" / "requirements.txt"


def build() -> None:
    """Build what the cache lacks for it: three programs, 10 minutes, the model servers' environments, and a client's packages."""
    made = programs.build(programs=(*programs.PROGRAMS, *programs.SERVING))
    for name in _NAMES:  # inside a cluster, where two may come up at once, nothing can be had
        rendered.render(name, made)
    environments.build(names=environments.SERVING)
    installed(_TRITON)


def build_kinds() -> None:
    """Build the environments of the models in ``test_kinds.py``, of which Hugging Face's has torch."""
    for kind in KINDS:
        python_of(kind.image)


def kinds_are_asked_for(words: Sequence[str]) -> bool:
    """Whether that test, which is nightly, is among those that pytest is told to run."""
    return is_asked_for(words, tests=("test_kinds.py",)) and not any("not nightly" in word for word in words)


def is_asked_for(words: Sequence[str], tests: Sequence[str] = _TESTS) -> bool:
    """Whether one of these tests is among those that pytest is told to run: all of them, or some files.

    :param tests: those that need what :func:`up` brings up, unless they are given.
    """
    paths = [Path(word.partition("::")[0]) for word in words]
    named = [path for path in paths if path.exists()]
    files = [Path(__file__).with_name(name) for name in tests]
    return not named or any(file.resolve().is_relative_to(path.resolve()) for file in files for path in named)


def up(layout: Layout) -> None:
    """Have it in a cluster that is up, also where another process brings it up at the same time.

    :raises BackendError: it was not built, and nothing can be inside a cluster, which has no way out.
    """
    if not all((layout.programs / name).exists() for name in _NAMES):
        raise BackendError(
            "KServe and Traefik are not built: `python -m tests.cluster build --serving` first"
        )
    with locked(layout.root.with_name(f".{layout.root.name}.serving.lock")):
        if not all(daemons.running(layout, name) for name in _NAMES):
            _bring_up(layout)


def was_up(layout: Layout) -> bool:
    """Whether it is in a cluster, though a test that was killed may have stopped one of its programs."""
    return _token(layout).exists()


def start(layout: Layout, name: str) -> None:
    """Start one of the two, and return when it works."""
    one = {"kserve": kserve, "traefik": traefik}[name](layout)
    daemons.start(layout, one)
    daemons.wait(layout, one)


def kserve(layout: Layout) -> Daemon:
    """KServe's manager."""
    return Daemon(
        name="kserve",
        command=(
            layout.programs / "kserve",
            f"--metrics-addr=127.0.0.1:{_METRICS}",
            f"--webhook-port={extensions.KSERVE_WEBHOOKS}",
            f"--health-probe-addr=127.0.0.1:{_HEALTH}",
        ),
        environment={
            "KUBECONFIG": str(layout.credentials / "kserve.kubeconfig"),
            "POD_NAMESPACE": "kserve",
            "TMPDIR": str(layout.root / "kserve"),  # below it are its certificates
        },
        ready=answers(f"http://127.0.0.1:{_HEALTH}/readyz"),
    )


def traefik(layout: Layout) -> Daemon:
    """The Gateway."""
    kubernetes = "--providers.kubernetesgateway"
    return Daemon(
        name="traefik",
        command=(
            layout.programs / "traefik",
            f"--entrypoints.web.address=:{PORT}",
            f"--entrypoints.traefik.address=127.0.0.1:{_TRAEFIK}",
            "--ping=true",
            "--metrics.prometheus=true",
            "--metrics.prometheus.addserviceslabels=true",
            f"{kubernetes}=true",
            f"{kubernetes}.endpoint={API_URL}",
            f"{kubernetes}.token={_token(layout)}",
            f"{kubernetes}.certauthfilepath={layout.credentials / 'ca.crt'}",
            "--providers.providersthrottleduration=100ms",
            "--global.checknewversion=false",
            "--global.sendanonymoususage=false",
        ),
        ready=answers(f"http://127.0.0.1:{_TRAEFIK}/ping"),
    )


def _bring_up(layout: Layout) -> None:
    authority = Authority(folder=layout.credentials)
    authority.kubeconfig("kserve", "kserve", "system:masters")
    extensions.issue_serving(layout, layout.root / "kserve" / "k8s-webhook-server" / "serving-certs")
    images.write_archive(layout)
    for node in NODES:  # the server's image may be younger than the cluster
        images.import_all(layout, node)
    _apply(layout, "serving")
    for module in _NAMES:
        extensions.apply_kinds(layout, module, change=_configured)
    words = ("create", "token", "traefik", "--namespace=gateways", "--duration=24h")
    _token(layout).write_text(kubectl.run(layout, *words).strip())
    for name in _NAMES:
        start(layout, name)
    _apply(layout, "gateway")
    words = ("wait", "gateway/public", "--namespace=gateways", "--for=condition=Programmed", "--timeout=30s")
    kubectl.run(layout, *words)


def _token(layout: Layout) -> Path:
    return layout.credentials / "traefik.token"


def _apply(layout: Layout, name: str) -> None:
    kubectl.run(layout, "apply", "--server-side", f"--filename={_MANIFESTS / name}.yaml")


def _configured(found: dict[str, Any]) -> dict[str, Any]:
    """KServe's own settings, but for Deployments instead of Knative, and no routes of its own."""
    if found["kind"] != "ConfigMap" or found["metadata"]["name"] != _CONFIG:
        return found
    data = {name: text for name, text in found["data"].items() if name != "_example"}
    data["deploy"] = json.dumps({"defaultDeploymentMode": "Standard"})
    data["ingress"] = json.dumps(json.loads(data["ingress"]) | {"disableIngressCreation": True})
    return {**found, "data": data}
