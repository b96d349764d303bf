"""What the cluster is and has, looked up anew where what is known of it has become old."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import EVENT, JOB, JOB_SET, POD, POD_GROUP, WORKLOAD, Kind
from muster.backends.kubernetes.cluster.discovery import discover
from muster.backends.kubernetes.cluster.facts import Cluster, Gangs
from muster.backends.kubernetes.site import ClusterSite
from muster.core.errors import Forbidden, Unreachable

QUICK_SECONDS = 5.0  # a read gives up after this long where the API server does not answer
_YOUNG_SECONDS = 60.0


class Survey:
    """The cluster as it was a minute ago at most. Safe to share between threads."""

    def __init__(
        self, client: Client, site: ClusterSite, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._site = site
        self._clock = clock
        self._lock = threading.Lock()
        self._found: Cluster | None = None
        self._looked = 0.0

    def cluster(self, *, younger_than: float = _YOUNG_SECONDS) -> Cluster:
        """Return what there is. :param younger_than: seconds; what is older is looked up again."""
        return self._look(self._client, younger_than)

    def last(self) -> Cluster | None:
        """Return what was found last, looked up where that is old and it can be; None where nothing was ever.

        :raises Forbidden: nothing was ever, and these credentials may not look.
        """
        try:
            return self._look(self._client.patient(QUICK_SECONDS), _YOUNG_SECONDS)
        except Unreachable:
            pass
        except Forbidden:  # what was allowed before is forbidden by an API server that starts
            if self._found is None:
                raise
        self._looked = self._clock()  # not at each look, while it is away
        return self._found

    def kinds(self) -> tuple[Kind, ...]:
        """Return the kinds of objects that a job may have here, as of the last look at the cluster.

        :raises Unreachable: there was none yet, and the cluster is away.
        """
        cluster = self._found or self._look(self._client.patient(QUICK_SECONDS), _YOUNG_SECONDS)
        grouped = cluster.gangs is Gangs.POD_GROUP
        served = {JOB_SET: cluster.job_set, WORKLOAD: cluster.kueue, POD_GROUP: grouped}
        return JOB, POD, EVENT, *(kind for kind, there in served.items() if there)

    def _look(self, client: Client, younger_than: float) -> Cluster:
        with self._lock:
            if self._found is None or self._clock() - self._looked > younger_than:
                found = discover(client, namespace=self._site.namespace, claim=self._site.claim)
                self._found = replace(found, nodes=None) if self._site.elastic else found
                self._looked = self._clock()
            return self._found
