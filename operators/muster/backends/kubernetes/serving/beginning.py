"""Decides what a route is to say when a release begins: pure, and the whole of it in one write."""

from __future__ import annotations

from dataclasses import replace

from muster.backends.kubernetes.serving.notes import Live
from muster.backends.kubernetes.serving.route import Route
from muster.core.deployment import DeploymentSpec, Release


def begin(route: Route, spec: DeploymentSpec, *, by: str, now: float) -> tuple[Route, Live]:
    """Return the route with which `spec` is on its way to serve, and its revision.

    The same route comes back where there is nothing to begin: `by` has begun it, or it serves already. A
    release under way ends here: all traffic is its champion's, in the same write.
    """
    release, found = route.notes.release, route.notes.of(spec)
    if found and release and _goes_on(release, found, by):
        return route, found
    champion = (release.champion if release else None) or route.champion
    if found and release is None and champion == found.name:
        return route, found
    notes = route.notes if found else route.notes.with_new(spec, now=now)
    revision = found or notes.live[0]
    begun = None
    if revision.name != champion:
        begun = Release(revision=revision.name, champion=champion, by=by, since=now)
    return replace(route, shares=_given_back(route, champion), notes=replace(notes, release=begun)), revision


def _goes_on(release: Release, found: Live, by: str) -> bool:
    return release.revision == found.name and release.by == by and not release.failed


def _given_back(route: Route, champion: str | None) -> dict[str, int]:
    """All traffic is the champion's; what was kept for a rollback stays so."""
    kept = {name: 0 for name, percent in route.shares.items() if not percent}
    return {**kept, champion: 100} if champion else kept
