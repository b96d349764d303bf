"""What to do next in a release: pure functions of what is there.

All that is decided follows from the route, so it makes no difference who decides, or who did before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from muster.backends.releases.judge import broken_by_counts, told
from muster.backends.releases.plan import Plan
from muster.core.deployment import Counts, DeploymentStatus, Release, Revision, RevisionState


class Ending(str, Enum):
    """How a release ended."""

    DONE = "done"
    HELD = "held"
    ROLLED_BACK = "rolled back"
    SUPERSEDED = "superseded"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a release ended, and why: what was broken, or who came after."""

    ending: Ending
    revision: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class WaitMove:
    """Nothing is to be done now; `why` is a line for the log, or empty, `so_far` what changes about it while it lasts."""

    why: str
    so_far: str = ""


@dataclass(frozen=True, kw_only=True)
class Shift:
    """The route is to be written; `why` is a line for the log."""

    shares: Mapping[str, int]
    release: Release | None
    why: str


@dataclass(frozen=True, kw_only=True)
class Withdraw:
    """A revision is to be taken away."""

    revision: str
    state: RevisionState
    reason: str


Move = WaitMove | Shift | Withdraw | Outcome


@dataclass(frozen=True, kw_only=True)
class ReleaseSight:
    """What is known when it is decided.

    :param smoke: what a smoke request or the comparison found at this step; empty if all is well, None
        while not all has been asked.
    :param counts: what each revision answered since the step began; None where that of the revision itself
        cannot be had now, and no entry of another whose cannot.
    :param held_seconds: since the step began.
    :param restarts: how many replicas of the revision had died when we began to look.
    :param now: seconds since the epoch.
    """

    status: DeploymentStatus
    smoke: str | None = None
    counts: Mapping[str, Counts] | None = field(default_factory=dict)
    held_seconds: float = 0.0
    restarts: int = 0
    now: float = 0.0


def decide(sight: ReleaseSight, plan: Plan, *, revision: str, by: str) -> Move:
    """Return the next step of a release of `revision` that `by` asked for.

    Broken revisions come first. Then revisions that are not needed are cleared away, since they may hold
    what the revision waits for. Then it goes forward.
    """
    status = sight.status
    release = status.release
    if release is None:
        return _settled(status, revision)
    if (release.revision, release.by) != (revision, by):
        return _superseded(revision, status)
    if release.failed:
        return taking_back(status, release)
    if why := _broken(sight, plan, release):
        percent = _percent(status, revision)
        why = f"at {percent} % of the traffic, {why}" if percent else why
        release = replace(release, failed=why, since=sight.now)
        return Shift(shares=shares_back(status, release), release=release, why=f"taken back: {why}")
    if left := leftover(status):
        return left
    percent = _percent(status, revision)
    if release.held and plan.after(percent) <= percent:
        return Outcome(ending=Ending.HELD, revision=revision, reason=f"held at {percent} %")
    return _forward(sight, plan, release)


def leftover(status: DeploymentStatus) -> Withdraw | None:
    """Say what neither serves, nor is kept, nor is under way, and so is to be withdrawn."""
    release = status.release
    needed = {release.revision, release.champion} if release else set()
    for one in status.revisions:
        if one.state.over or one.percent or one.kept or one.name in needed:
            continue
        if one.state is RevisionState.FAILED:
            return Withdraw(revision=one.name, state=RevisionState.REFUSED, reason=one.reason)
        return Withdraw(revision=one.name, state=RevisionState.RETIRED, reason=_passed_by(status))
    return None


def taking_back(status: DeploymentStatus, release: Release) -> Move:
    """Say what to do next about a release that failed: the champion serves, the revision goes, all is settled."""
    back = shares_back(status, release)
    if {name: percent for name, percent in back.items() if percent} != status.shares:
        return Shift(shares=back, release=release, why=f"taken back: {release.failed}")
    mine = status.called(release.revision)
    if mine is not None and not mine.state.over and not mine.percent:
        return Withdraw(revision=mine.name, state=RevisionState.REFUSED, reason=release.failed)
    return Shift(shares=back, release=None, why=f"{release.champion or 'nothing'} serves as before")


