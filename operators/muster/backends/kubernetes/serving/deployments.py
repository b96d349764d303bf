"""Deployments on a cluster: the steps of :class:`muster.backends.base.Deployments`, each idempotent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.cluster.survey import Survey
from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.beginning import begin
from muster.backends.kubernetes.serving.notes import Live
from muster.backends.kubernetes.serving.platform import check_platform
from muster.backends.kubernetes.serving.replicas import Replicas
from muster.backends.kubernetes.serving.revisions import Revisions
from muster.backends.kubernetes.serving.route import Route
from muster.backends.kubernetes.serving.routes import Routes
from muster.backends.kubernetes.serving.server import archive
from muster.backends.kubernetes.serving.tally import Tally
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.ordering import behind
from muster.core.deployment import (
    Answer,
    Counts,
    DeploymentSpec,
    DeploymentStatus,
    Release,
    Revision,
    RevisionState,
    SmokeRequest,
)
from muster.core.errors import Conflict, DeploymentError, NotFound, SpecError
from muster.core.wire import dumps, loads
from muster.volumes.base import Store, Version

SERVERS = ("kserve",)


class ClusterDeployments:
    """The deployments of one namespace. It may be shared between threads; nothing is asked before the first call.

    What it says of the counts of a revision goes up only for as long as it is the same one that is asked.
    """

    def __init__(
        self,
        client: Client,
        *,
        site: ClusterSite,
        store: Store,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._site = site
        self._store = store
        self._survey = Survey(client, site)
        self._now = now
        self._sleep = sleep
        self._routes = Routes(client, site, sleep=sleep)
        self._revisions = Revisions(client, site, self._survey, now=now, sleep=sleep)
        self._replicas = Replicas(client)
        self._tally = Tally()

    @property
    def servers(self) -> tuple[str, ...]:
        """Which model servers there are."""
        return SERVERS

    @property
    def only_whole(self) -> str:
        """Why traffic can only be moved as a whole: there is no Gateway to share it out."""
        if self._site.gateway:
            return ""
        return (
            f"namespace {self._site.namespace} is served through no Gateway, so that a deployment's Service "
            "points at one revision: name one (gateway, serving_url) where the cluster is written down"
        )

    def prepare(self, spec: DeploymentSpec, *, by: str, allow_older: bool = True) -> Revision:
        """Begin a release: bring a revision up beside what serves, without traffic.

        :raises Conflict: a newer one serves or will; :raises SpecError: it can never run here.
        :raises NotFound: the version is gone.
        """
        spec = loads(DeploymentSpec, dumps(spec))  # as it will be read back, so that the same is the same
        model = self._check(spec)
        self._store.pin(model.address, reason=_pin(spec.name))
        live = self._begin(spec, model, by=by, allow_older=allow_older)
        self._revisions.make(live)
        return self._called(spec.name, live.name)

    def deployment(self, name: str) -> DeploymentStatus:
        """Report a deployment as it is now. :raises NotFound: no such deployment."""
        route = self._route(name)
        revisions = self._revisions.standing(route)
        status = DeploymentStatus(
            name=name,
            url=self._url(name),
            ready=False,
            token=route.token,
            revisions=(*revisions, *route.notes.over),
            release=route.notes.release,
        )
        champion = status.champion
        answers = champion is not None and champion.ready > 0 and not route.unsettled
        return replace(status, ready=answers, reason=_reason(route, champion))

    def deployments(self) -> list[str]:
        """Every deployment's name, sorted."""
        return self._routes.names()

    def ask(self, name: str, revision: str, request: SmokeRequest) -> tuple[Answer, ...]:
        """Send one real request to every replica of a revision, past the route. :raises NotFound: no such revision."""
        if self._route(name).notes.called(revision) is None:
            raise NotFound(f"deployment {name} has no revision {revision}")
        pods = self._revisions.pods(name, revision)
        return self._replicas.ask(pods, deployment=name, request=request)

    def shift(self, name: str, shares: Mapping[str, int], *, token: str, release: Release | None) -> str:
        """Share the traffic out in one write, and return the token of what the route is then.

        It returns when the Gateway has read the route, which it follows within the site's `gateway_seconds`.

        :raises Conflict: somebody else has written the route since; nothing was changed.
        :raises DeploymentError: a revision is not ready, or traffic cannot be shared here.
        :raises Unreachable: it was written, and the Gateway does not say that it has read it.
        """
        route = self._route(name)
        if route.token != token:
            raise Conflict(f"the route of {name} was written by somebody else meanwhile: look again")
        self._check_shares(route, shares)
        shifted = replace(route, shares=dict(shares), notes=replace(route.notes, release=release))
        written = self._routes.write(_moved(shifted, route, self._now()))
        self._routes.await_taken_up(name)
        return written.token

    def counts(self, name: str) -> Mapping[str, Counts]:
        """What each revision has answered, by its name: from the servers themselves."""
        live = [one.name for one in self._route(name).notes.live]
        for pod, born, counted in self._replicas.counted(self._revisions.pods(name)):
            revision, process = pod["metadata"]["labels"].get(names.REVISION), (pod["metadata"]["uid"], born)
            if revision in counted:
                self._tally.take(name, revision, process, counted[revision])
        return self._tally.totals(name, live)

    def withdraw(self, name: str, revision: str, *, state: RevisionState, reason: str) -> None:
        """Take a revision without traffic away, when what it was asked before is answered.

        It is remembered as over before anything of it is deleted; whoever is killed in between, it is done
        by the next call, of this or of :meth:`prepare`.

        :raises Conflict: it has a share of the traffic.
        :raises Unreachable: the Gateway does not say that it lets go of it; it is not deleted.
        """
        while True:
            route = self._route(name)
            live = route.notes.called(revision)
            if live is None:
                break
            if percent := route.shares.get(revision):
                raise Conflict(
                    f"revision {revision} of {name} has {percent} % of the traffic: move that first"
                )
            ended = Revision(
                name=revision, model=live.spec.model, state=state, since=self._now(), reason=reason
            )
            left = {each: percent for each, percent in route.shares.items() if each != revision}
            with suppress(Conflict):  # somebody else has written it: perhaps they gave it traffic
                self._routes.write(replace(route, shares=left, notes=route.notes.with_over(ended)))
                break
        self._clear(name)

    def retire(self, name: str) -> None:
        """Take a deployment away with all its revisions, and return when nothing of it runs. Idempotent.

        :raises BackendError: something of it does not end.
        """
        route = self._routes.find(name)
        self._routes.delete(name)
        if route is not None and route.champion:
            self._sleep(self._site.gateway_seconds)
        self._revisions.keep_only(name, ())
        self._revisions.await_gone(name)
        for model in _models(route):
            self._unpin(name, model)

    def _check(self, spec: DeploymentSpec) -> Version:
        """Refuse what can never be served here; return the model's version."""
        if spec.server not in SERVERS:
            raise SpecError(f"server {spec.server!r}: on this cluster there is {', '.join(SERVERS)}")
        names.route_name(spec.name)
        self._site.image(spec.image, spec.image_digest)
        archive()
        check_platform(self._client, self._site, self._survey.cluster())
        (version,) = self._store.resolve(spec.model.address)
        if version.digest != spec.model.digest:
            raise SpecError(
                f"{spec.model.address} is {version.digest:.20}…, the spec says {spec.model.digest:.20}…: "
                "it was written for another store"
            )
        return version

    def _check_shares(self, route: Route, shares: Mapping[str, int]) -> None:
        """Refuse shares that would send users to nobody."""
        unknown = sorted(name for name in shares if route.notes.called(name) is None)
        if unknown:
            raise DeploymentError(f"deployment {route.name} has no revision {unknown[0]}")
        served = {name: percent for name, percent in shares.items() if percent}
        if (served or route.champion) and (sum(shares.values()) != 100 or min(shares.values()) < 0):
            raise DeploymentError(f"shares {dict(shares)} of {route.name}: need percents, in sum 100")
        if len(served) > 1 and self.only_whole:
            raise DeploymentError(f"shares {dict(shares)} of {route.name}: {self.only_whole}")
        new = [name for name in served if not route.shares.get(name)]
        if not new:
            return
        for one in self._revisions.standing(route):
            if one.name in new and one.state is not RevisionState.READY:
                raise DeploymentError(
                    f"revision {one.name} of {route.name} is not ready: {one.ready} of {one.wanted} replicas; {one.reason}"
                )

    def _begin(self, spec: DeploymentSpec, model: Version, *, by: str, allow_older: bool) -> Live:
        """Write into the route that a revision is on its way, and return it."""
        while True:
            route = self._routes.find(spec.name) or Route(name=spec.name)
            if not allow_older and (why := behind(self._store, model, _heads(route))):
                raise Conflict(f"{model.address} would take {spec.name} back in time: {why}")
            begun, live = begin(route, spec, by=by, now=self._now())
            if begun == route:
                return live
            self._revisions.rehearse(live)
            with suppress(Conflict):  # somebody else was quicker: what they wrote counts
                self._routes.write(_moved(begun, route, self._now()))
                return live

    def _called(self, name: str, revision: str) -> Revision:
        route = self._route(name)
        seen = (*self._revisions.standing(route), *route.notes.over)
        found = next((one for one in seen if one.name == revision), None)
        if found is None:
            raise Conflict(f"revision {revision} of {name} was taken away by somebody else meanwhile")
        return found

    def _route(self, name: str) -> Route:
        route = self._routes.find(name)
        if route is None:
            known = ", ".join(self.deployments()) or "none"
            raise NotFound(f"no deployment {name!r}; known are: {known}")
        return route

    def _url(self, name: str) -> str:
        if self._site.gateway:
            return self._site.url(name)
        return f"http://{names.route_name(name)}.{self._site.namespace}"

    def _clear(self, name: str) -> None:
        """Delete the revisions that are over, when the Gateway has let go of them."""
        route = self._routes.await_taken_up(name)
        self._sleep(max(0.0, route.notes.moved + self._site.gateway_seconds - self._now()))
        self._revisions.keep_only(name, [one.name for one in route.notes.live])
        kept = {one.spec.model.address for one in route.notes.live}
        for ended in route.notes.over:
            if ended.model.address not in kept:
                self._unpin(name, ended.model.address)

    def _unpin(self, name: str, address: str) -> None:
        with suppress(NotFound):  # it was taken, so nothing pinned it
            self._store.unpin(address, reason=_pin(name))


