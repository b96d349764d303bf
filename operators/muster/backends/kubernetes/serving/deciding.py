"""Decides what a route is to say, and reads from one what follows: pure, each change the whole of one write."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from muster.backends.kubernetes.serving import names
from muster.backends.kubernetes.serving.notes import Live
from muster.backends.kubernetes.serving.route import Route
from muster.core.address import Address
from muster.core.deployment import DeploymentSpec, DeploymentStatus, Release, Revision, RevisionState
from muster.core.errors import Conflict, NotFound
from muster.core.job import Origin


def begin(
    route: Route,
    spec: DeploymentSpec,
    *,
    by: str,
    now: float,
    origin: Origin | None = None,
    failed: Collection[str] = (),
) -> tuple[Route, Live]:
    """Return the route with which `spec` is on its way to serve, and its revision.

    The same route comes back where there is nothing to begin: `by` has begun it, or it serves already. A
    release under way ends here: all traffic is its champion's, in the same write.

    :param failed: revisions that will not do, though they are there.
    """
    release, found = route.notes.release, _usable(route, spec, failed)
    if found and release and (release.revision, release.by) == (found.name, by):
        return route, found
    if found and release is None and route.shares.get(found.name) == 100:
        return route, found
    champion = (release.champion if release else None) or route.champion
    notes = route.notes if found else route.notes.with_new(spec, now=now)
    revision = found or notes.live[0]
    begun = Release(revision=revision.name, champion=champion, by=by, since=now, origin=origin)
    return replace(route, shares=_given_back(route, champion), notes=replace(notes, release=begun)), revision


def _usable(route: Route, spec: DeploymentSpec, failed: Collection[str]) -> Live | None:
    """The newest revision of a spec that is there and will do."""
    release = route.notes.release
    taken_back = release.revision if release and release.failed else None
    return next(
        (
            one
            for one in route.notes.live
            if one.spec.runs_as(spec) and one.name != taken_back and one.name not in failed
        ),
        None,
    )


def _given_back(route: Route, champion: str | None) -> dict[str, int]:
    """All traffic is the champion's; what was kept for a rollback stays so."""
    kept = {name: 0 for name, percent in route.shares.items() if not percent}
    return {**kept, champion: 100} if champion else kept


def moved(new: Route, old: Route, now: float) -> Route:
    """Say in a route when its shares changed, and whom it keeps, where it cannot name them itself."""
    kept = tuple(sorted(name for name, percent in new.shares.items() if not percent))
    since = old.notes.moved if dict(new.shares) == dict(old.shares) else now
    return replace(new, notes=replace(new.notes, moved=since, kept=kept))


def idle(route: Route, revision: str) -> Live | None:
    """Return a revision that may be withdrawn; None where it was.

    :raises Conflict: somebody needs it; :raises NotFound: there never was one, or long ago.
    """
    live, release = route.notes.called(revision), route.notes.release
    if live is None:
        if all(one.name != revision for one in route.notes.over):
            raise NotFound(f"deployment {route.name} has no revision {revision}")
        return None
    if percent := route.shares.get(revision):
        raise Conflict(f"revision {revision} of {route.name} has {percent} % of the traffic: move that first")
    if release and not release.failed and revision in (release.revision, release.champion):
        raise Conflict(f"revision {revision} of {route.name} is under way, by {release.by}")
    return live


def models(route: Route) -> set[str]:
    """Return the addresses of every version that a route knows of."""
    return {one.spec.model.address for one in route.notes.live} | {
        one.model.address for one in route.notes.over
    }


def newest_first(revisions: Iterable[Revision]) -> tuple[Revision, ...]:
    """Return revisions in the order in which they were asked for, the last one first."""
    return tuple(sorted(revisions, key=lambda one: names.number(one.name), reverse=True))


def drift(route: Route, missing: Collection[str], *, kind: str) -> str:
    """Say what somebody else has changed of a deployment, and the command that brings it back; empty where nothing is.

    :param missing: revisions of the route whose object is gone. :param kind: of such an object.
    """
    found = [*_drifted(route), *(f"{name}'s {kind} is gone: somebody deleted it" for name in missing)]
    if not found:
        return ""
    if route.lost:
        found[0] += (
            ". Somebody else wrote that, or muster with another gateway, serving_url, serving or release"
        )
    if_right = "if these are right here, " if route.lost else ""
    return f"{'; '.join(found)}; {if_right}`muster deployments repair {route.name}` brings it back"


def _drifted(route: Route) -> Iterator[str]:
    """What of a route is not as muster wrote it."""
    if route.lost:
        yield f"users may not reach it: in its route {route.lost}"
    if route.foreign:
        yield f"the route also sends users to {', '.join(route.foreign)}, which is no revision: somebody else wrote it"
    elif route.edited and not route.lost:
        yield f"somebody else has edited its route: {shared(route.shares)}, where muster wrote {shared(route.given or {})}"
    if route.beside:
        yield f"its route is not as muster writes it here in {', '.join(route.beside)}"


def shared(shares: Mapping[str, int]) -> str:
    """Write shares for people: ``r1 90 %, r2 10 %, r0 kept``."""
    ranked = sorted(shares.items(), key=lambda share: -share[1])
    return (
        ", ".join(f"{name} {percent} %" if percent else f"{name} kept" for name, percent in ranked)
        or "nobody"
    )


def reason(route: Route, status: DeploymentStatus) -> str:
    """Say what a deployment waits for or suffers from; else why its newest revision was refused, if it was."""
    if status.drift:
        return status.drift
    suffers = route.unsettled or route.broken or (status.champion.reason if status.champion else "")
    suffers = suffers or _silent(status)
    newest = status.revisions[0] if status.revisions else None
    if suffers or newest is None or newest.state not in (RevisionState.REFUSED, RevisionState.FAILED):
        return suffers
    return f"@{Address.parse(newest.model.address).value} was refused: {newest.reason}"


def _silent(status: DeploymentStatus) -> str:
    """Name who has a share of the traffic, beside who has most of it, and does not answer."""
    for one in status.revisions:
        if one.percent and not one.ready and one is not status.champion:
            return f"{one.name}, which has {one.percent} % of the traffic, does not answer: {one.reason}"
    return ""
