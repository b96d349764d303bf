"""One namespace of a cluster: jobs are JobSets and Jobs, the store is behind a service; see :class:`muster.backends.place.Place`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

from muster.backends.base import LOOK_SECONDS
from muster.backends.jobs.checks import Resolve
from muster.backends.stores import service_store
from muster.core.errors import SpecError
from muster.core.settings import Settings

if TYPE_CHECKING:
    from muster.backends.kubernetes.api.access import Access
    from muster.backends.kubernetes.api.client import Client
    from muster.backends.kubernetes.cluster_file import ClusterSettings
    from muster.backends.kubernetes.runner import KubernetesRunner
    from muster.backends.kubernetes.state.capacity import ClusterCapacity
    from muster.backends.releases.deployments import Deployments
    from muster.core.check import Check
    from muster.volumes.base import Version
    from muster.volumes.service.client import ServiceStore


class NamedCluster(NamedTuple):
    """A cluster, and how to reach its API server. :ivar access: reads the credentials; the store needs none of them."""

    written: ClusterSettings
    access: Callable[[], Access]


@dataclass(eq=False)
class ClusterPlace:
    """A cluster. One watch a kind follows it, however many jobs are asked about, from the first that is watched.

    :param find: finds the cluster; called once.
    :param serve_here: keeps deployments on this machine, where the cluster has no platform for them.
    :param resolve: returns the values of secrets that this process has, KeyError for others.
    :param patience_seconds: how long the cluster, or its store, may be away before a call fails.
    """

    name, here, package, used = "cluster", False, "muster.backends.kubernetes", True

    find: Callable[[], NamedCluster]
    _: KW_ONLY
    settings: Settings
    serve_here: Callable[[ServiceStore], Deployments]
    resolve: Resolve
    patience_seconds: float

    @cached_property
    def _named(self) -> NamedCluster:
        return self.find()

    @property
    def written(self) -> ClusterSettings:
        """What its file, or the connection, says of it."""
        return self._named.written

    @cached_property
    def client(self) -> Client:
        """What asks its API server."""
        from muster.backends.kubernetes.api.client import Client

        return Client(self._named.access(), patience_seconds=self.patience_seconds)

    @cached_property
    def store(self) -> ServiceStore:
        """The store behind its service; what is read of it is kept in the cache, each store's apart."""
        url, token = self.written.store_url, self.written.renewed or self.written.token
        name = hashlib.sha256(f"{url} {self.written.site.namespace}".encode()).hexdigest()[:16]
        cache = self.settings.cache / "stores" / name
        return service_store(
            url, self.settings, token=token, cache=cache, patience_seconds=self.patience_seconds
        )

    @cached_property
    def runner(self) -> KubernetesRunner:
        """What runs jobs."""
        from muster.backends.kubernetes.runner import KubernetesRunner

        return KubernetesRunner(self.client, site=self.written.site, store=self.store, resolve=self.resolve)

    @cached_property
    def capacity(self) -> ClusterCapacity:
        """The nodes and the queues."""
        from muster.backends.kubernetes.state.capacity import ClusterCapacity

        return ClusterCapacity(self.client.patient(LOOK_SECONDS), self.written.site)

    @cached_property
    def deployments(self) -> Deployments:
        """The deployments: served on the cluster where its site says so, else on this machine."""
        if self.written.site.serving is None:
            return self.serve_here(self.store)
        from muster.backends.kubernetes.serving.platform import ClusterPlatform
        from muster.backends.releases.deployments import Deployments

        platform = ClusterPlatform(
            self.client, site=self.written.site, store=lambda: self.store, open_spool=self._open_spool
        )
        return Deployments(platform, lambda: self.store)

    def _open_spool(self, deployment: str) -> None:
        from muster.volumes.service.spools import ServiceSpools

        ServiceSpools(self.store.connection).open(deployment)

    def expecting_jobs(self) -> AbstractContextManager[None]:
        """Do nothing: pods begin when they begin."""
        return nullcontext()

    def commit_requests(
        self, name: str, made: Callable[[Version], None], *, progress: Callable[[str], None]
    ) -> Iterator[str]:
        """Commit what its model servers keep."""
        from muster.backends.kubernetes.collecting import ClusterCollecting

        return ClusterCollecting(self.settings, self.store).run(made, name=name, progress=progress)

    def checks(self) -> Iterator[Check]:
        """Yield what is looked at of its file, its store and its API server."""
        from muster.backends.kubernetes.checks import cluster_checks

        return cluster_checks(self)

    def evidence(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yield the file of settings, and the objects of the namespace that are muster's, by kind: no Secret and no ConfigMap."""
        from muster.backends.kubernetes.api import kinds
        from muster.backends.kubernetes.labels import JOB
        from muster.backends.kubernetes.serving.names import DEPLOYMENT

        def find(kind: kinds.Kind, labels: str) -> object:
            return self.client.find(kind, namespace=self.written.site.namespace, labels=labels)

        file = self.settings.cluster
        if file is not None:
            yield file.name, partial(file.read_text, encoding="utf-8")
        of_jobs, served = (kinds.JOB_SET, kinds.JOB, kinds.POD), (kinds.INFERENCE_SERVICE, kinds.HTTP_ROUTE)
        for what, labels, found in (
            ("jobs", JOB, of_jobs),
            ("deployments", DEPLOYMENT, (*served, kinds.DEPLOYMENT, kinds.POD)),
            ("muster", "app.kubernetes.io/part-of=muster", (kinds.DEPLOYMENT,)),
            ("all", "", (kinds.WORKLOAD, kinds.LOCAL_QUEUE, kinds.EVENT)),
        ):
            for kind in found:
                yield f"{what}-{kind.plural}.json", partial(find, kind, labels)

    def secrets(self) -> tuple[str, ...]:
        """Return the token for the store service, also where the rest of the settings is wrong."""
        from muster.backends.kubernetes.cluster_file import token_in

        try:
            return (self.written.token,)
        except SpecError:  # doctor says what is wrong
            return token_in(self.settings.cluster) if self.settings.cluster else ()

    def close(self) -> None:
        """Close what is open; the cluster's watches end."""
        for part in ("runner", "store"):
            if opened := self.__dict__.get(part):
                opened.close()