def shares_back(status: DeploymentStatus, release: Release) -> dict[str, int]:
    """The shares with which the champion has all traffic again; where there is none, those that there are."""
    if release.champion is None or release.champion == release.revision:
        return status.shares
    return {release.champion: 100} | _kept(status, release.revision, release.champion)


def shares_at(status: DeploymentStatus, release: Release, percent: int) -> dict[str, int]:
    """The shares with which the revision has its percent, and the champion the others."""
    if release.champion is None or release.champion == release.revision:
        return shares_of_all(status, release.revision, champion=release.champion)
    shares = {release.champion: 100 - percent, release.revision: percent}
    return shares | _kept(status, release.revision, release.champion)


def shares_of_all(status: DeploymentStatus, revision: str, *, champion: str | None) -> dict[str, int]:
    """The shares with which a revision has all traffic, and the champion is kept for a rollback instead of what was before."""
    if champion is not None and champion != revision:
        return {revision: 100, champion: 0}
    return {revision: 100} | _kept(status, revision)


def _kept(status: DeploymentStatus, *others: str | None) -> dict[str, int]:
    """What the route keeps besides the others."""
    return {
        one.name: 0 for one in status.revisions if one.kept and not one.state.over and one.name not in others
    }


def _settled(status: DeploymentStatus, revision: str) -> Move:
    """Say how the release ended, of which the route knows no more."""
    mine = status.called(revision)
    if mine is None:
        return Outcome(ending=Ending.SUPERSEDED, revision=revision, reason=f"{revision} is gone")
    if mine.percent == 100:
        done = Outcome(ending=Ending.DONE, revision=revision)
        return leftover(status) or (done if status.ready else WaitMove(why="it does not answer users yet"))
    if mine.state is RevisionState.REFUSED:
        return Outcome(ending=Ending.ROLLED_BACK, revision=revision, reason=mine.reason)
    if mine.state is RevisionState.RETIRED:
        return Outcome(ending=Ending.SUPERSEDED, revision=revision, reason=mine.reason)
    return _superseded(revision, status)


def _superseded(revision: str, status: DeploymentStatus) -> Outcome:
    return Outcome(ending=Ending.SUPERSEDED, revision=revision, reason=_passed_by(status))


def _passed_by(status: DeploymentStatus) -> str:
    if status.release:
        return f"superseded by {status.release.revision}, which {status.release.by} asked for"
    shared = ", ".join(f"{name} {percent} %" for name, percent in status.shares.items())
    return f"the traffic was given to others: {shared}" if shared else "nothing serves any more"


def _broken(sight: ReleaseSight, plan: Plan, release: Release) -> str:
    """Say what does not hold of the revision; empty where all does."""
    mine = sight.status.called(release.revision)
    if mine is None or mine.state.over:
        return f"{release.revision} was taken away" + (f": {mine.reason}" if mine and mine.reason else "")
    alone = release.champion in (None, mine.name)
    if mine.percent and alone:
        return ""  # nothing could have the traffic
    if mine.state is RevisionState.FAILED:
        return mine.reason or f"{mine.name} failed"
    champion = sight.status.called(str(release.champion))
    down = mine.state is RevisionState.SERVING and not mine.ready
    if down and champion and champion.ready:  # else it is not the revision's fault
        return f"none of its {mine.wanted} replicas answers" + (f": {mine.reason}" if mine.reason else "")
    if mine.restarts > sight.restarts:
        return f"{mine.restarts - sight.restarts} of its replicas died" + (
            f": {mine.reason}" if mine.reason else ""
        )
    return sight.smoke or (_broken_by_counts(sight, plan, release) if mine.percent else "")


