"""The objects of a deployment's revisions: made, looked at, deleted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import TypeAlias

from muster.backends.kubernetes.api import kinds
from muster.backends.kubernetes.api.client import Client
from muster.backends.kubernetes.api.kinds import Document, Kind, owned_by
from muster.backends.kubernetes.cluster.discovery import Survey
from muster.backends.kubernetes.cluster.facts import holds
from muster.backends.kubernetes.labels import selector
from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.kinds import (
    ServingPlatform,
    card_classes,
    edited,
    platform_of,
    restored,
)
from muster.backends.kubernetes.serving.route import Route
from muster.backends.kubernetes.serving.server import Server, code, grpc_service
from muster.backends.kubernetes.serving.status import RevisionObjects, revision_status
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.releases.book import BookEntry, number
from muster.backends.releases.tokens import new_token
from muster.core.deployment import Revision
from muster.core.errors import BackendError, Conflict, Forbidden
from muster.core.patience import Patience

_SERVICE = "kubernetes.io/service-name"  # Kubernetes labels an EndpointSlice with it
_GONE_SECONDS = 60.0  # beside the grace period of the pods
_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 0.2, 2.0
_OWNED_SECONDS = 30.0  # until a garbage collector has taken away what went with an object that was deleted


Name = tuple[str, str]
"""A deployment and a revision of it."""


RevisionsSeen: TypeAlias = Mapping[Name, RevisionObjects]
"""What there was of some revisions at one look."""


@dataclass(eq=False)
class ClusterRevisions:
    """The revisions of one namespace's deployments. Safe to share between threads.

    :param maker: what makes them: a webhook of the platform's may be away for as long as it takes to start.
    :param now: seconds since the epoch.
    """

    client: Client
    site: ClusterSite
    survey: Survey
    _: KW_ONLY
    maker: Client
    now: Callable[[], float]
    sleep: Callable[[float], None]
    remembered: Mapping[Name, Document] = field(default_factory=dict)
    """Each revision's object as it was seen last, in a process that keeps deployments: what was deleted is made like it."""

    @property
    def _platform(self) -> ServingPlatform:
        return platform_of(self.site)

    def rehearse(self, live: BookEntry) -> None:
        """Have a revision checked by the API server and the platform's webhooks, and make nothing.

        :raises SpecError: one of them refuses it. :raises Forbidden: this account may not make what it needs.
        """
        server = self._server(live)
        documents = [self._platform.manifest(server)]
        if self._has_grpc_service(live):
            documents.append(grpc_service(server))
        for document in documents:
            with suppress(Conflict):  # it is there
                self.maker.create(document, dry_run=True)

    def make(self, live: BookEntry) -> bool:
        """Make what there is not of a revision: its object, the code that its pods wait for, a Service of gRPC; whether any was.

        :raises BackendError: what was there of it is being deleted, or another object has a name that it needs.
        """
        server = self._server(live)
        document = self.remembered.get((live.spec.name, live.name)) or self._platform.manifest(server)
        try:
            made = self.maker.create(document)
        except Conflict:
            made, anew = self._there(server, document), False
        else:
            anew = True
        done = self._make_owned(kinds.CONFIG_MAP, owned_by(code(server), made), anew=anew)
        if self._has_grpc_service(live):
            done |= self._make_owned(kinds.SERVICE, owned_by(grpc_service(server), made), anew=anew)
        return anew or done

    def _make_owned(self, kind: Kind, document: Document, *, anew: bool) -> bool:
        """Make what goes with a revision's one object; whether it was not there.

        :param anew: its owner was made just now, so what is there by that name may go with one that was deleted.
        :raises BackendError: another object has that name.
        """
        name = document["metadata"]["name"]
        deadline = self.now() + (_OWNED_SECONDS if anew else 0.0)
        while True:
            try:
                self.maker.create(document)
            except Conflict:
                found = self.client.get(kind, name, namespace=self.site.namespace)
                if found is not None and _owners(found) == _owners(document):
                    return False
                if found is not None and self.now() >= deadline:
                    raise BackendError(
                        f"{kind.name} {name} in namespace {self.site.namespace} is in the way: the revision needs that name for one of its "
                        "own; delete it, or deploy under another name"
                    ) from None
                self.sleep(_LOOK_SECONDS)
            else:
                return True

    def _has_grpc_service(self, live: BookEntry) -> bool:
        return bool(live.spec.grpc and self.site.gateway)

    def lacking(self, routes: Collection[Route]) -> list[tuple[Name, str]]:
        """Return what goes with the named revisions of some routes and is gone; nothing where this account may not list it."""
        if not routes:
            return []
        place = self.site.namespace
        wanted = f"{names.DEPLOYMENT} in ({','.join(sorted(route.name for route in routes))})"
        try:
            there = {
                (kind, each["metadata"]["name"])
                for kind in (kinds.CONFIG_MAP, kinds.SERVICE)
                for each in self.client.find(kind, namespace=place, labels=wanted, heads=True)
            }
        except Forbidden:  # the role of a release before
            return []
        found: list[tuple[Name, str]] = []
        for route in routes:
            for live in _named(route):
                called = names.revision_name(route.name, live.name, namespace=place)
                needed = {"ConfigMap": (kinds.CONFIG_MAP, called)}
                if self._has_grpc_service(live):
                    needed["Service for gRPC"] = (kinds.SERVICE, names.grpc_service_name(called))
                found += [((route.name, live.name), what) for what, one in needed.items() if one not in there]
        return found

    @property
    def kind(self) -> str:
        """What the platform makes a revision of: ``InferenceService``."""
        return self._platform.kind.name

    def missing(self, route: Route, seen: RevisionsSeen) -> list[BookEntry]:
        """Return the revisions that a route gives traffic to or keeps, and of which the one object is gone."""
        return [live for live in _named(route) if seen[route.name, live.name].service is None]

    def edited(self, route: Route, seen: RevisionsSeen) -> dict[str, str]:
        """Return what of the one object of each named revision is not as muster made it, by the revision."""
        objects = {live.name: seen[route.name, live.name].service for live in _named(route)}
        found = {name: edited(service) for name, service in objects.items() if service}
        return {name: what for name, what in found.items() if what}

    def put_back(self, route: Route, name: str, seen: RevisionsSeen) -> None:
        """Write an edited object as it was made; its platform rolls its pods. :raises Conflict: it has changed since."""
        service = seen[route.name, name].service
        assert service is not None
        kind, version = self._platform.kind, service["metadata"]["resourceVersion"]
        change = {"metadata": {"resourceVersion": version}, "spec": restored(service)["spec"]}
        self.maker.patch(kind, service["metadata"]["name"], change, namespace=self.site.namespace)

    def remember(self) -> set[str]:
        """Store a copy of each revision's object; return the deployments that have one that stays."""
        found = self.client.find(self._platform.kind, namespace=self.site.namespace, labels=names.REVISION)
        standing = [each for each in found if not each["metadata"].get("deletionTimestamp")]
        of = {_name_of(each): restored(each) for each in standing}
        self.remembered = {**self.remembered, **of}
        return {deployment for deployment, _ in of}

    def forget(self, over: Callable[[str, str], bool]) -> None:
        """Forget the revisions that are over. :param over: takes a deployment and a revision."""
        self.remembered = {name: each for name, each in self.remembered.items() if not over(*name)}

    def look(self, routes: Iterable[Route]) -> RevisionsSeen:
        """Return the objects of every revision of some routes."""
        kind, place = self._platform.kind, self.site.namespace
        revisions = [(route.name, live.name) for route in routes for live in route.live]
        services = {
            names.service_name(names.revision_name(*each, namespace=place)): each for each in revisions
        }
        if not services:
            return {}
        deployments = sorted({deployment for deployment, _ in revisions})
        ours, theirs = (
            f"{label} in ({','.join(wanted)})"
            for label, wanted in ((names.DEPLOYMENT, deployments), (_SERVICE, services))
        )
        wanted = {kinds.ENDPOINT_SLICE: theirs, kind: ours, kinds.DEPLOYMENT: ours, kinds.POD: ours}
        with ThreadPoolExecutor(len(wanted)) as pool:
            lists = pool.map(
                lambda each: self.client.find(each, namespace=place, labels=wanted[each]), wanted
            )
            listed = dict(zip(wanted, lists, strict=True))
        found: dict[Name, dict[Kind, list[Document]]] = {each: {} for each in revisions}
        for each, documents in listed.items():
            for document in documents:
                labels = document["metadata"]["labels"]
                of = services[labels[_SERVICE]] if each is kinds.ENDPOINT_SLICE else _name_of(document)
                if of in found:
                    found[of].setdefault(each, []).append(document)
        return {name: _objects(kind, own) for name, own in found.items()}

    def statuses(self, route: Route, seen: RevisionsSeen | None = None) -> tuple[Revision, ...]:
        """Return the status of every revision of a route, newest first. :param seen: by a look just now."""
        seen, now, release = seen or self.look([route]), self.now(), route.release
        taken_back = release.revision if release and release.failed else None
        return tuple(
            revision_status(
                live,
                seen[route.name, live.name],
                platform=self._platform,
                percent=route.shares.get(live.name),
                since=route.moved,
                now=now,
                taken_back=live.name == taken_back,
            )
            for live in route.live
        )

    def pods(self, name: str) -> list[Document]:
        """Return the pods of a deployment that can be asked and are not on their way out."""
        return [pod for pod in self._pods(names.of_deployment(name)) if _can_be_asked(pod)]

    def answering(self, name: str, revision: str) -> list[Document]:
        """Return the pods of a revision that users are sent to, or will be: one that comes up is not among them."""
        found = self._pods(names.of_revision(name, revision))
        return [pod for pod in found if _can_be_asked(pod) and holds(pod, "Ready")]

    def _pods(self, wanted: Mapping[str, str]) -> tuple[Document, ...]:
        return self.client.find(kinds.POD, namespace=self.site.namespace, labels=selector(wanted))

    def pods_seen(self, route: Route, seen: RevisionsSeen) -> list[Document]:
        """Return the pods of a route's revisions that can be asked, as a look found them."""
        there = (pod for live in route.live for pod in seen[route.name, live.name].pods)
        return [pod for pod in there if _can_be_asked(pod)]

    def delete(self, name: str, *, upto: int, but: Collection[str] = ()) -> None:
        """Begin to delete a deployment's revisions; what they own goes with them.

        :param upto: the number of the newest one to delete: newer revisions, begun meanwhile, stay.
        :param but: these stay.
        """
        kind, place = self._platform.kind, self.site.namespace
        for found in self._left(kind, name):
            metadata = found["metadata"]
            revision = metadata["labels"].get(names.REVISION, "")
            if revision not in but and number(revision) <= upto:
                self.client.delete(kind, metadata["name"], namespace=place, uid=metadata["uid"])

    def newest(self, name: str) -> int:
        """Return the number of the newest revision that is there, also where no route tells of it; 0 where none is."""
        heads = (each["metadata"]["labels"] for each in self._left(self._platform.kind, name))
        return max((number(labels.get(names.REVISION, "")) for labels in heads), default=0)

    def models(self, name: str) -> set[str]:
        """Return the addresses of the versions that a deployment's revisions were made of."""
        heads = (each["metadata"].get("annotations") or {} for each in self._left(self._platform.kind, name))
        return {str(notes[names.MODEL]) for notes in heads if names.MODEL in notes}

    def await_gone(self, name: str) -> None:
        """Return when no object of a revision and no pod of a deployment is left. :raises BackendError: one does not end."""
        patience = Patience(
            _GONE_SECONDS,
            first=_LOOK_SECONDS,
            longest=_LONGEST_LOOK_SECONDS,
            clock=self.now,
            sleep=self.sleep,
        )
        while left := [*self._left(self._platform.kind, name), *self._left(kinds.POD, name)]:
            graces = (_GONE_SECONDS + _grace_seconds(each) for each in left)
            patience.seconds = max(patience.seconds, *graces)
            if not patience.wait():
                shown = ", ".join(each["metadata"]["name"] for each in left[:3])
                raise BackendError(
                    f"deployment {name}: after {patience.seconds:g} s there still are {shown}: "
                    f"is {self._platform.title}'s controller running? see `kubectl describe pod`, then retire it again"
                )

    def _left(self, kind: Kind, name: str) -> tuple[Document, ...]:
        wanted = selector(names.of_deployment(name))
        return self.client.find(kind, namespace=self.site.namespace, labels=wanted, heads=True)

    def _server(self, live: BookEntry) -> Server:
        classes = card_classes(self.survey.cluster())
        key = new_token() if live.spec.guarded else ""  # its pods tell it again: see .replicas
        return Server(spec=live.spec, revision=live.name, site=self.site, gpu_classes=classes, key=key)

    def _there(self, server: Server, document: Document) -> Document:
        """Return the object that is there. :raises BackendError: it is not what is wanted, or goes."""
        place = self.site.namespace
        found = self.client.get(self._platform.kind, server.name, namespace=place)
        metadata = found["metadata"] if found else {}
        same = (metadata.get("annotations") or {}).get(names.SPEC) == names.spec_digest(server.spec)
        if found is None or metadata.get("deletionTimestamp") or not same:
            raise BackendError(
                f"revision {server.revision} of {server.spec.name}: another {self._platform.kind.name} {server.name} is in "
                "the way, of a deployment that was retired: see that it is gone, then deploy it again"
            )
        return {**found, "apiVersion": document["apiVersion"], "kind": document["kind"]}


