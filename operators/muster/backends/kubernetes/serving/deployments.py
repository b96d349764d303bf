"""Deployments on a cluster: the steps of :class:`muster.backends.base.Deployments`, each idempotent."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.cluster.survey import QUICK_SECONDS, Survey
from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.clearing import Clearing, pin
from muster.backends.kubernetes.serving.counting import Counting
from muster.backends.kubernetes.serving.deciding import (
    begin,
    drift,
    idle,
    moved,
    newest_first,
    reason,
    shared,
)
from muster.backends.kubernetes.serving.gateway import Gateway
from muster.backends.kubernetes.serving.looking import Look
from muster.backends.kubernetes.serving.notes import Live, Notes
from muster.backends.kubernetes.serving.platform import check_platform
from muster.backends.kubernetes.serving.replicas import Page, Replicas
from muster.backends.kubernetes.serving.revisions import Revisions
from muster.backends.kubernetes.serving.route import Route
from muster.backends.kubernetes.serving.routes import Routes
from muster.backends.kubernetes.serving.server import SERVERS, archive
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.releases.book import Book, Entry, behind
from muster.backends.releases.figures import Seen, if_known, seen_with, unreadable
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
from muster.core.errors import Behind, Conflict, Corrupt, DeploymentError, NotFound, SpecError
from muster.core.job import Origin
from muster.core.wire import dumps, loads
from muster.volumes.base import Version
from muster.volumes.protocols import LocalStore

_TRIES, _PAUSE_SECONDS = 20, 0.1  # of a write that others come before
_SPOILED = Notes(last=1_000_000)  # nobody knows any more which revisions there are


class ClusterDeployments:
    """The deployments of one namespace. It may be shared between threads; nothing is asked before the first call.

    What it says of the counts of a revision goes up only for as long as it is the same one that is asked.

    :param store: opens the store, the same one each time; called where something of it is needed.
    """

    def __init__(
        self,
        client: Client,
        *,
        site: ClusterSite,
        store: Callable[[], LocalStore],
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        quick = client.patient(QUICK_SECONDS)  # whoever drives asks again by himself
        self._client = quick
        self._site = site
        self._store = store
        self._survey = Survey(client, site)
        self._now = now
        self._sleep = sleep
        self._routes = Routes(quick, site, clock=now, sleep=sleep)
        self._revisions = Revisions(quick, site, self._survey, maker=client, now=now, sleep=sleep)
        self._clearing = Clearing(
            self._routes, self._revisions, store, gateway_seconds=site.gateway_seconds, now=now, sleep=sleep
        )
        self._replicas = Replicas(quick)
        page = site.gateway_metrics
        self._counting = Counting(self._replicas, Gateway(page, namespace=site.namespace) if page else None)

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

    def prepare(
        self,
        spec: DeploymentSpec,
        *,
        by: str,
        origin: Origin | None = None,
        allow_older: bool = True,
        token: str | None = None,
    ) -> Revision:
        """Begin a release: bring a revision up beside what serves, without traffic.

        :raises Behind: a newer one serves or will; :raises SpecError: it can never run here.
        :raises Conflict: somebody else has written the route since `token`, or took the revision away meanwhile.
        :raises NotFound: the version is gone.
        """
        spec = loads(DeploymentSpec, dumps(spec))  # as it will be read back, so that the same is the same
        model = self._check(spec)
        live = self._begin(spec, model, by=by, origin=origin, allow_older=allow_older, token=token)
        self._store().pin(model.address, reason=pin(spec.name))
        self._revisions.make(live)
        return self._called(spec.name, live.name)

    def deployment(self, name: str) -> DeploymentStatus:
        """Report a deployment as it is now. :raises NotFound: no such deployment."""
        return self._status(self._route(name))

    def look_at(self, names: Collection[str] | None = None) -> list[Seen]:
        """Report every deployment, or those of them, each with its counts; leave out what is not there.

        Five lists in two rounds however many there are, then each replica is asked what it has counted.
        """
        found = self._routes.all(names)
        there = [route for route in found.values() if isinstance(route, Route)]
        seen = self._revisions.look(there)
        pods = [pod for route in there for pod in self._revisions.pods_seen(route, seen)]
        pages = if_known(lambda: self._counting.pages(pods))
        return [
            unreadable(name, route) if isinstance(route, Corrupt) else self._seen(route, seen, pages)
            for name, route in found.items()
        ]

    def _seen(self, route: Route, seen: Look, pages: Sequence[Page] | None) -> Seen:
        counts = None if pages is None else if_known(lambda: self._counting.counted(route, pages))
        return seen_with(self._status(route, seen), counts)

    def _status(self, route: Route, seen: Look | None = None) -> DeploymentStatus:
        seen = seen or self._revisions.look([route])
        revisions = self._revisions.standing(route, seen)
        missing = [live.name for live in self._revisions.missing(route, seen)]
        status = DeploymentStatus(
            name=route.name,
            url=self._url(route.name),
            ready=False,
            token=route.token,
            revisions=newest_first((*revisions, *route.notes.over)),
            release=route.notes.release,
            drift=drift(route, missing, kind=self._revisions.kind),
        )
        champion = status.champion
        answers = champion is not None and champion.ready > 0 and not (route.unsettled or route.lost)
        return replace(status, ready=answers, reason=reason(route, status))

    def names(self) -> list[str]:
        """Every deployment's name, sorted."""
        return self._routes.names()

    def ask(self, name: str, revision: str, request: SmokeRequest) -> tuple[Answer, ...]:
        """Send one real request to every replica of a revision, past the route, and not counted as traffic.

        :raises NotFound: no such revision.
        """
        if self._route(name).notes.called(revision) is None:
            raise NotFound(f"deployment {name} has no revision {revision}")
        pods = self._revisions.answering(name, revision)
        return self._replicas.ask(pods, deployment=name, revision=revision, request=request)

    def shift(self, name: str, shares: Mapping[str, int], *, token: str, release: Release | None) -> str:
        """Share the traffic out in one write, and return the token of what the route is then.

        It returns when the Gateway has read the route, which it follows within the site's `gateway_seconds`.

        :raises Conflict: somebody else has written the route since; nothing was changed.
        :raises DeploymentError: a revision is not ready, or traffic cannot be shared here.
        :raises NotFound: there is no such revision; :raises SpecError: these are no shares.
        :raises Unreachable: it was written, and the Gateway does not say that it has read it.
        """
        route = self._route(name)
        if route.token != token:
            raise Conflict(f"the route of {name} was written by somebody else meanwhile: look again")
        self._check_shares(route, shares)
        shifted = replace(route, shares=dict(shares), notes=replace(route.notes, release=release))
        written = self._routes.write(moved(shifted, route, self._now()))
        self._routes.await_taken_up(name)
        return written.token

    def counts(self, name: str) -> Mapping[str, Counts]:
        """What each revision has answered, by its name: from the servers themselves, those that can be reached.

        Beside that what the Gateway answered in place of one, where the site says where it counts that. One with
        traffic of which no replica says so is left out.

        :raises BackendError: the Gateway's counts cannot be had.
        """
        return self._counting.counted(self._route(name), self._counting.pages(self._revisions.pods(name)))

    def repair(self, name: str) -> tuple[str, ...]:
        """Make what is missing of a deployment, and write its route as muster wrote it last.

        The route only once those have come up who get a share by that: until then users are served as they are.

        :raises BackendError: something of what was deleted is still on its way out.
        """
        mended: list[str] = []
        for _ in range(_TRIES):
            route = self._route(name)
            for live in self._revisions.missing(route, self._revisions.look([route])):
                self._revisions.make(live)
                mended.append(f"{live.name}: its {self._revisions.kind} is made again")
            if not route.drifted:
                return tuple(mended)
            given = route.shares if route.given is None else route.given
            shares = {each: percent for each, percent in given.items() if route.notes.called(each)}
            if not self._come_up(route, shares):
                return tuple(mended)
            with suppress(Conflict):  # somebody else has written it: look again
                self._routes.write(moved(replace(route, shares=shares), route, self._now()))
                self._routes.await_taken_up(name)
                return (*mended, f"its route is written as muster left it: {shared(shares)}")
            self._sleep(_PAUSE_SECONDS)
        raise Conflict(f"the route of {name} is written by others all the time: try again")

    def _come_up(self, route: Route, shares: Mapping[str, int]) -> bool:
        """Whether all answer who would get a share that they do not have now."""
        silent = {one.name for one in self._revisions.standing(route) if not one.ready}
        return not any(
            percent and not route.shares.get(each) and each in silent for each, percent in shares.items()
        )

    def withdraw(self, name: str, revision: str, *, state: RevisionState, reason: str) -> None:
        """Take a revision without traffic away, when what it was asked before is answered.

        It is remembered as over before anything of it is deleted; whoever is killed in between, it is done
        by the next call, of this or of :meth:`prepare`.

        :raises Conflict: it has a share of the traffic, or a release that goes forward names it.
        :raises NotFound: no such revision.
        :raises Unreachable: the Gateway does not say that it lets go of it; it is not deleted.
        """
        while True:
            route = self._route(name)
            live = idle(route, revision)
            if live is None:
                break
            ended = Revision(
                name=revision, model=live.spec.model, state=state, since=self._now(), reason=reason
            )
            left = {each: percent for each, percent in route.shares.items() if each != revision}
            with suppress(Conflict):  # somebody else has written it: perhaps they gave it traffic
                self._routes.write(replace(route, shares=left, notes=route.notes.with_over(ended)))
                break
        self._clearing.clear(self._clearing.let_go(name))

    def retire(self, name: str) -> None:
        """Take a deployment away with all its revisions, and return when nothing of it runs. Idempotent.

        Users are sent nowhere first, and the route goes last: whoever is killed in between, it is still there
        to be retired. One whose route was spoiled goes as well, with all that carries its name.

        :raises BackendError: something of it does not end.
        """
        while (route := self._routes.find(name, spoiled=_SPOILED)) is not None:
            with suppress(Conflict):  # somebody has begun a release meanwhile: that goes, too
                if route.shares or route.foreign or route.notes.release:
                    ended = replace(route, shares={}, notes=replace(route.notes, release=None))
                    self._routes.write(moved(ended, route, self._now()))
                    route = self._clearing.let_go(name)
                self._clearing.take_away(route)
                self._routes.delete(route)

    def _check(self, spec: DeploymentSpec) -> Version:
        """Refuse what can never be served here; return the model's version."""
        if spec.server not in SERVERS:
            raise SpecError(f"server {spec.server!r}: on this cluster there is {', '.join(SERVERS)}")
        names.route_name(spec.name)
        self._site.image(spec.image, spec.image_digest)
        archive()
        check_platform(self._client, self._site, self._survey.cluster())
        (version,) = self._store().resolve(spec.model.address)
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
            raise NotFound(f"deployment {route.name} has no revision {unknown[0]}")
        served = {name: percent for name, percent in shares.items() if percent}
        if (served or route.champion) and (sum(shares.values()) != 100 or min(shares.values()) < 0):
            raise SpecError(f"shares {dict(shares)} of {route.name}: need percents, in sum 100")
        if len(served) > 1 and self.only_whole:
            raise DeploymentError(f"shares {dict(shares)} of {route.name}: {self.only_whole}")
        new = [name for name in served if not route.shares.get(name)]
        if not new:
            return
        for one in self._revisions.standing(route):
            # Of one that is kept a single replica will do: a rollback must not wait for a node that was drained.
            enough = one.ready > 0 if one.kept else one.state is RevisionState.READY
            if one.name in new and not enough:
                raise DeploymentError(
                    f"revision {one.name} of {route.name} is not ready: {one.ready} of {one.wanted} replicas; {one.reason}"
                )

    def _begin(
        self,
        spec: DeploymentSpec,
        model: Version,
        *,
        by: str,
        origin: Origin | None,
        allow_older: bool,
        token: str | None,
    ) -> Live:
        """Write into the route that a revision is on its way, and return it."""
        for _ in range(_TRIES):
            route = self._routes.find(spec.name) or self._first(spec.name)
            if token not in (None, route.token):
                raise Conflict(f"the route of {spec.name} was written by somebody else meanwhile: look again")
            if not allow_older and (why := behind(_book(route), model, self._store())):
                raise Behind(f"{model.address} would take {spec.name} back in time: {why}")
            failed = self._failed(route, spec)
            begun, live = begin(route, spec, by=by, origin=origin, now=self._now(), failed=failed)
            if begun == route and not route.lost:  # else it is written anew
                return live
            if route.notes.called(live.name) is None:
                self._store().code(spec.image_digest)  # without its lock nobody could have built its image
                self._revisions.rehearse(live)
            with suppress(Conflict):  # somebody else was quicker: what they wrote counts
                self._routes.write(moved(begun, route, self._now()))
                return live
            self._sleep(_PAUSE_SECONDS)
        raise Conflict(
            f"the route of {spec.name} is written by others all the time, or is being deleted: try again"
        )

    def _first(self, name: str) -> Route:
        """A new route. Where somebody deleted the one before, what that one left gives its names to nobody else.

        :raises SpecError: it is served by a route of the other kind.
        """
        self._routes.check_only(name)
        return Route(name=name, notes=Notes(last=self._revisions.newest(name)))

    def _failed(self, route: Route, spec: DeploymentSpec) -> set[str]:
        """Which revisions will not do, where it makes a difference."""
        if not any(one.spec.runs_as(spec) for one in route.notes.live):
            return set()
        seen = self._revisions.standing(route)
        return {one.name for one in seen if one.state is RevisionState.FAILED}

    def _called(self, name: str, revision: str) -> Revision:
        route = self._route(name)
        seen = (*self._revisions.standing(route), *route.notes.over)
        found = next((one for one in seen if one.name == revision), None)
        if found is None:
            raise Conflict(f"revision {revision} of {name} was taken away by somebody else meanwhile")
        if found.state.over:
            self._clearing.clear(self._clearing.let_go(name))  # it was superseded before it was made
        return found

    def _route(self, name: str) -> Route:
        route = self._routes.find(name)
        if route is None:
            known = ", ".join(self.names()) or "none"
            raise NotFound(f"no deployment {name!r}; known are: {known}")
        return route

    def _url(self, name: str) -> str:
        if self._site.gateway:
            return self._site.url(name)
        return f"http://{names.route_name(name)}.{self._site.namespace}"


def _book(route: Route) -> Book:
    live = tuple(Entry(name=one.name, spec=one.spec, since=one.since) for one in route.notes.live)
    return Book(name=route.name, live=live, shares=route.shares, release=route.notes.release)
