"""What each revision has answered: as its servers counted it, and the Gateway in place of them."""

from __future__ import annotations

from collections.abc import Sequence

from muster.backends.kubernetes.api.kinds import Document
from muster.backends.kubernetes.serving.gateway import Gateway
from muster.backends.kubernetes.serving.replicas import Page, Replicas
from muster.backends.kubernetes.serving.route import Route
from muster.backends.kubernetes.serving.tally import Tally
from muster.backends.releases.figures import added
from muster.core.deployment import Counts


class Counting:
    """Counts go up only for as long as it is the same one that is asked. Safe to share between threads.

    :param gateway: where the site says where its Gateway counts.
    """

    def __init__(self, replicas: Replicas, gateway: Gateway | None) -> None:
        self._replicas = replicas
        self._gateway = gateway
        self._tally = Tally()

    def pages(self, pods: Sequence[Document]) -> list[Page]:
        """Ask pods and the Gateway for their pages; leave out a pod that does not answer.

        :raises BackendError: the Gateway's cannot be had.
        """
        if self._gateway:
            self._gateway.look()
        return self._replicas.pages(pods)

    def counted(self, route: Route, pages: Sequence[Page]) -> dict[str, Counts]:
        """Return what each revision of a route has answered; without those with traffic that no page tells of.

        :param pages: also those of other deployments.
        """
        name, heard = route.name, set[str]()
        for page in pages:
            if page.deployment == name:
                counts = page.counts()
                self._tally.take(name, (page.pod, page.born), counts)
                heard.update(counts)
        counted = self._tally.totals(name, [one.name for one in route.notes.live])
        if self._gateway is not None:
            counted = added((counted, {one: self._gateway.answered(name, one) for one in counted}))
        silent = {one for one, percent in route.shares.items() if percent} - heard
        return {one: counts for one, counts in counted.items() if one not in silent}
