"""muster's backend on the test cluster, with the rights and the store that Airflow's worker would have."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import reaper, store
from tests.cluster.accounts import JOB, NAMESPACE
from tests.cluster.layout import Layout
from tests.cluster.scripted import CLAIM, connection

from muster.backends.kubernetes.backend import KubernetesBackend
from muster.backends.kubernetes.client import Client
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.local.deployments import LocalDeployments
from muster.core.job import SecretRef
from muster.core.settings import Settings
from muster.volumes.service.client import ServiceStore

SITE = ClusterSite(
    namespace=NAMESPACE,
    claim=CLAIM,
    folder=store.FOLDER,
    store_url=store.URL,
    image_prefix="localhost",
    queue="team-a",
    service_account=JOB,
)


@contextmanager
def backend(of: Layout, folder: Path) -> Iterator[KubernetesBackend]:
    """Deploy the store service and the reaper, and connect to them; all of it goes afterwards.

    :param folder: an empty one, for what is kept on this side.
    """
    store.deploy(of)
    reaper.deploy(of)
    service = ServiceStore(store.URL, token=store.operator_token(of), cache=folder / "cache")
    made = KubernetesBackend(
        Client(connection(of)),
        site=SITE,
        store=service,
        deployments=LocalDeployments(Settings(home=folder, cache=folder), service),
        resolve=_resolve,
    )
    try:
        yield made
    finally:
        made.close()
        reaper.remove(of)
        store.remove(of)


def _resolve(secret: SecretRef) -> str:
    return os.environ[secret.name]
