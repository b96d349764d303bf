"""Service accounts of the jobs' namespace, as who is outside the cluster uses them."""

from __future__ import annotations

from pathlib import Path

from tests.cluster import kubectl
from tests.cluster.authority import Authority
from tests.cluster.layout import Layout

NAMESPACE = "muster-jobs"
OPERATOR = "muster-operator"
REAPER = "muster-reaper"
JOB = "muster-job"
STORE = "muster-store"


def token(layout: Layout, account: str) -> str:
    """Return a token of an account, good for a day."""
    words = ("create", "token", account, f"--namespace={NAMESPACE}", "--duration=24h")
    return kubectl.run(layout, *words).strip()


def kubeconfig(layout: Layout, account: str) -> Path:
    """Write the kubeconfig of an account, and return it."""
    authority = Authority(folder=layout.credentials)
    return authority.write_kubeconfig(account, {"token": token(layout, account)}, namespace=NAMESPACE)
