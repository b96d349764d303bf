"""What a route remembers beside its shares: the revisions that are there, those that are over, what is under way."""

from __future__ import annotations

from dataclasses import dataclass, replace

from muster.core.deployment import DeploymentSpec, Release, Revision
from muster.core.errors import Corrupt, SpecError
from muster.core.wire import dumps, loads

HISTORY = 20
LARGEST_BYTES = 200_000  # an object's annotations hold 256 KiB, and others have some, too


@dataclass(frozen=True, kw_only=True)
class Live:
    """A revision that is there, or is to be.

    :param since: when it was asked for, in seconds since the epoch.
    """

    name: str
    spec: DeploymentSpec
    since: float


@dataclass(frozen=True, kw_only=True)
class Notes:
    """The annotation of a route.

    :param last: the number of the newest revision that there ever was.
    :param writes: how often the route was written by us, so that it never looks as it did before.
    :param moved: when shares were last changed, in seconds since the epoch.
    :param live: newest first.
    :param over: newest first, no more than :data:`HISTORY`.
    :param kept: which stay for a rollback without a share, where the route itself cannot name them.
    """

    last: int = 0
    writes: int = 0
    moved: float = 0.0
    live: tuple[Live, ...] = ()
    over: tuple[Revision, ...] = ()
    kept: tuple[str, ...] = ()
    release: Release | None = None

    def called(self, name: str) -> Live | None:
        """The revision of a name that is there."""
        return next((one for one in self.live if one.name == name), None)

    def with_new(self, spec: DeploymentSpec, *, now: float) -> Notes:
        """Add a revision, whose name no other ever had."""
        live = Live(name=f"r{self.last + 1}", spec=spec, since=now)
        return replace(self, last=self.last + 1, live=(live, *self.live))

    def with_over(self, ended: Revision) -> Notes:
        """Move a revision to those that are over, and forget the oldest of them."""
        return replace(
            self,
            live=tuple(one for one in self.live if one.name != ended.name),
            over=(ended, *self.over)[:HISTORY],
            kept=tuple(name for name in self.kept if name != ended.name),
        )


def write_notes(notes: Notes) -> str:
    """Write the annotation. :raises SpecError: it would be too long for one."""
    text = dumps(notes)
    if len(text.encode()) > LARGEST_BYTES:
        raise SpecError(
            f"the deployment's revisions are {len(text.encode()) >> 10} KiB as text, and a route remembers "
            f"{LARGEST_BYTES >> 10}: give fewer smoke requests, or fewer rows in them"
        )
    return text


def read_notes(text: str | None, *, route: str) -> Notes:
    """Read the annotation. :raises Corrupt: somebody has changed it or taken it away, or it is of another release of muster."""
    try:
        if text is None:
            raise SpecError("there are none")
        return loads(Notes, text)
    except SpecError as error:
        raise Corrupt(
            f"{route}: what muster remembers in its annotations cannot be read ({error}); users are served as before. "
            "Put it back if it was edited by hand; else retire the deployment and deploy it again"
        ) from error
