"""muster's backend on the test cluster, with the rights and the store that Airflow's worker would have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import reaper, store
from tests.cluster.accounts import JOB, NAMESPACE
from tests.cluster.layout import Layout
from tests.cluster.scripted import CLAIM, connection
from tests.places import MadePlace

from muster.backends.base import Backend
from muster.backends.jobs.checks import from_environment
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.runner import KubernetesRunner
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.local.serving.platform import local_deployments
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
def backend(of: Layout, folder: Path) -> Iterator[Backend]:
    """Have the store service and the reaper in the cluster, and connect to them.

    :param folder: an empty one, for what is kept on this side.
    """
    store.deploy(of)
    reaper.deploy(of)
    made = connected(of, folder)
    try:
        yield made
    finally:
        made.close()


class WithoutKueue(Client):
    """Sees a cluster without Kueue: its scheduler keeps gangs together."""

    def served(self) -> frozenset[tuple[str, str]]:
        return frozenset(each for each in super().served() if "kueue.x-k8s.io" not in each[0])


def connected(
    of: Layout, folder: Path, *, site: ClusterSite = SITE, client: type[Client] = Client
) -> Backend:
    """Return a backend on the store service that is there.

    :param folder: for what is kept on this side.
    """
    service = ServiceStore(store.URL, token=store.operator_token(of), cache=folder / "cache")
    return on(service, client(connection(of)), folder, site=site)


def on(service: ServiceStore, client: Client, folder: Path, *, site: ClusterSite) -> Backend:
    """Return a backend. :param folder: for what is kept on this side."""
    runner = KubernetesRunner(client, site=site, store=service, resolve=from_environment)
    settings = Settings(home=folder, cache=folder)
    return Backend(MadePlace(service, runner, deployments=local_deployments(settings, service)))
