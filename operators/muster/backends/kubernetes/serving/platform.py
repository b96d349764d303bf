"""A cluster as a platform for deployments: a book is a route, a revision is one object of KServe or Seldon Core."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from urllib.parse import urlsplit

from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import Document
from muster.backends.kubernetes.api.refusals import NotServed
from muster.backends.kubernetes.cluster.discovery import QUICK_SECONDS, Survey
from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.gateway import Counters, Gateway
from muster.backends.kubernetes.serving.kinds import check_platform, platform_of, restored
from muster.backends.kubernetes.serving.replicas import MetricsPage, Replicas
from muster.backends.kubernetes.serving.revisions import ClusterRevisions, RevisionsSeen
from muster.backends.kubernetes.serving.route import HISTORY, Notes, Route, drift, read_route, shared
from muster.backends.kubernetes.serving.routes import Routes
from muster.backends.kubernetes.serving.server import GRPC_PORT, archive
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.releases.book import BookEntry, live_models, number, past_models, settle
from muster.backends.releases.figures import if_known
from muster.backends.releases.platform import Limits, Observed
from muster.backends.releases.tokens import Tokens
from muster.core.deployment import Answer, Counts, DeploymentSpec, SmokeRequest
from muster.core.errors import BackendError, Conflict, Corrupt, MusterError, NotFound, SpecError
from muster.core.wire import dumps
from muster.volumes.protocols import LocalStore

_SPOILED = Notes(
    last=1_000_000
)  # of a route whose notes cannot be read: every revision there may be is deleted


class ClusterPlatform:
    """Implements :class:`muster.backends.releases.platform.Platform` in one namespace. Safe to share between threads.

    Counts of a revision only grow as long as the same object is asked for them.

    :param store: opens the store that the versions are in; called when it is needed.
    :param open_spool: makes the folder on the claim where a deployment's pods keep requests, or refuses it.
    :param now: seconds since the epoch.
    """

    def __init__(
        self,
        client: Client,
        *,
        site: ClusterSite,
        store: Callable[[], LocalStore],
        open_spool: Callable[[str], None],
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        quick = client.patient(QUICK_SECONDS)  # a driver asks again by itself
        self._client = quick
        self._site = site
        self._store = store
        self._open_spool = open_spool
        self._survey = Survey(client, site)
        self._now = now
        self._sleep = sleep
        self._routes = Routes(quick, site, clock=now, sleep=sleep)
        self._revisions = ClusterRevisions(quick, site, self._survey, maker=client, now=now, sleep=sleep)
        self._replicas = Replicas(quick)
        self._remembered: dict[str, Document] | None = (
            None  # each route, where this process keeps deployments
        )
        self._tokens: dict[str, Tokens] = {}
        page = site.gateway_metrics
        self._counters = Counters(self._replicas, Gateway(page, namespace=site.namespace) if page else None)

    @property
    def limits(self) -> Limits:
        """What can be deployed here: without a Gateway traffic only moves as a whole."""
        only_whole = (
            f"namespace {self._site.namespace} is served through no Gateway, so that a deployment's Service "
            "points at one revision: name one (gateway, serving_url) where the cluster is written down"
        )
        no_host = (
            f"the paths of gRPC name no deployment, and serving_url, {self._site.serving_url!r}, gives all deployments one host: give each a "
            "host of its own there, such as http://{name}.models.example.com"
        )
        return Limits(
            place="on this cluster",
            servers=platform_of(self._site).servers,
            only_whole="" if self._site.gateway else only_whole,
            history=HISTORY,
            shared=True,
            no_grpc="" if self._site.separate_hosts or not self._site.gateway else no_host,
        )

    def names(self) -> list[str]:
        """Return the name of every deployment, sorted."""
        return self._routes.names()

    def load(self, names: Collection[str] | None = None) -> Mapping[str, Route | Corrupt]:
        """Return the routes of these deployments, or of all, by name, with one request; leave out what does not exist.

        :raises BackendError: an object of that name is not muster's; :raises SpecError: there is no Gateway API.
        """
        if names is None or len(names) != 1:
            return self._routes.all(names)
        (name,) = names
        try:
            route = self._routes.find(name)
        except Corrupt as error:
            return {name: error}
        except NotServed:
            check_platform(self._client, self._site, self._survey.cluster())  # it says what to install
            raise
        return {} if route is None else {name: route}

    def blank(self, name: str) -> Route:
        """Return a route for a new deployment; if its route was deleted, no revision that is left gives away its name.

        :raises SpecError: it is served by a route of the other kind, or the cluster lacks what serving needs.
        """
        check_platform(self._client, self._site, self._survey.cluster())
        self._routes.check_only(name)
        return Route(name=name, made=self._revisions.newest(name))

    def admit(self, book: Route, entry: BookEntry) -> None:
        """Refuse a revision that can never run here. Nothing is made.

        :raises SpecError: the cluster lacks what serving needs, or refuses the revision's object.
        :raises NotFound: the store lacks its image.
        """
        spec = entry.spec
        names.route_name(book.name)
        self._site.image(spec.image, spec.image_digest)
        if spec.workers:
            self._site.image(spec.workers.image, spec.workers.image_digest)
        _check_server(spec)
        archive()
        check_platform(self._client, self._site, self._survey.cluster())
        for digest in spec.image_digests:
            self._store().code(digest)  # without its lock its image cannot have been built
        self._revisions.rehearse(entry)
        if spec.log:
            self._open_spool(spec.name)  # an empty folder is left where the release ends here

    def save(self, book: Route, *, in_force: bool = False) -> Route:
        """Write a route as it was when it was read, in one step.

        :param in_force: return when the Gateway has read it, which it follows within the site's `gateway_seconds`.
        """
        written = self._routes.write(book)
        if in_force:
            self._routes.await_taken_up(book.name)
        return written

    def bring_up(self, book: Route, entry: BookEntry) -> None:  # noqa: ARG002 its entry says all
        """Make the objects of a revision, as far as they do not exist."""
        self._revisions.make(entry)

    def clear(self, name: str) -> Route | None:
        """Delete the revisions that are over, once the Gateway sends no request to them."""
        if self._routes.find(name) is None:
            return None
        route = self._let_go(name)
        self._revisions.delete(name, upto=route.made, but=[one.name for one in route.live])
        return route

    def retire(self, name: str, unpin: Callable[[Iterable[str]], None]) -> None:
        """Delete a deployment, and return when nothing of it runs. Idempotent.

        Users are sent nowhere first, and the route goes last: if this is interrupted, it is still there to be
        retired. A route whose notes cannot be read goes as well, with every object that has its labels.
        """
        while (route := self._routes.find(name, spoiled=_SPOILED)) is not None:
            try:
                if route.shares or route.foreign or route.release:
                    self._routes.write(settle(route, now=self._now()))
                    route = self._let_go(name)
                served = live_models(route) | past_models(route) | self._revisions.models(name)
                self._revisions.delete(name, upto=route.made)
                self._revisions.await_gone(name)
                unpin(served)
                self._routes.delete(route)
            except Conflict:  # a release was begun meanwhile: that goes, too
                continue

    def observe(self, books: Sequence[Route], *, counts: bool = False) -> list[Observed]:
        """Report what there is of these deployments: four lists however many they are, then each replica's counters."""
        seen = self._revisions.look(books)
        pages: Sequence[MetricsPage] | None = None
        if counts:
            pods = [pod for route in books for pod in self._revisions.pods_seen(route, seen)]
            pages = if_known(lambda: self._counters.pages(pods))
        lacking = self._revisions.lacking(books) if self._remembered is not None else []
        return [self._observed(route, seen, pages, lacking) for route in books]

    def counts(self, book: Route) -> Mapping[str, Counts]:
        """Return what each revision answered, with what the Gateway answered in its place, if the site says where to read it.

        :raises BackendError: the Gateway's counts cannot be had.
        """
        return self._counters.counted(book, self._counters.pages(self._revisions.pods(book.name)))

    def ask(self, book: Route, entry: BookEntry, request: SmokeRequest) -> tuple[Answer, ...]:
        """Send one real request to every replica of a revision, past the route, not counted."""
        pods: Sequence[Document] = self._revisions.answering(book.name, entry.name)
        return self._replicas.ask(pods, deployment=book.name, revision=entry.name, request=request)

    def announce(self, name: str, message: str, *, mended: bool = False) -> None:
        """Make an Event of its route: ``kubectl get events``, ``kubectl describe``, and what forwards them."""
        self._routes.announce(name, message, mended=mended)

    def pause(self, name: str, why: str) -> None:
        """Write down in an annotation of its route that it is left as it is, or is not."""
        self._routes.pause(name, why)

    def restore(self) -> Iterator[tuple[str, str]]:
        """Make each route again that was deleted while its revisions stand, as it was at the look before.

        A retirement deletes the revisions before the route. A deleted route's client tokens are made again with it.
        A deployment is remembered while its route or a revision of it stands.

        :raises BackendError: some of them could not be made again; the others were.
        """
        there = self._routes.documents()  # before the revisions: what is being retired has lost them by then
        standing = self._revisions.remember()
        kept = self._remembered = self._remembered or {}
        wrong: list[str] = []
        for name in sorted(kept.keys() - there.keys()):
            if name not in standing:
                del kept[name]
            elif names.PAUSED not in kept[name]["metadata"]["annotations"]:
                # another process was first, or what was deleted is still there
                with _noting(wrong, name), suppress(Conflict):
                    there[name] = self._client.create(kept[name])
                    yield name, "its route was deleted outside muster, and is made again as it was seen last"
        live: dict[str, set[str]] = {}
        for name, document in there.items():
            try:
                route = read_route(document, name=name, site=self._site)
            except Corrupt:  # what is remembered may be what it is put back from
                continue
            live[name] = {entry.name for entry in route.live}
            if route.paused or not route.drifted or name not in kept:
                kept[name] = restored(document)
            if route.paused:
                self._tokens.pop(name, None)  # a token may be ended before it is kept again
            elif any(entry.spec.tokens for entry in route.live):
                with _noting(wrong, name):
                    yield from self._restore_tokens(name, document)
        self._tokens = {name: tokens for name, tokens in self._tokens.items() if name in kept}
        self._revisions.forget(
            lambda name, revision: name not in kept or revision not in live.get(name, {revision})
        )
        if wrong:
            raise BackendError("; ".join(wrong))

    def _restore_tokens(self, name: str, route: Document) -> Iterator[tuple[str, str]]:
        """Make a deployment's tokens again that were deleted. Those that a person ended are gone from what is there."""
        last = self._tokens.get(name)
        if self._routes.has_tokens(name, route):
            self._tokens[name] = self._routes.tokens(name)
        elif last is not None:
            again = replace(last, writes=last.writes + 1)
            with suppress(Conflict, NotFound):  # what went with an earlier route is still there
                self._tokens[name] = self._routes.change_tokens(
                    name, lambda now: again if now == Tokens() else now
                )
                yield name, "the tokens of its clients were deleted outside muster, and are made again"

    def tokens(self, name: str) -> Tokens:
        """Return the tokens of a deployment's clients."""
        return self._routes.tokens(name)

    def change_tokens(self, name: str, change: Callable[[Tokens], Tokens]) -> Tokens:
        """Change them, and tell each replica; one that cannot be reached learns of it from its kubelet within two minutes."""
        after = self._routes.change_tokens(name, change)
        self._replicas.tell(self._revisions.pods(name), dumps(after))
        return after

    def repair(self, book: Route) -> Iterator[str]:
        """Make the missing objects of a deployment, and write its route as muster wrote it last; tell each step.

        The route only once the revisions that gain a share by that answer: until then users are served as they are.

        :raises BackendError: something of what was deleted still exists.
        """
        seen, kind = self._revisions.look([book]), self._revisions.kind
        missing = self._revisions.missing(book, seen)
        for entry in missing:
            if self._make(entry):
                yield f"{entry.name}: its {kind} is made again"
        for name, what in self._revisions.edited(book, seen).items():
            self._revisions.put_back(book, name, seen)
            yield f"{name}: its {kind} is written as muster made it ({what})"
        for (_, name), what in self._revisions.lacking([book]):
            lacks = book.entry(name)
            if lacks is not None and lacks not in missing and self._make(lacks):
                yield f"{name}: its {what} is made again"
        if not book.drifted:
            return
        given = book.shares if book.given is None else book.given
        shares = {name: percent for name, percent in given.items() if book.entry(name)}
        if not self._answer(book, shares):
            return
        moved = book.moved if shares == dict(book.shares) else self._now()
        self._routes.write(replace(book, shares=shares, moved=moved))
        self._routes.await_taken_up(book.name)
        yield f"its route is written as muster left it: {shared(shares)}"

    def _make(self, entry: BookEntry) -> bool:
        """Make what there is not of a revision, and take it away again where another process has ended the revision meanwhile."""
        done = self._revisions.make(entry)
        now = self._routes.find(entry.spec.name)
        live = [one.name for one in now.live] if now else []
        if entry.name not in live:
            self._revisions.delete(entry.spec.name, upto=number(entry.name), but=live)
        return done

    def _answer(self, route: Route, shares: Mapping[str, int]) -> bool:
        """Whether every revision answers that gains a share by these."""
        silent = {one.name for one in self._revisions.statuses(route) if not one.ready}
        return not any(
            percent and not route.shares.get(name) and name in silent for name, percent in shares.items()
        )

    def _observed(
        self,
        route: Route,
        seen: RevisionsSeen,
        pages: Sequence[MetricsPage] | None,
        lacking: Sequence[tuple[tuple[str, str], str]],
    ) -> Observed:
        revisions = self._revisions.statuses(route, seen)
        ready = {one.name for one in revisions if one.ready}
        kind, outside = self._revisions.kind, "outside muster"
        missing = [entry.name for entry in self._revisions.missing(route, seen)]
        gone = [
            *(f"{name}'s {kind} is gone: it was deleted {outside}" for name in missing),
            *(
                f"{name}'s {kind} was edited {outside}: {what}"
                for name, what in self._revisions.edited(route, seen).items()
            ),
            *(
                f"{name}'s {what} is gone: it was deleted {outside}"
                for (deployment, name), what in lacking
                if deployment == route.name and name not in missing
            ),
        ]
        return Observed(
            url=self._url(route.name),
            grpc=self._grpc(route),
            answers=route.champion in ready and not (route.unsettled or route.lost),
            revisions=revisions,
            trouble=route.unsettled or route.broken,
            drift=drift(route, gone),
            paused=route.paused,
            counts=None if pages is None else if_known(lambda: self._counters.counted(route, pages)),
        )

    def _let_go(self, name: str) -> Route:
        """Return the route when the Gateway sends no request any more to revisions without a share.

        :raises Unreachable: it does not say so.
        """
        route = self._routes.await_taken_up(name)
        delay = self._site.gateway_seconds
        self._sleep(min(delay, max(0.0, route.moved + delay - self._now())))  # clocks differ
        return route

    def _grpc(self, route: Route) -> str:
        if not route.leads_grpc:
            return ""
        if not self._site.gateway:
            return f"{names.route_name(route.name)}.{self._site.namespace}:{GRPC_PORT}"
        parts = urlsplit(self._site.url(route.name))
        return f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"

    def _url(self, name: str) -> str:
        if self._site.gateway:
            return self._site.url(name)
        return f"http://{names.route_name(name)}.{self._site.namespace}"


@contextmanager
def _noting(wrong: list[str], name: str) -> Iterator[None]:
    """Note what goes wrong with one deployment, so that it stops no other."""
    try:
        yield
    except (MusterError, OSError) as error:
        wrong.append(f"{name}: {error}")


def _check_server(spec: DeploymentSpec) -> None:
    """Refuse what the front alone does of a server that has another one. :raises SpecError: it is asked for."""
    asked = {
        "stream": spec.workers and spec.workers.stream,
        "workers": spec.workers,
        "tokens or limits": spec.guarded,
        "log": spec.log,
        "grpc": spec.grpc,
    }
    for what in (name for name, wanted in asked.items() if wanted and spec.server == "seldon"):
        raise SpecError(f"{what}: that needs server 'serve' or 'kserve', found 'seldon'")
