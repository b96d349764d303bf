"""The route of a deployment: the shares of the traffic, and the book of its revisions in an annotation.

With a Gateway it is an HTTPRoute with a weight for each revision; without one a Service that points at one
revision's pods. Both are written whole, by server-side apply, and only as they were when they were read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from muster.backends.kubernetes.api.kinds import GATEWAY, HTTP_ROUTE, SERVICE, Document, Kind
from muster.backends.kubernetes.cluster.facts import condition
from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.kinds import platform_of
from muster.backends.kubernetes.serving.server import GRPC_PORT, PORT, grpc_port
from muster.backends.kubernetes.site import ClusterSite
from muster.backends.releases.book import Book, BookEntry
from muster.core.deployment import Release, Revision
from muster.core.errors import BackendError, Corrupt, SpecError
from muster.core.text import shortened
from muster.core.wire import dumps, loads

HISTORY = 20
LARGEST_BYTES = 200_000  # an object's annotations hold 256 KiB, and others have some, too

_SERVICE_PORT = 80
_NO_REVISION = "none"  # the revision that a Service points at before there is one
_TOKEN_DIGITS = 32


@dataclass(frozen=True, kw_only=True)
class Notes:
    """The annotation of a route: what its book holds beside the shares.

    :param last: the number of the newest revision that ever existed.
    :param writes: how often muster wrote the route, so that no two states of it are equal.
    :param moved: when shares last changed, in seconds since the epoch.
    :param live: newest first.
    :param over: newest first, at most :data:`HISTORY`.
    :param kept: revisions that stay for a rollback without a share, for a route that cannot name them itself.
    """

    last: int = 0
    writes: int = 0
    moved: float = 0.0
    live: tuple[BookEntry, ...] = ()
    over: tuple[Revision, ...] = ()
    kept: tuple[str, ...] = ()
    release: Release | None = None


@dataclass(frozen=True, kw_only=True)
class Route(Book):
    """A book as a route of the cluster holds it.

    :param writes: how often muster wrote it.
    :param foreign: Services that have traffic by an edit of the route, and are not revisions of the deployment.
    :param lost: which edit may keep users away; empty where there is none.
    :param beside: which edits keep no user away by themselves.
    :param given: the shares as muster wrote them last; None where no release of muster wrote them down.
    :param paused: who wants it left as it is, and why; empty where muster keeps it.
    :param version: of the object; None where there is none yet.
    :param unsettled: why it may not be in force yet; empty where the Gateway has taken it up.
    :param broken: what of it the Gateway cannot do.
    """

    writes: int = 0
    foreign: tuple[str, ...] = ()
    lost: str = ""
    beside: tuple[str, ...] = ()
    given: Mapping[str, int] | None = None
    paused: str = ""
    version: str | None = None
    unsettled: str = ""
    broken: str = ""

    @property
    def leads_grpc(self) -> bool:
        """Whether the revision that leads answers gRPC."""
        leads = self.champion and self.entry(self.champion)
        return bool(leads and leads.spec.grpc)

    @property
    def intact(self) -> bool:
        """Whether no edit may keep users away."""
        return not self.lost

    @property
    def edited(self) -> bool:
        """Whether an edit outside muster changed the shares, or which revisions are kept."""
        return self.given is not None and dict(self.given) != dict(self.shares)

    @property
    def drifted(self) -> bool:
        """Whether anything of it is not as muster writes it."""
        return bool(self.lost or self.foreign or self.beside or self.edited)


def drift(route: Route, gone: Collection[str]) -> str:
    """Return what was edited or deleted outside muster, and the command that restores it; empty if nothing was.

    :param gone: what was deleted or edited of its revisions' objects.
    """
    found = [*_edits(route), *gone]
    if not found:
        return ""
    if route.lost:
        found[0] += (
            ". That was written outside muster, or by muster with another gateway, serving_url, serving or release"
        )
    if_right = "if these are right here, " if route.lost else ""
    return f"{'; '.join(found)}; {if_right}`muster deployments repair {route.name}` brings it back"


def _edits(route: Route) -> Iterator[str]:
    if route.lost:
        yield f"users may not reach it: in its route {route.lost}"
    if route.foreign:
        yield f"the route also sends users to {', '.join(route.foreign)}, which is no revision: that was written outside muster"
    elif route.edited and not route.lost:
        yield f"its route was edited outside muster: {shared(route.shares)}, where muster wrote {shared(route.given or {})}"
    if route.beside:
        yield f"its route is not as muster writes it here in {', '.join(route.beside)}"


def shared(shares: Mapping[str, int]) -> str:
    """Write shares for people: ``r1 90 %, r2 10 %, r0 kept``."""
    ranked = sorted(shares.items(), key=lambda share: -share[1])
    return (
        ", ".join(f"{name} {percent} %" if percent else f"{name} kept" for name, percent in ranked)
        or "no revision"
    )


def route_kind(site: ClusterSite) -> Kind:
    """What a route is here."""
    return HTTP_ROUTE if site.gateway else SERVICE


def other_kind(site: ClusterSite) -> Kind:
    """What a route would be with a Gateway where there is none here, and the other way round."""
    return SERVICE if site.gateway else HTTP_ROUTE


def write_route(route: Route, site: ClusterSite) -> Document:
    """Return the object of a route.

    :raises SpecError: it would be too large.
    """
    metadata: Document = {
        "name": names.route_name(route.name),
        "namespace": site.namespace,
        "labels": names.of_deployment(route.name),
        "annotations": {
            names.NOTES: _write_notes(route),
            names.SHARES: json.dumps(dict(route.shares), sort_keys=True, separators=(",", ":")),
        },
    }
    if route.version is not None:
        metadata["resourceVersion"] = route.version
    return route_kind(site).document(metadata, spec=_spec(route, site))


def read_route(document: Document, *, name: str, site: ClusterSite, spoiled: Notes | None = None) -> Route:
    """Read the object of a route.

    :param spoiled: the notes to assume where they cannot be read.
    :raises BackendError: it is not muster's, or of another deployment; :raises Corrupt: its notes cannot be read.
    """
    metadata = document["metadata"]
    shown = f"{document['kind']} {metadata['name']} in namespace {site.namespace}"
    whose = (metadata.get("labels") or {}).get(names.DEPLOYMENT)
    if whose != name:
        of = f"deployment {whose!r}" if whose else "no deployment that muster knows"
        raise BackendError(
            f"{shown} belongs to {of}, and deployment {name!r} needs that name: take another name"
        )
    try:
        notes = _read_notes((metadata.get("annotations") or {}).get(names.NOTES), route=shown)
    except Corrupt:
        if spoiled is None:
            raise
        notes = spoiled
    if site.gateway:
        shares, foreign = _weights(document, name, notes, site)
    else:
        shares, foreign = _selected(document, notes), ()
    unsettled, broken = _reported(document, site) if site.gateway else ("", "")
    route = Route(
        name=name,
        made=notes.last,
        writes=notes.writes,
        live=notes.live,
        over=notes.over,
        release=notes.release,
        moved=notes.moved,
        shares=shares,
        foreign=foreign,
        given=_given((metadata.get("annotations") or {}).get(names.SHARES)),
        paused=str((metadata.get("annotations") or {}).get(names.PAUSED) or ""),
        version=metadata["resourceVersion"],
        token=_token(document),
        unsettled=unsettled,
        broken=broken,
    )
    written, found = _spec(route, site), document["spec"]
    beside = _added(written, found) if site.gateway else ()  # a Service may have ports of others
    return replace(route, lost=_edited(written, found), beside=beside)


def _write_notes(route: Route) -> str:
    notes = Notes(
        last=route.made,
        writes=route.writes,
        moved=route.moved,
        live=route.live,
        over=route.over,
        kept=tuple(sorted(route.kept)),
        release=route.release,
    )
    text = dumps(notes)
    if len(text.encode()) > LARGEST_BYTES:
        raise SpecError(
            f"the deployment's revisions are {len(text.encode()) >> 10} KiB as text, and a route remembers "
            f"{LARGEST_BYTES >> 10}: give fewer smoke requests, or fewer rows in them"
        )
    return text


def _read_notes(text: str | None, *, route: str) -> Notes:
    try:
        if text is None:
            raise SpecError("there are none")
        return loads(Notes, text)
    except SpecError as error:
        raise Corrupt(
            f"{route}: what muster remembers in its annotations cannot be read ({error}); users are served as before. "
            "Put it back if it was edited by hand; else retire the deployment and deploy it again"
        ) from error


def _given(text: str | None) -> dict[str, int] | None:
    """Read the shares that muster wrote down beside a route; None where it did not, or that was spoiled."""
    try:
        found = json.loads(text or "")
        return {str(name): int(percent) for name, percent in found.items()}
    except (ValueError, AttributeError, TypeError):
        return None


def _spec(route: Route, site: ClusterSite) -> Document:
    return _http(route, site) if site.gateway else _service(route)


def _http(route: Route, site: ClusterSite) -> Document:
    namespace, _, gateway = site.gateway.partition("/")
    hostname = site.hostname(route.name)
    parent = {"group": GATEWAY.group, "kind": GATEWAY.name, "namespace": namespace, "name": gateway}
    return {
        "parentRefs": [parent],
        "hostnames": [hostname] if hostname else [],  # empty is any, and is ours, too
        "rules": [
            {"matches": _matches(route.name), "backendRefs": _backends(route, site)},
            *([_grpc_rule(route, site)] if route.leads_grpc else []),
        ],
    }


def _grpc_rule(route: Route, site: ClusterSite) -> Document:
    """The rule of gRPC: a path of HTTP/2, in the same object, so that one write moves the shares of both.

    Its paths name no deployment, so the host does. A revision without gRPC has no part in it.
    """
    return {
        "matches": [{"path": {"type": "PathPrefix", "value": "/inference.GRPCInferenceService"}}],
        "backendRefs": [
            _backend(_grpc_service_of(route.name, entry.name, site), GRPC_PORT, route.shares[entry.name])
            for entry in sorted(route.live, key=lambda one: one.name)
            if entry.spec.grpc and entry.name in route.shares
        ],
    }


def _matches(deployment: str) -> list[Document]:
    """What users may ask for: predictions and what the model is, and no page of the server's own."""
    return [
        {"path": {"type": kind, "value": path}}
        for kind, path in (
            ("PathPrefix", f"/v2/models/{deployment}"),
            ("PathPrefix", f"/v1/models/{deployment}"),
            ("Exact", f"/v1/models/{deployment}:predict"),
        )
    ]


