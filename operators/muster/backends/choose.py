"""Chooses where jobs run and where volumes live: settings in, one implementation of each out."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING

from muster.backends.base import PATIENCE_SECONDS, Backend
from muster.backends.capacity import Capacity
from muster.core.errors import SpecError
from muster.core.extras import need
from muster.core.settings import Settings
from muster.volumes.protocols import LocalStore

if TYPE_CHECKING:
    from pathlib import Path

    from muster.backends.jobs.checks import Resolve
    from muster.backends.kubernetes.api.access import Access
    from muster.backends.kubernetes.api.client import Client
    from muster.backends.kubernetes.backend import KubernetesBackend
    from muster.backends.kubernetes.cluster_file import ClusterSettings
    from muster.backends.kubernetes.site import ClusterSite
    from muster.backends.releases.deployments import Deployments
    from muster.volumes.service.client import ServiceStore

LOOK_SECONDS = 5.0


def choose_backend(
    settings: Settings | None = None,
    *,
    resolve: Resolve | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
) -> Backend:
    """Return where jobs run under `settings`, those of this process's environment if none are given.

    Nothing is asked over the network, and nothing is started.

    :param resolve: variables of this process if it is not given.
    :param patience_seconds: how long a cluster, or its store, may be away before a call fails.
    :raises SpecError: a setting is wrong, or jobs cannot run on this operating system.
    """
    settings = settings or Settings.load()
    if settings.cluster is not None:
        return cluster_backend(
            *_cluster(settings.cluster),
            settings=settings,
            resolve=resolve,
            patience_seconds=patience_seconds,
        )
    _check_system()
    from muster.backends.jobs.checks import from_environment
    from muster.backends.local.backend import LocalBackend

    return LocalBackend(settings, resolve=resolve or from_environment)


@contextmanager
def open_deployments(
    settings: Settings, *, patience_seconds: float = PATIENCE_SECONDS
) -> Iterator[Deployments]:
    """Yield who keeps the deployments under `settings`, without the rest of a backend: see :func:`choose_backend`.

    That takes half as long, for what a person asks of them needs neither jobs nor, mostly, a store.
    """
    if settings.cluster is None:
        _check_system()
        from muster.backends.local.serving.platform import local_deployments
        from muster.volumes.folder import FolderStore

        settings.make_home()
        yield local_deployments(settings, FolderStore(settings.store))
        return
    from muster.backends.kubernetes.api.client import Client

    cluster, access = _cluster(settings.cluster)
    client = Client(access, patience_seconds=patience_seconds)
    with ExitStack() as opened:

        @cache
        def store() -> ServiceStore:
            return opened.enter_context(service_store(cluster, settings, patience_seconds=patience_seconds))

        yield _deployments(client, cluster.site, store, settings)


@contextmanager
def expecting_jobs(settings: Settings) -> Iterator[None]:
    """Have the jobs that this process and its forks start in the block begin sooner, where they run on this machine."""
    if settings.cluster is not None:
        yield
        return
    from muster.backends.local.nursery import open_nursery

    with open_nursery(settings.home):
        yield


def _check_system() -> None:
    if sys.platform != "linux":
        raise SpecError(
            f"muster runs jobs on Linux, this is {sys.platform}: use WSL2 on Windows, "
            "a Linux virtual machine elsewhere, or a cluster"
        )


def choose_store(
    settings: Settings | None = None, *, patience_seconds: float = PATIENCE_SECONDS
) -> LocalStore:
    """Return where volumes live under `settings`; see :func:`choose_backend`.

    :param patience_seconds: how long a store service may be away before a call fails.
    """
    settings = settings or Settings.load()
    if settings.cluster is not None:
        from muster.backends.kubernetes.cluster_file import read_file

        written = read_file(settings.cluster).settings
        return service_store(written, settings, patience_seconds=patience_seconds)
    from muster.backends.stores import folder_store

    settings.make_home()
    return folder_store(settings)


def choose_capacity(settings: Settings | None = None) -> Capacity:
    """Return who can say what there is under `settings`, who has it and who waits; see :func:`choose_backend`.

    An API server that is away is not waited for as long as by a job.
    """
    settings = settings or Settings.load()
    if settings.cluster is not None:
        return cluster_capacity(*_cluster(settings.cluster))
    from muster.backends.local.capacity import LocalCapacity

    return LocalCapacity(settings)


def _cluster(path: Path) -> tuple[ClusterSettings, Access]:
    """Return what a file of settings says, and the access that it names."""
    need("kubernetes", what="a cluster")
    from muster.backends.kubernetes.api.connection import connect
    from muster.backends.kubernetes.cluster_file import read_file

    file = read_file(path)
    return file.settings, connect(kubeconfig=file.kubeconfig, context=file.context)


def cluster_capacity(cluster: ClusterSettings, access: Access) -> Capacity:
    """Return who can say what a cluster has, who has it and who waits. :param access: to the cluster."""
    from muster.backends.kubernetes.api.client import Client
    from muster.backends.kubernetes.state.capacity import ClusterCapacity

    client = Client(access, patience_seconds=LOOK_SECONDS)
    site = cluster.site
    return ClusterCapacity(client, namespace=site.namespace, resource=site.gpu_resource, queue=site.queue)


def cluster_backend(
    cluster: ClusterSettings,
    access: Access,
    *,
    settings: Settings,
    resolve: Resolve | None = None,
    patience_seconds: float = PATIENCE_SECONDS,
) -> KubernetesBackend:
    """Return the backend of a cluster. What it deploys is served there if the site says so, else on this machine.

    :param access: to the cluster.
    """
    from muster.backends.jobs.checks import from_environment
    from muster.backends.kubernetes.api.client import Client
    from muster.backends.kubernetes.backend import KubernetesBackend

    store = service_store(cluster, settings, patience_seconds=patience_seconds)
    client = Client(access, patience_seconds=patience_seconds)
    return KubernetesBackend(
        client,
        site=cluster.site,
        store=store,
        deployments=_deployments(client, cluster.site, lambda: store, settings),
        resolve=resolve or from_environment,
    )


def _deployments(
    client: Client, site: ClusterSite, store: Callable[[], ServiceStore], settings: Settings
) -> Deployments:
    if site.serving is None:
        from muster.backends.local.serving.platform import local_deployments

        return local_deployments(settings, store(), copies=True)
    from muster.backends.kubernetes.serving.platform import cluster_deployments

    def open_spool(deployment: str) -> None:
        from muster.volumes.service.spools import ServiceSpools

        ServiceSpools(store().connection).open(deployment)

    return cluster_deployments(client, site=site, store=store, open_spool=open_spool)


def service_store(
    cluster: ClusterSettings, settings: Settings, *, patience_seconds: float = PATIENCE_SECONDS
) -> ServiceStore:
    """Return the store of a cluster; what is read of it is kept in the cache, each store's apart.

    :param patience_seconds: how long the store service may be away before a call fails.
    """
    from muster.volumes.service.client import ServiceStore

    kind: Callable[..., ServiceStore] = ServiceStore
    if settings.mirror:
        from muster.backends.stores import mirrored_service

        kind = mirrored_service(ServiceStore, settings)
    place = hashlib.sha256(f"{cluster.store_url} {cluster.site.namespace}".encode()).hexdigest()[:16]
    return kind(
        cluster.store_url,
        token=cluster.token,
        cache=settings.cache / "stores" / place,
        patience_seconds=patience_seconds,
    )
