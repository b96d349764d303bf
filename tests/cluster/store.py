"""The store service in the cluster, for the tests that need one: it is not part of ``up``.

::

    store.deploy(layout)
    service = ServiceStore(store.URL, store.operator_token(layout))
    store.remove(layout)  # the claim keeps what was stored
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from tests.cluster import furniture, kubectl
from tests.cluster.accounts import NAMESPACE
from tests.cluster.layout import Layout

from muster.volumes.service.tokens import job_token as sign_for_job, operator_token as sign, read_keys

URL = "http://10.96.0.80"
FOLDER = "store"  # of the claim; a store is never a mount itself
_NAMESPACE = f"--namespace={NAMESPACE}"
_DAY_SECONDS = 86_400.0


def deploy(layout: Layout, *, folder: str = FOLDER, seconds: float = 60) -> None:
    """Run the service, and return when it answers. :param folder: of the claim, where its store is."""
    keys = _keys(layout)
    if not keys.exists():
        keys.touch(mode=0o600)
        keys.write_text(secrets.token_hex(32) + "\n")
    kubectl.apply(layout, [_secret(keys.read_text())])
    text = json.dumps(_objects()).replace(f'"--store=/claim/{FOLDER}"', f'"--store=/claim/{folder}"')
    kubectl.apply(layout, json.loads(text))
    words = ("rollout", "status", "deployment/muster-store", _NAMESPACE, f"--timeout={seconds:.0f}s")
    kubectl.run(layout, *words)


def remove(layout: Layout) -> None:
    """End the service."""
    kubectl.delete(layout, _objects())


def kill(layout: Layout) -> None:
    """Kill the service's pod at once; another one follows by itself."""
    words = ("pods", "--selector=app=muster-store", _NAMESPACE, "--grace-period=0", "--force")
    kubectl.run(layout, "delete", *words)


def is_ready(layout: Layout) -> bool:
    """Whether a service answers."""
    query = "--output=jsonpath={.status.readyReplicas}"
    return kubectl.ask(layout, "get", "deployment", "muster-store", _NAMESPACE, query) == "1"


def operator_token(layout: Layout) -> str:
    """Return a token that may do everything, for a day."""
    return sign(read_keys(_keys(layout)), lifetime_seconds=_DAY_SECONDS)


def job_token(layout: Layout, job_id: str, *, attempt: int) -> str:
    """Return a token of the pods of one attempt of a job, for a day."""
    return sign_for_job(read_keys(_keys(layout)), job_id, attempt=attempt, lifetime_seconds=_DAY_SECONDS)


def _objects() -> list[furniture.Document]:
    return furniture.objects("Deployment", "Service", name="muster-store")


def _secret(keys: str) -> dict[str, object]:
    metadata = {"name": "muster-store", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"keys": keys}}


def _keys(layout: Layout) -> Path:
    return layout.credentials / "store.keys"
