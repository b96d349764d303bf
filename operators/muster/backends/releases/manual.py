"""What a person does to a deployment: back to what was kept, forward at once, and clear away what is left over."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from muster.backends.releases.decision import (
    Shift,
    Withdraw,
    leftover,
    shares_back,
    shares_of_all,
    taking_back,
)
from muster.core.deployment import DeploymentStatus, Release, Revision, RevisionState, no_revision
from muster.core.errors import Conflict, DeploymentError, NotFound

if TYPE_CHECKING:
    from muster.backends.releases.deployments import Deployments

_TRIES = 10
_MOST = 100
_REPAIR_SECONDS = 180.0
_LOOK_SECONDS = 0.5

T = TypeVar("T")


def roll_back(
    deployments: Deployments,
    name: str,
    *,
    by: str,
    reason: str = "",
    revision: str | None = None,
    seen: DeploymentStatus | None = None,
) -> str:
    """Give the traffic back, in force with one write, and return the revision that has it.

    A release that is under way ends, and its champion has all traffic; where none is, the revision that is
    kept takes over from the one that serves. What is rolled back is refused, with who did it and why. Where two
    roll back the same at once, one does it and both get what serves: it goes back once.

    :param revision: what is to be rolled back, and nothing is done where it has gone; what serves, or is on
        its way to, as it is now if not given.
    :param seen: how it was just now, to be in force sooner: it is read again where it has changed since.
    :raises NotFound: no such deployment or revision, or nothing is kept that could serve.
    :raises DeploymentError: what is kept does not answer; or what is meant serves beside a release that is under way.
    """
    meant = [revision] if revision else []

    def write(status: DeploymentStatus) -> str:
        if meant and not _in_force(status, meant[0]):
            _check_gone(status, meant[0])
            return status.champion.name if status.champion else ""
        release = _failed(status, by=by, reason=reason)
        meant[:] = meant or [release.revision]
        shares = shares_back(status, release)
        deployments.shift(name, shares, token=status.token, release=release)
        return str(release.champion)

    champion = insisting(deployments, name, write, seen=seen)
    tidy(deployments, name)
    return champion


def give_up(deployments: Deployments, status: DeploymentStatus, *, reason: str) -> None:
    """Have what is under way taken back, where it still goes forward: one write on what was seen, the rest is :func:`tidy`'s.

    :raises Conflict: it has changed since; nothing was written.
    """
    release = status.release
    if release and not release.failed:
        release = replace(release, failed=reason, since=time.time())
        shares = shares_back(status, release)
        deployments.shift(status.name, shares, token=status.token, release=release)


def to_be_rolled_back(status: DeploymentStatus) -> Release:
    """Return what a rollback would do now: refuse its revision, and give its champion all traffic.

    :raises NotFound: nothing is kept that could serve.
    """
    return _failed(status, by="", reason="")


def promote(deployments: Deployments, name: str, revision: str, *, by: str) -> None:
    """Give a revision all traffic at once, and keep the one that had it for a rollback.

    A release of this revision is done with that; one of another is superseded.

    :raises NotFound: no such deployment or revision.
    :raises DeploymentError: it does not answer.
    """

    def write(status: DeploymentStatus) -> str | None:
        found = status.called(revision)
        if found is None or found.state.over:
            raise no_revision(name, revision, (one.name for one in status.revisions if not one.state.over))
        _check_answers(status, found)
        release = status.release
        before = release.champion if release else None
        champion = before or (status.champion.name if status.champion else None)
        shares = shares_of_all(status, revision, champion=champion)
        deployments.shift(name, shares, token=status.token, release=None)
        return release.revision if release and release.revision not in (revision, champion) else None

    passed_by = insisting(deployments, name, write)
    if passed_by:
        reason = f"{by} gave all traffic to {revision}"
        with contextlib.suppress(Conflict):  # it was asked for again
            deployments.withdraw(name, passed_by, state=RevisionState.RETIRED, reason=reason)
    tidy(deployments, name)


def repair(deployments: Deployments, name: str) -> Iterator[str]:
    """Bring a deployment back to how muster left it, and yield what is done; all who have traffic answer at the end.

    :raises NotFound: no such deployment.
    :raises DeploymentError: it is not as it was after so long, with what it waits for.
    """
    deadline = time.monotonic() + _REPAIR_SECONDS
    while True:
        yield from deployments.repair(name)
        status = deployments.deployment(name)
        silent = [one for one in status.revisions if one.percent and not one.ready]
        if not status.drift and not silent and (status.ready or not status.shares):
            return
        if time.monotonic() > deadline:
            waits = "; ".join(filter(None, [status.reason, *(f"{one.name}: {one.reason}" for one in silent)]))
            raise DeploymentError(
                f"deployment {name} does not answer as it should after {_REPAIR_SECONDS:g} s: {waits}"
            )
        time.sleep(_LOOK_SECONDS)


def tidy(deployments: Deployments, name: str) -> tuple[str, ...]:
    """Withdraw what neither serves, nor is kept, nor is under way, and end what was being taken back.

    Idempotent, and any number of us may do it at once. Return which revisions were withdrawn.
    """
    withdrawn: list[str] = []

    def write(status: DeploymentStatus) -> bool:
        release = status.release
        move = taking_back(status, release) if release and release.failed else leftover(status)
        if isinstance(move, Withdraw):
            deployments.withdraw(name, move.revision, state=move.state, reason=move.reason)
            withdrawn.append(move.revision)
        elif isinstance(move, Shift):
            deployments.shift(name, move.shares, token=status.token, release=move.release)
        return move is None

    for _ in range(_MOST):  # each look does one thing, and there are not so many
        if insisting(deployments, name, write):
            break
    return tuple(withdrawn)


def _failed(status: DeploymentStatus, *, by: str, reason: str) -> Release:
    """What is under way when what serves, or is on its way to, is taken back."""
    why = f"rolled back by {by}" + (f": {reason}" if reason else "")
    release = status.release
    if release and release.champion not in (None, release.revision):
        return release if release.failed else replace(release, failed=why, since=time.time())
    champion = status.champion
    kept = next(
        (one for one in status.revisions if one.kept and not one.state.over and not one.percent), None
    )
    if champion is None or kept is None:
        raise NotFound(f"deployment {status.name} keeps no revision to go back to: {_forward(status)}")
    return Release(revision=champion.name, champion=kept.name, by=by, since=time.time(), failed=why)


def _forward(status: DeploymentStatus) -> str:
    """Say what to do where nothing is kept: who has a part of the traffic may have all of it."""
    if status.drift:
        return status.drift
    others = [
        one.name for one in status.revisions if one.percent and one.ready and one is not status.champion
    ]
    if not others and status.champion and len(status.shares) > 1 and status.champion.ready:
        others = [status.champion.name]
    if others:
        return f"`muster deployments promote {status.name} {others[0]}` gives all of the traffic to {others[0]}, which answers"
    return "deploy an earlier version again"


def _in_force(status: DeploymentStatus, revision: str) -> bool:
    """Whether a revision serves, or is on its way to."""
    release, champion = status.release, status.champion
    if release and release.champion not in (None, release.revision):
        return release.revision == revision
    return champion is not None and champion.name == revision


def _check_gone(status: DeploymentStatus, revision: str) -> None:
    """Refuse to call rolled back what still serves, or never was.

    :raises DeploymentError: a release goes on beside it. :raises NotFound: there is no such revision.
    """
    found, release = status.called(revision), status.release
    if found is None:
        raise no_revision(status.name, revision, (one.name for one in status.revisions))
    if found.percent and release is not None:
        raise DeploymentError(
            f"revision {revision} of {status.name} has {found.percent} % of the traffic, and {release.revision} is on its "
            f"way to take it over: wait for that, or take both back, one after the other, with `muster deployments "
            f"rollback {status.name}`"
        )


def _check_answers(status: DeploymentStatus, found: Revision) -> None:
    """Refuse to send those who are answered to one that is not up. :raises DeploymentError: it would.

    A backend looks at those without a share itself. Where no revision answers, its traffic may be what brings it back.
    """
    others = [one.name for one in status.revisions if one.percent and one.ready and one is not found]
    if found.percent and not found.ready and others:
        why = f": {found.reason}" if found.reason else ""
        raise DeploymentError(
            f"revision {found.name} of {status.name} does not answer{why}. {others[0]} does: "
            f"`muster deployments promote {status.name} {others[0]}` gives that all of the traffic, and "
            f"`muster deployments repair {status.name}` brings back what is missing"
        )


def insisting(
    deployments: Deployments,
    name: str,
    write: Callable[[DeploymentStatus], T],
    *,
    seen: DeploymentStatus | None = None,
) -> T:
    """Do what follows from the route as it is, again where another writer changed it meanwhile.

    :param seen: how it was just now, if it was read.
    """
    for left in reversed(range(_TRIES)):
        try:
            return write(seen or deployments.deployment(name))
        except Conflict:
            seen = None
            if not left:
                raise
    raise AssertionError  # the last try returned or raised
