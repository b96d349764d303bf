"""The reaper in the cluster, for the tests that lose nodes: it is not part of ``up``."""

from __future__ import annotations

from pathlib import Path

from tests.cluster import kubectl
from tests.cluster.accounts import NAMESPACE
from tests.cluster.layout import Layout

_NAMESPACE = f"--namespace={NAMESPACE}"
_MANIFEST = Path(__file__).with_name("manifests") / "reaper.yaml"
_REPLICAS = "2"


def deploy(layout: Layout, *, seconds: float = 60) -> None:
    """Run the reaper, and return when all of it runs."""
    kubectl.run(layout, "apply", "--server-side", f"--filename={_MANIFEST}")
    kubectl.until("the reaper runs", lambda: _ready(layout) == _REPLICAS, seconds=seconds)


def remove(layout: Layout) -> None:
    """End it."""
    kubectl.run(layout, "delete", "--wait", "--ignore-not-found", f"--filename={_MANIFEST}")


def said(layout: Layout) -> str:
    """Return what all of it has logged."""
    words = ("logs", "--selector=app=muster-reaper", "--tail=-1", "--ignore-errors", _NAMESPACE)
    return kubectl.ask(layout, *words)


def _ready(layout: Layout) -> str:
    query = "--output=jsonpath={.status.readyReplicas}"
    return kubectl.ask(layout, "get", "deployment", "muster-reaper", _NAMESPACE, query)