def _heads(route: Route) -> tuple[Revision, ...]:
    """The revisions as the route alone tells them."""
    return tuple(
        Revision(
            name=one.name,
            model=one.spec.model,
            state=RevisionState.SERVING if route.shares.get(one.name) else RevisionState.STARTING,
        )
        for one in route.notes.live
    )


def _moved(new: Route, old: Route, now: float) -> Route:
    """Say in a route when its shares changed, and whom it keeps, where it cannot name them itself."""
    kept = tuple(sorted(name for name, percent in new.shares.items() if not percent))
    moved = old.notes.moved if dict(new.shares) == dict(old.shares) else now
    return replace(new, notes=replace(new.notes, moved=moved, kept=kept))


def _models(route: Route | None) -> set[str]:
    if route is None:
        return set()
    return {one.spec.model.address for one in route.notes.live} | {
        one.model.address for one in route.notes.over
    }


def _reason(route: Route, champion: Revision | None) -> str:
    """What a deployment waits for or suffers from."""
    if route.foreign:
        return f"the route also sends users to {', '.join(route.foreign)}, which is no revision: somebody else wrote it"
    if champion is None:
        return "no revision serves yet"
    return route.unsettled or route.broken or champion.reason


def _pin(name: str) -> str:
    return f"served/{name}"
