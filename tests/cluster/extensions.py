"""JobSet and Kueue, as programs beside the control plane."""

from __future__ import annotations

import base64
import json
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster import kubectl
from tests.cluster.authority import Authority
from tests.cluster.daemons import Daemon
from tests.cluster.layout import API_PORT, CONTROL_ADDRESS, Layout
from tests.cluster.probes import answers
from tests.cluster.rendered import documents

_JOBSET_WEBHOOKS, _JOBSET_METRICS, _JOBSET_HEALTH = 9443, 8443, 8081
_KUEUE_WEBHOOKS, _KUEUE_METRICS, _KUEUE_HEALTH = 9444, 8444, 8083
_KUEUE_VISIBILITY = 8082
KSERVE_WEBHOOKS = 9445
_WEBHOOKS = {"jobset": _JOBSET_WEBHOOKS, "kueue": _KUEUE_WEBHOOKS, "kserve": KSERVE_WEBHOOKS, "traefik": 0}
Change = Callable[[dict[str, Any]], dict[str, Any]]

_ACCOUNT = "var/run/secrets/kubernetes.io/serviceaccount"


def prepare(layout: Layout) -> None:
    """Write the credentials and configurations of both."""
    authority = Authority(folder=layout.credentials)
    token = secrets.token_urlsafe(32)
    (layout.credentials / "tokens.csv").write_text(f'{token},kueue,kueue,"system:masters"\n')
    authority.kubeconfig("jobset", "jobset", "system:masters")
    issue_serving(layout, layout.root / "jobset" / "certs")
    (layout.root / "jobset" / "config.json").write_text(json.dumps(_jobset(layout)))
    _prepare_kueue(layout, authority.kubeconfig("kueue", "kueue", "system:masters"), token)


def apply_kinds(layout: Layout, module: str, *, change: Change = lambda found: found) -> None:
    """Bring in the kinds and webhooks of a program, and return when its kinds are served.

    :param change: what is to be other than the program brings it, of what is no kind.
    """
    authority = base64.b64encode((layout.credentials / "ca.crt").read_bytes()).decode()
    brought = documents(module, layout.programs, port=_WEBHOOKS[module], authority=authority)
    kinds = [one for one in brought if one["kind"] == "CustomResourceDefinition"]
    kubectl.apply(layout, kinds)
    names = [f"crd/{kind['metadata']['name']}" for kind in kinds]
    # just after their creation they have no condition at all, which `wait` refuses
    words = ("wait", "--for=condition=Established", "--timeout=20s", *names)
    kubectl.until(f"the kinds of {module} are established", lambda: bool(kubectl.ask(layout, *words)))
    kubectl.until(f"the kinds of {module} are served", lambda: _served(layout, kinds))
    kubectl.apply(layout, [change(one) for one in brought if one not in kinds])


def _served(layout: Layout, kinds: list[dict[str, Any]]) -> bool:
    """Whether discovery names them: a moment later than they are established, and managers look only once."""
    wanted: dict[str, set[str]] = {}
    for kind in kinds:
        spec = kind["spec"]
        for version in (each["name"] for each in spec["versions"] if each["served"]):
            wanted.setdefault(f"/apis/{spec['group']}/{version}", set()).add(spec["names"]["plural"])
    for path, names in wanted.items():
        found = json.loads(kubectl.ask(layout, "get", f"--raw={path}") or "{}")
        if names - {each["name"] for each in found.get("resources", ())}:
            return False
    return True


def jobset(layout: Layout) -> Daemon:
    """JobSet's manager."""
    return Daemon(
        name="jobset",
        command=(layout.programs / "jobset", f"--config={layout.root / 'jobset' / 'config.json'}"),
        environment={"KUBECONFIG": str(layout.credentials / "jobset.kubeconfig")},
        ready=answers(f"http://127.0.0.1:{_JOBSET_HEALTH}/readyz"),
    )


def kueue(layout: Layout) -> Daemon:
    """Kueue's manager, in a root of its own: it reads certificates and an account at fixed paths."""
    return Daemon(
        name="kueue",
        command=("chroot", layout.root / "kueue", "/kueue", "--config=/config.json"),
        environment={
            "KUBECONFIG": "/kubeconfig",
            "KUBERNETES_SERVICE_HOST": CONTROL_ADDRESS,
            "KUBERNETES_SERVICE_PORT": str(API_PORT),
        },
        ready=answers(f"http://127.0.0.1:{_KUEUE_HEALTH}/readyz"),
    )


def _prepare_kueue(layout: Layout, kubeconfig: Path, token: str) -> None:
    root = layout.root / "kueue"
    for folder in ("certs", "etc/kueue/metrics/certs", "visibility"):
        issue_serving(layout, root / folder)
    for folder in (_ACCOUNT, "tmp"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    shutil.copy(layout.credentials / "ca.crt", root / _ACCOUNT)
    (root / _ACCOUNT / "token").write_text(token)
    shutil.copy(kubeconfig, root / "kubeconfig")
    (root / "config.json").write_text(json.dumps(_kueue()))
    _link(layout.programs / "kueue", root / "kueue")


def _link(program: Path, name: Path) -> None:
    name.unlink(missing_ok=True)
    try:
        os.link(program.resolve(), name)
    except OSError:  # another file system
        shutil.copy(program, name)


def issue_serving(layout: Layout, folder: Path) -> None:
    """Put a server's certificate where a manager looks for it."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in Authority(folder=layout.credentials).issue("webhooks", "webhooks"):
        shutil.copy(path, folder / f"tls{path.suffix}")


def _jobset(layout: Layout) -> dict[str, Any]:
    certs = str(layout.root / "jobset" / "certs")
    return {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": "127.0.0.1", "port": _JOBSET_WEBHOOKS, "certDir": certs},
        "metrics": {"bindAddress": f"127.0.0.1:{_JOBSET_METRICS}", "certDir": certs},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{_JOBSET_HEALTH}"},
    }


def _kueue() -> dict[str, Any]:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": "127.0.0.1", "port": _KUEUE_WEBHOOKS, "certDir": "/certs"},
        "metrics": {"bindAddress": f"127.0.0.1:{_KUEUE_METRICS}"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{_KUEUE_HEALTH}"},
        "visibilityServer": {"bindAddress": "127.0.0.1", "bindPort": _KUEUE_VISIBILITY},
        "clientConnection": {"qps": 300, "burst": 500},
        "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset", "pod"]},
    }