def _can_be_asked(pod: Document) -> bool:
    """Whether a pod has an address, and is not on its way out."""
    return not pod["metadata"].get("deletionTimestamp") and bool((pod.get("status") or {}).get("podIP"))


def _name_of(document: Document) -> Name:
    labels = document["metadata"]["labels"]
    return labels.get(names.DEPLOYMENT, ""), labels.get(names.REVISION, "")


def _named(route: Route) -> list[BookEntry]:
    """The revisions that a route gives traffic to or keeps."""
    named = {*route.shares, *(route.given or ())}
    return [live for live in route.live if live.name in named]


def _objects(kind: Kind, found: Mapping[Kind, list[Document]]) -> RevisionObjects:
    return RevisionObjects(
        service=_only(found.get(kind)),
        workload=_only(found.get(kinds.DEPLOYMENT)),
        slices=tuple(found.get(kinds.ENDPOINT_SLICE, ())),
        pods=tuple(found.get(kinds.POD, ())),
    )


def _only(documents: list[Document] | None) -> Document | None:
    """The one that is to stay: a platform makes one of each kind."""
    return next((each for each in documents or () if not each["metadata"].get("deletionTimestamp")), None)


def _owners(document: Document) -> list[str]:
    """The uids of the objects with which one is deleted."""
    return [each["uid"] for each in document["metadata"].get("ownerReferences") or ()]


def _grace_seconds(document: Document) -> float:
    """What a pod that is being deleted gets to end; other objects have no such time."""
    return float(document["metadata"].get("deletionGracePeriodSeconds") or 0.0)
