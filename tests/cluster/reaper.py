"""The reaper in the cluster, for the tests that lose nodes: it is not part of ``up``."""

from __future__ import annotations

from tests.cluster import furniture, kubectl
from tests.cluster.accounts import NAMESPACE
from tests.cluster.layout import Layout

_NAMESPACE = f"--namespace={NAMESPACE}"
_REPLICAS = "2"


def deploy(layout: Layout, *, seconds: float = 60) -> None:
    """Run the reaper, and return when all of it runs."""
    kubectl.apply(layout, _objects())
    kubectl.until("the reaper runs", lambda: _ready(layout) == _REPLICAS, seconds=seconds)


def remove(layout: Layout) -> None:
    """End it."""
    kubectl.delete(layout, _objects())


def said(layout: Layout) -> str:
    """Return what all of it has logged."""
    words = ("logs", "--selector=app=muster-reaper", "--tail=-1", "--ignore-errors", _NAMESPACE)
    return kubectl.ask(layout, *words)


def _objects() -> list[furniture.Document]:
    return furniture.objects("Deployment", name="muster-reaper")


def _ready(layout: Layout) -> str:
    query = "--output=jsonpath={.status.readyReplicas}"
    return kubectl.ask(layout, "get", "deployment", "muster-reaper", _NAMESPACE, query)
