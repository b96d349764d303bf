"""The state of one deployment, as its file holds it, and each step from one state to the next.

What people and drivers write (the shares, the release under way, what is over) is the book, and each write of it
counts `generation` up. What the keeper sees (what is up, where, how often it died) does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from muster.backends.releases.book import Book, BookEntry, number
from muster.core.data import Pinned
from muster.core.deployment import (
    FINISH_SECONDS,
    LOOPBACK,
    DeploymentSpec,
    Release,
    Revision,
    RevisionState,
    no_revision,
)

_EVERYWHERE = "0.0.0.0"  # noqa: S104 it is compared with
_UP = (RevisionState.READY, RevisionState.SERVING)

ServerKey = tuple[str, str, str, bool]


@dataclass(frozen=True, kw_only=True)
class DeploymentState:
    """One deployment as it was last written down.

    :param grpc_port: where it answers gRPC; 0 where no revision ever asked for that.
    :param generation: how often the route was written.
    :param made: how many revisions there ever were, of which the latest that are over are remembered.
    :param revisions: newest first.
    :param specs: of the revisions that are not over, by name.
    :param tried: those of them that have been up, and are tried apart no more when they come up again.
    :param ports: where the servers of those that are up answer in private, by name.
    :param reason: what it suffers from now.
    :param host: the address that it listens on; it stays as long as a revision lives.
    """

    name: str
    port: int
    generation: int = 0
    made: int = 0
    revisions: tuple[Revision, ...] = ()
    specs: Mapping[str, DeploymentSpec] = field(default_factory=dict)
    tried: tuple[str, ...] = ()
    ports: Mapping[str, int] = field(default_factory=dict)
    release: Release | None = None
    reason: str = ""
    retired: bool = False
    host: str = LOOPBACK
    grpc_port: int = field(default=0, metadata={"later": True})

    @property
    def door(self) -> str:
        """The address at which this machine asks: loopback where it listens on all of them."""
        return LOOPBACK if self.host == _EVERYWHERE else self.host

    @property
    def url(self) -> str:
        """Where it answers, for this machine."""
        return f"http://{self.door}:{self.port}"

    @property
    def grpc(self) -> str:
        """Where it answers gRPC, for this machine; empty where the revision that leads does not."""
        return f"{self.door}:{self.grpc_port}" if self.leads_grpc else ""

    @property
    def terms(self) -> DeploymentSpec | None:
        """The spec that says who may ask and how much: that of the revision that leads. None where nothing has traffic."""
        return self.specs.get(self.lead) if self.lead else None

    @property
    def wants_grpc(self) -> bool:
        """Whether a revision that is not over answers gRPC."""
        return any(spec.grpc for spec in self.specs.values())

    @property
    def finish_seconds(self) -> float:
        """How long its servers give requests under way at their end."""
        return max((spec.finish_seconds for spec in self.specs.values()), default=FINISH_SECONDS)

    @property
    def leads_grpc(self) -> bool:
        """Whether users are answered over gRPC: as the revision says that leads."""
        return self.lead is not None and self.specs[self.lead].grpc

    @property
    def book(self) -> Book:
        """What the rules of releases are about."""
        live = [one for one in self.revisions if not one.state.over]
        return Book(
            name=self.name,
            made=self.made,
            live=tuple(BookEntry(name=one.name, spec=self.specs[one.name], since=one.since) for one in live),
            over=tuple(one for one in self.revisions if one.state.over),
            shares={one.name: one.percent for one in live if one.percent or one.kept},
            release=self.release,
            token=str(self.generation),
        )

    def with_book(self, book: Book) -> DeploymentState:
        """The state once this book is written; of revisions that stay, what the keeper saw stays."""
        before = {one.name: one for one in self.revisions}
        live = [_live(one, before.get(one.name), book) for one in book.live]
        over = [_over(one, before.get(one.name, one)) for one in book.over]
        names = {one.name for one in live}
        return replace(
            self,
            generation=self.generation + 1,
            made=book.made,
            revisions=tuple(sorted((*live, *over), key=lambda one: number(one.name), reverse=True)),
            specs={one.name: one.spec for one in book.live},
            tried=tuple(name for name in self.tried if name in names),
            ports={name: port for name, port in self.ports.items() if name in names},
            release=book.release,
        )

    @property
    def shares(self) -> dict[str, int]:
        """Percent by revision, of those that have any."""
        return {one.name: one.percent for one in self.revisions if one.percent}

    @property
    def lead(self) -> str | None:
        """Whom the others leave what they cannot answer; None where nothing has a share.

        The champion of a release, as long as it has any share: another one is only being tried. Else the greatest.
        """
        shares, champion = self.shares, self.release.champion if self.release else None
        return max(shares, key=lambda name: (name == champion, shares[name]), default=None)

    @property
    def live(self) -> tuple[Revision, ...]:
        """The revisions that are not over: the one that leads first, then by their shares, then the newest."""
        lead = self.lead
        there = (one for one in self.revisions if not one.state.over)
        return tuple(sorted(there, key=lambda one: (one.name != lead, -one.percent)))

    def server_key(self, name: str) -> ServerKey:
        """What tells which revisions share a server process: those of one environment that answer the same protocols.

        One whose process has died comes back in its own, so that it takes no other with it a second time. A model with
        workers runs in them, and can take no server with it.
        """
        spec = self.specs[name]
        suspect = spec.workers is None and self.called(name).restarts
        return spec.server, spec.image_digest, name if suspect else "", spec.grpc

    def called(self, name: str) -> Revision:
        """The revision of a name. :raises NotFound: there is none, or it is over and gone."""
        for one in self.revisions:
            if one.name == name:
                return one
        raise no_revision(self.name, name, (one.name for one in self.live))

    # what the keeper sees

    def up(self, name: str, *, port: int) -> DeploymentState:
        """A revision is loaded and answers on a private port."""
        one = self.called(name)
        if one.state.over:
            return self
        state = RevisionState.SERVING if one.percent else RevisionState.READY
        since = one.since if name in self.tried else time.time()
        found = replace(one, state=state, ready=1, reason="", since=since)
        tried = self.tried if name in self.tried else (*self.tried, name)
        return replace(self._with({name: found}), ports={**self.ports, name: port}, tried=tried)

    def down(self, names: Iterable[str], *, reason: str, died: bool = False) -> DeploymentState:
        """Revisions are not up, or not any more; `died` where they did."""
        several = {
            one.name: replace(
                one,
                ready=0,
                reason=reason,
                restarts=one.restarts + died,
                state=RevisionState.STARTING if one.state in _UP else one.state,
            )
            for one in self.live
            if one.name in names and (one.ready or died or one.reason != reason)
        }
        ports = {name: port for name, port in self.ports.items() if name not in several}
        return replace(self._with(several), ports=ports) if several else self

    def told(self, name: str, *, reason: str, ended: bool) -> DeploymentState:
        """A server says how the workers of a revision are.

        :param reason: what is wrong with them; empty where nothing is.
        :param ended: whether one has just ended.
        """
        one = self.called(name)
        if one.state.over:
            return self
        return self._with({name: replace(one, reason=reason, restarts=one.restarts + ended)})

    def failed(self, name: str, *, reason: str) -> DeploymentState:
        """A revision cannot be brought up."""
        one = self.called(name)
        if one.state.over:
            return self
        one = replace(one, state=RevisionState.FAILED, ready=0, reason=reason, since=time.time())
        return self._with({name: one})

    def _with(self, several: Mapping[str, Revision]) -> DeploymentState:
        return replace(self, revisions=tuple(several.get(one.name, one) for one in self.revisions))


Change = Callable[[DeploymentState], DeploymentState]


def _live(entry: BookEntry, seen: Revision | None, book: Book) -> Revision:
    """A revision as it is once a book is written; `seen` as it was before, None where it is new."""
    percent = book.shares.get(entry.name)
    if seen is None:
        seen = Revision(
            name=entry.name, model=entry.spec.model, state=RevisionState.STARTING, since=entry.since
        )
    state = seen.state
    if state in _UP:
        state = RevisionState.SERVING if percent else RevisionState.READY
    since = seen.since if seen.percent == (percent or 0) else book.moved
    return replace(seen, percent=percent or 0, kept=percent == 0, state=state, since=since)


def _over(ended: Revision, seen: Revision) -> Revision:
    """A revision that is over, with how often it died."""
    return replace(
        seen, state=ended.state, reason=ended.reason, since=ended.since, ready=0, percent=0, kept=False
    )


def past_models(state: DeploymentState) -> list[Pinned]:
    """Return the versions that served once or were tried, but for those of the revisions that are not over."""
    kept = {one.model for one in state.live}
    return [model for model in dict.fromkeys(one.model for one in state.revisions) if model not in kept]
