"""The backend of a cluster: jobs as JobSets and Jobs, a store behind a service."""

from __future__ import annotations

from muster.backends.base import Backend
from muster.backends.jobs.checks import Resolve
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.runner import KubernetesRunner
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.releases.deployments import Deployments
from muster.volumes.service.client import ServiceStore


class KubernetesBackend(Backend):
    """Where jobs run on one namespace of a cluster; see :class:`muster.backends.base.Backend`.

    Nothing is asked of the cluster before the first call. It may be shared between threads, and follows
    the cluster with one watch a kind, however many jobs are asked about, from the first that is watched.

    :param deployments: where what is deployed is served: not on the cluster.
    :param resolve: returns the values of secrets that this process has, KeyError for others.
    """

    def __init__(
        self,
        client: Client,
        *,
        site: ClusterSite,
        store: ServiceStore,
        deployments: Deployments,
        resolve: Resolve,
    ) -> None:
        runner = KubernetesRunner(client, site=site, store=store, resolve=resolve)
        super().__init__(store, runner, lambda: deployments)