def _broken_by_counts(sight: ReleaseSight, plan: Plan, release: Release) -> str:
    if sight.counts is None:
        return ""
    ours, theirs = (sight.counts.get(str(name), Counts()) for name in (release.revision, release.champion))
    percent = sight.status.shares.get(release.revision, 0)
    held = sight.held_seconds >= plan.hold(percent)
    ending = held and not _lacks_requests(sight, plan, release, percent)
    return broken_by_counts(plan.rules, ours, theirs, ending=ending)


def _forward(sight: ReleaseSight, plan: Plan, release: Release) -> Move:
    """Say what comes next where all is well."""
    mine = sight.status.called(release.revision)
    assert mine is not None
    if mine.state is RevisionState.STARTING or mine.ready < mine.wanted:
        return WaitMove(why=_progress(mine))
    alone = release.champion in (None, mine.name)
    if not (mine.percent and alone) and (wait := _held_back(sight, plan, release, mine.percent)):
        return wait
    percent = 100 if alone else plan.after(mine.percent)
    if percent == 100 and (alone or mine.percent == 100 or not plan.hold(100)):
        shares = shares_of_all(sight.status, mine.name, champion=release.champion)
        return Shift(shares=shares, release=None, why=f"all of the traffic{_seen(sight, release)}")
    if percent <= mine.percent:
        why = f"held at {mine.percent} % until it is given more{_seen(sight, release)}"
        shares = shares_at(sight.status, release, mine.percent)
        return Shift(shares=shares, release=replace(release, held=True), why=why)
    shares = shares_at(sight.status, release, percent)
    why = f"{percent} % of the traffic, held for {plan.hold(percent):g} s{_seen(sight, release)}"
    return Shift(shares=shares, release=replace(release, since=sight.now, held=False), why=why)


def _held_back(sight: ReleaseSight, plan: Plan, release: Release, percent: int) -> WaitMove | None:
    """Say what a revision waits for before its share may widen; None where it may."""
    if sight.smoke is None:
        return WaitMove(why="smoke requests")
    if not percent:
        return None
    if unknown := _uncounted(sight, plan, release):
        return WaitMove(why=f"the requests of {unknown} cannot be counted now")
    if sight.held_seconds < plan.hold(percent):
        return WaitMove(why="")
    if _lacks_requests(sight, plan, release, percent):
        return WaitMove(
            why=f"it waits at {percent} % until it has answered {plan.rules.fewest_requests} requests (fewest_requests)",
            so_far=_seen(sight, release),
        )
    return None


def _lacks_requests(sight: ReleaseSight, plan: Plan, release: Release, percent: int) -> bool:
    """Whether its share may not widen yet for want of requests; the last step waits for none."""
    wanted = plan.rules.fewest_requests
    if wanted is None or percent >= plan.after(percent):
        return False
    return (sight.counts or {}).get(release.revision, Counts()).tried < wanted


def _uncounted(sight: ReleaseSight, plan: Plan, release: Release) -> str:
    """The revision whose counts are needed to go on, and not there; empty where none is."""
    if sight.counts is None:
        return release.revision
    champion = str(release.champion)
    compared = plan.rules.max_p95_ratio is not None and _percent(sight.status, champion)
    return champion if compared and champion not in sight.counts else ""


def _percent(status: DeploymentStatus, revision: str) -> int:
    return status.shares.get(revision, 0)


def _seen(sight: ReleaseSight, release: Release) -> str:
    """Say what was counted at the step that is over; empty where it had no traffic."""
    percent = _percent(sight.status, release.revision)
    if not percent or not sight.counts:
        return ""
    ours, theirs = (sight.counts.get(str(name), Counts()) for name in (release.revision, release.champion))
    return f" (at {percent} %: {told(ours, theirs)})"


def _progress(revision: Revision) -> str:
    answering = f"{revision.ready} of {revision.wanted} replicas answer"
    return f"{revision.state.value}, {answering}" + (f": {revision.reason}" if revision.reason else "")
