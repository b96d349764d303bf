"""The counters of revisions: what their servers counted, and what the Gateway answered in their place.

A replica that died, or started again, takes nothing back of what it had counted.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence

from muster.backends.kubernetes.api.kinds import Document
from muster.backends.kubernetes.serving.gateway import Gateway
from muster.backends.kubernetes.serving.replicas import MetricsPage, Replicas
from muster.backends.kubernetes.serving.route import Route
from muster.backends.releases.figures import added
from muster.core.deployment import Counts

Process = tuple[str, float]
"""One process that counts: its pod's uid, and when it came up."""


class Counters:
    """Counts go up only for as long as it is the same one that is asked. Safe to share between threads.

    :param gateway: where the site says where its Gateway counts.
    """

    def __init__(self, replicas: Replicas, gateway: Gateway | None) -> None:
        self._replicas = replicas
        self._gateway = gateway
        self._tally = _Tally()

    def pages(self, pods: Sequence[Document]) -> list[MetricsPage]:
        """Ask pods and the Gateway for their pages; leave out a pod that does not answer.

        :raises BackendError: the Gateway's cannot be had.
        """
        if self._gateway:
            self._gateway.look()
        return self._replicas.pages(pods)

    def counted(self, route: Route, pages: Sequence[MetricsPage]) -> dict[str, Counts]:
        """Return what each revision of a route has answered; without those with traffic that no page tells of.

        :param pages: also those of other deployments.
        """
        name, heard = route.name, set[str]()
        for page in pages:
            if page.deployment == name:
                counts = page.counts()
                self._tally.take(name, (page.pod, page.born), counts)
                heard.update(counts)
        counted = self._tally.totals(name, [one.name for one in route.live])
        if self._gateway is not None:
            counted = added((counted, {one: self._gateway.answered(name, one) for one in counted}))
        silent = {one for one, percent in route.shares.items() if percent} - heard
        return {one: counts for one, counts in counted.items() if one not in silent}


class _Tally:
    """What was seen of every replica's counters last. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, dict[Process, Mapping[str, Counts]]] = {}

    def take(self, deployment: str, process: Process, counted: Mapping[str, Counts]) -> None:
        """Remember what a process has counted so far, by revision."""
        with self._lock:
            seen = self._seen.setdefault(deployment, {})
            if _all(seen.get(process, {})) <= _all(counted):  # two looks at once may end the other way round
                seen[process] = counted

    def totals(self, deployment: str, revisions: Collection[str]) -> dict[str, Counts]:
        """Return the sums of these revisions, and forget the others."""
        with self._lock:
            seen = self._seen.get(deployment, {})
            kept = {process: counted for process, counted in seen.items() if counted.keys() & set(revisions)}
            self._seen[deployment] = kept
            sums = added(kept.values())
        return {name: sums.get(name, Counts()) for name in revisions}


def _all(counted: Mapping[str, Counts]) -> int:
    return sum(counts.requests for counts in counted.values())
