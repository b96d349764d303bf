"""Takes away what nobody is sent to any more: revisions that are over, whole deployments, the pins of their models."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from muster.backends.kubernetes.serving.deciding import models
from muster.backends.kubernetes.serving.revisions import Revisions
from muster.backends.kubernetes.serving.route import Route
from muster.backends.kubernetes.serving.routes import Routes
from muster.core.errors import NotFound
from muster.volumes.protocols import Store


class Clearing:
    """It deletes, and never decides what. Each call may be repeated; it may be shared between threads.

    :param gateway_seconds: how long a Gateway may send requests by the route before.
    :param now: seconds since the epoch.
    """

    def __init__(
        self,
        routes: Routes,
        revisions: Revisions,
        store: Callable[[], Store],
        *,
        gateway_seconds: float,
        now: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._routes = routes
        self._revisions = revisions
        self._store = store
        self._gateway_seconds = gateway_seconds
        self._now = now
        self._sleep = sleep

    def let_go(self, name: str) -> Route:
        """Return the route when the Gateway sends nobody any more to those without a share.

        :raises Unreachable: it does not say so.
        """
        route = self._routes.await_taken_up(name)
        delay = self._gateway_seconds
        self._sleep(min(delay, max(0.0, route.notes.moved + delay - self._now())))  # clocks differ
        return route

    def clear(self, route: Route) -> None:
        """Delete the revisions that are over, as a route says that was read a while ago."""
        live = route.notes.live
        self._revisions.delete(route.name, upto=route.notes.last, but=[one.name for one in live])
        kept = {one.spec.model.address for one in live}
        past = {ended.model.address for ended in route.notes.over} - kept
        for address in past:
            self._unpin(route.name, address)
        # Whoever has begun one of them anew meanwhile wrote that into the route before they pinned it.
        now = self._routes.find(route.name) if past else None
        for address in past & {one.spec.model.address for one in (now.notes.live if now else ())}:
            self._store().pin(address, reason=pin(route.name))

    def take_away(self, route: Route) -> None:
        """Delete all that there is of a deployment but its route, and return when no pod is left.

        :raises BackendError: something of it does not end.
        """
        served = models(route) | self._revisions.models(route.name)
        self._revisions.delete(route.name, upto=route.notes.last)
        self._revisions.await_gone(route.name)
        for model in served:
            self._unpin(route.name, model)

    def _unpin(self, name: str, address: str) -> None:
        with suppress(NotFound):  # it was taken, so nothing pinned it
            self._store().unpin(address, reason=pin(name))


def pin(name: str) -> str:
    """Why a version that a deployment serves stays in the store."""
    return f"deployment/{name}"