def _backends(route: Route, site: ClusterSite) -> list[Document]:
    port = platform_of(site).service_port
    return [
        _backend(_service_of(route.name, revision, site), port, percent)
        for revision, percent in sorted(route.shares.items())
    ]


def _backend(service: str, port: int, percent: int) -> Document:
    return {"group": "", "kind": "Service", "name": service, "port": port, "weight": percent}


def _grpc_service_of(deployment: str, revision: str, site: ClusterSite) -> str:
    return names.grpc_service_name(names.revision_name(deployment, revision, namespace=site.namespace))


def _service_of(deployment: str, revision: str, site: ClusterSite) -> str:
    return names.service_name(names.revision_name(deployment, revision, namespace=site.namespace))


def _weights(
    document: Document, name: str, notes: Notes, site: ClusterSite
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the shares that the weights mean, in percent of their sum, also where they were edited."""
    ours = {_service_of(name, one.name, site): one.name for one in notes.live}
    over_grpc = {_grpc_service_of(name, one.name, site) for one in notes.live}
    found: dict[str, int] = {}
    for rule in document["spec"].get("rules") or ():
        for backend in rule.get("backendRefs") or ():
            if backend["name"] in over_grpc:  # its shares are those of HTTP, written beside them
                continue
            found[backend["name"]] = found.get(backend["name"], 0) + int(backend.get("weight", 1))
    total = sum(found.values())
    shares = {
        ours[service]: round(100 * weight / total) if total else 0
        for service, weight in found.items()
        if service in ours
    }
    return shares, tuple(
        sorted(service for service, weight in found.items() if weight and service not in ours)
    )


def _service(route: Route) -> Document:
    revision = route.champion or _NO_REVISION
    return {
        "selector": names.of_revision(route.name, revision),
        "ports": [
            {"name": "http", "port": _SERVICE_PORT, "targetPort": PORT, "protocol": "TCP"},
            *([grpc_port()] if route.leads_grpc else []),
        ],
    }


def _selected(document: Document, notes: Notes) -> dict[str, int]:
    revision = str((document["spec"].get("selector") or {}).get(names.REVISION))
    shares = dict.fromkeys(notes.kept, 0)
    return {**shares, revision: 100} if any(one.name == revision for one in notes.live) else shares


def _token(document: Document) -> str:
    """Say what was decided, by us or others, in a word that no other state of the route has."""
    metadata = document["metadata"]
    decided = [metadata.get("uid"), (metadata.get("annotations") or {}).get(names.NOTES), document["spec"]]
    text = json.dumps(decided, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_TOKEN_DIGITS]


def _reported(document: Document, site: ClusterSite) -> tuple[str, str]:
    """Say why the Gateway does not do yet what the route says, and what it cannot do of it; each empty where all is well.

    What it reports has to be about the route as it is now: it is silent where its controller is down.
    """
    generation = document["metadata"].get("generation")
    for parent in (document.get("status") or {}).get("parents") or ():
        reference = parent.get("parentRef") or {}
        if f"{reference.get('namespace', site.namespace)}/{reference.get('name')}" != site.gateway:
            continue
        accepted, resolved = (condition({"status": parent}, kind) for kind in ("Accepted", "ResolvedRefs"))
        if accepted.get("observedGeneration") != generation:
            break
        if accepted.get("status") != "True":
            return f"Gateway {site.gateway} does not accept the route: {accepted.get('message')}", ""
        if resolved.get("status") == "False":
            return "", f"Gateway {site.gateway}: {resolved.get('reason')}: {resolved.get('message')}"
        return "", ""
    return f"Gateway {site.gateway} has not taken up the route as it is now: is its controller running?", ""


# What was changed of a route outside muster. The API server fills in what a route leaves open, today's fields and those of
# later releases. So what is there beside what was written is no edit by itself: only fields that are known to keep requests
# away, or to change them, are told. Weights are left out: they are read as shares.

_NARROWS = ("externalName", "headers", "method", "namespace", "port", "queryParams", "sectionName")
# Of a rule: who is served is served otherwise.
_BESIDE = ("filters", "retry", "sessionPersistence", "timeouts")
_DIVERTS = ("RequestRedirect", "URLRewrite")  # filters with which no request arrives as it was asked
_READ = "weight"
_MOST_CHARACTERS = 120


def _edited(written: Document, found: Document) -> str:
    """Say where a route's spec does not lead users as muster writes it; empty where it does.

    One for any host, or for ``*.example.com``, leads those there who ask for a host of these, too.
    """
    hosts = _lost_hosts(written.get("hostnames") or [], found.get("hostnames") or [])
    rest = {name: value for name, value in written.items() if name != "hostnames"}
    return hosts or _lost(rest, found, "spec")


def _added(written: Document, found: Document) -> tuple[str, ...]:
    """Name what of a route's spec is not as muster writes it, and does not keep users away by itself."""
    hosts = [set(each.get("hostnames") or ()) for each in (written, found)]
    rest = {name: value for name, value in written.items() if name != "hostnames"}
    return (*["spec.hostnames"] * (hosts[0] != hosts[1]), *_beside(rest, found, "spec"))


def _lost_hosts(written: list[str], found: list[str]) -> str:
    if not found or any(_covers(host, ours) for host in found for ours in written):
        return ""
    return f"spec.hostnames is {_shown(found)}, not {_shown(written)}"


def _covers(host: str, ours: str) -> bool:
    return host == ours or (host.startswith("*.") and ours.endswith(host[1:]))


def _lost(written: Any, found: Any, place: str) -> str:
    """Say what of `written` is not there; for a list, every item has to be, wherever it stands."""
    if isinstance(written, Mapping):
        if not isinstance(found, Mapping):
            return f"there is no {place}"
        inside = (
            _lost(value, found.get(name), f"{place}.{name}")
            for name, value in written.items()
            if name != _READ
        )
        return next(filter(None, inside), "") or _narrowed(written, found, place)
    if isinstance(written, list):
        return _lost_items(written, found or [], place)
    return "" if written == found else f"{place} is {_shown(found)}, not {_shown(written)}"


def _lost_items(written: list[Any], found: list[Any], place: str) -> str:
    if not written and found:
        return f"{place} is {_shown(found)}, and should be empty"
    for item in written:
        tries = [_lost(item, other, f"{place}[{at}]") for at, other in enumerate(found)]
        if all(tries):
            alone = len(written) == len(found) == 1
            return tries[0] if alone else f"{place} lacks {_shown(item)}"
    return ""


def _narrowed(written: Mapping[str, Any], found: Mapping[str, Any], place: str) -> str:
    for name in _NARROWS:
        if name not in written and found.get(name):
            return f"{place}.{name} is {_shown(found[name])}, and should not be there"
    if place.endswith("selector") and set(found) - set(written):
        return f"{place} is {_shown(found)}, not {_shown(written)}"
    diverting = [each["type"] for each in found.get("filters") or () if each.get("type") in _DIVERTS]
    return f"{place}.filters has {diverting[0]}, and should not be there" if diverting else ""


def _beside(written: Any, found: Any, place: str) -> Iterator[str]:
    if isinstance(written, Mapping) and isinstance(found, Mapping):
        for name, value in found.items():
            if name in written:
                yield from _beside(written[name], value, f"{place}.{name}")
            elif name in _BESIDE and value:
                yield f"{place}.{name}"
    elif isinstance(written, list) and isinstance(found, list):
        # Who gets traffic is told by name.
        if len(found) > len(written) and not place.endswith("backendRefs"):
            yield place
        for at, (one, other) in enumerate(zip(written, found, strict=False)):
            yield from _beside(one, other, f"{place}[{at}]")


def _shown(value: Any) -> str:
    return shortened(json.dumps(value, sort_keys=True), _MOST_CHARACTERS)
