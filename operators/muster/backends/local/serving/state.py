"""The route of one deployment on one machine, and what its keeper sees: pure changes of one document.

What people and drivers write (the shares, what is under way, what is over) is the route, and each write of it
counts `generation` up. What the keeper sees (what is up, where, how often it died) does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from muster.core.deployment import DeploymentSpec, Release, Revision, RevisionState
from muster.core.errors import Conflict, DeploymentError, NotFound, SpecError
from muster.core.job import Origin, Pinned

ServerKey = tuple[str, str, str]

HISTORY = 50
_UP = (RevisionState.READY, RevisionState.SERVING)


@dataclass(frozen=True, kw_only=True)
class DeploymentState:
    """One deployment as it was last written down.

    :param generation: how often the route was written.
    :param made: how many revisions there ever were, of which the latest that are over are remembered.
    :param revisions: newest first.
    :param specs: of the revisions that are not over, by name.
    :param tried: those of them that have been up, and are tried apart no more when they come up again.
    :param ports: where the servers of those that are up answer in private, by name.
    :param reason: what it suffers from now.
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

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        """What changes with each write of the route."""
        return str(self.generation)

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
        """What tells which revisions share a server process: those of one environment.

        One whose process has died comes back in its own, so that it takes no other with it a second time.
        """
        spec = self.specs[name]
        return spec.server, spec.image_digest, name if self.called(name).restarts else ""

    def called(self, name: str) -> Revision:
        """The revision of a name. :raises NotFound: there is none, or it is over and gone."""
        for one in self.revisions:
            if one.name == name:
                return one
        known = ", ".join(one.name for one in self.live) or "none"
        raise NotFound(f"deployment {self.name} has no revision {name!r:.60}; there is {known}")

    def prepared(
        self, spec: DeploymentSpec, *, by: str, origin: Origin | None = None
    ) -> tuple[DeploymentState, Revision]:
        """Begin a release of `spec`, and return its revision; nothing changes where it serves or is under way."""
        usable = (one for one in self.live if self._usable(one))
        there = next((one for one in usable if self.specs[one.name].runs_as(spec)), None)
        if there and (self._goes_on(there, by) or (self.release is None and there.percent == 100)):
            return self, there
        champion = self._champion()
        state = self
        if there is None:
            there = Revision(
                name=f"r{self.made + 1}", model=spec.model, state=RevisionState.STARTING, since=time.time()
            )
            state = replace(
                self,
                made=self.made + 1,
                revisions=(there, *self.revisions),
                specs={**self.specs, there.name: spec},
            )
        shares = {one.name: 0 for one in self.revisions if one.kept} | ({champion: 100} if champion else {})
        release = Release(revision=there.name, champion=champion, by=by, since=time.time(), origin=origin)
        state = state._written(shares, release)
        return state, state.called(there.name)

    def shifted(self, shares: Mapping[str, int], *, token: str, release: Release | None) -> DeploymentState:
        """Share the traffic out; see :meth:`muster.backends.base.Deployments.shift`."""
        if token != self.token:
            raise Conflict(f"deployment {self.name}: its route was written by somebody else meanwhile")
        if sum(shares.values()) != 100 and (shares or self.shares):
            raise SpecError(f"deployment {self.name}: shares {dict(shares)} are percents, in sum 100")
        for name, percent in shares.items():
            one = self.called(name)
            if not 0 <= percent <= 100:
                raise SpecError(f"deployment {self.name}: {name} cannot have {percent} % of the traffic")
            if one.state.over or (percent and not one.percent and not one.ready):
                why = one.reason or "it is not loaded"
                raise DeploymentError(
                    f"deployment {self.name}: {name} is not ready for traffic ({one.state.value}: {why})"
                )
        return self._written(shares, release)

    def withdrawn(self, name: str, *, state: RevisionState, reason: str) -> DeploymentState:
        """Take a revision away; see :meth:`muster.backends.base.Deployments.withdraw`."""
        one, release = self.called(name), self.release
        if one.state.over:
            return self
        if one.percent:
            raise Conflict(f"deployment {self.name}: {name} has {one.percent} % of the traffic")
        if release and not release.failed and name in (release.revision, release.champion):
            raise Conflict(f"deployment {self.name}: {name} is part of the release of {release.revision}")
        gone = replace(one, state=state, reason=reason, ready=0, kept=False, since=time.time())
        return replace(
            self._with({name: gone}),
            generation=self.generation + 1,
            specs={key: spec for key, spec in self.specs.items() if key != name},
            tried=tuple(each for each in self.tried if each != name),
            ports={key: port for key, port in self.ports.items() if key != name},
        )._forgetting()

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

    def failed(self, name: str, *, reason: str) -> DeploymentState:
        """A revision cannot be brought up."""
        one = self.called(name)
        if one.state.over:
            return self
        one = replace(one, state=RevisionState.FAILED, ready=0, reason=reason, since=time.time())
        return self._with({name: one})

    def _usable(self, one: Revision) -> bool:
        """Whether a release may take a revision as it is."""
        failed = self.release is not None and self.release.failed and self.release.revision == one.name
        return one.state is not RevisionState.FAILED and not failed

    def _goes_on(self, one: Revision, by: str) -> bool:
        return self.release is not None and (self.release.revision, self.release.by) == (one.name, by)

    def _champion(self) -> str | None:
        """Who has the traffic back where what is under way is superseded."""
        if self.release and self.release.champion:
            return self.release.champion
        return next((one.name for one in self.live if one.percent), None)

    def _written(self, shares: Mapping[str, int], release: Release | None) -> DeploymentState:
        several = {one.name: _shared(one, shares.get(one.name)) for one in self.live}
        return replace(self._with(several), release=release, generation=self.generation + 1)

    def _with(self, several: Mapping[str, Revision]) -> DeploymentState:
        return replace(self, revisions=tuple(several.get(one.name, one) for one in self.revisions))

    def _forgetting(self) -> DeploymentState:
        """Forget the oldest of many that are over."""
        over = [one.name for one in self.revisions if one.state.over][HISTORY:]
        return replace(self, revisions=tuple(one for one in self.revisions if one.name not in over))


Change = Callable[[DeploymentState], DeploymentState]


def _shared(one: Revision, percent: int | None) -> Revision:
    """Return a revision with its share; None is none, and not kept either."""
    state = one.state
    if state in _UP:
        state = RevisionState.SERVING if percent else RevisionState.READY
    since = one.since if (state, percent or 0) == (one.state, one.percent) else time.time()
    return replace(one, percent=percent or 0, kept=percent == 0, state=state, since=since)


def pin_reason(name: str) -> str:
    """Return under which reason a deployment pins the versions that it serves."""
    return f"deployment/{name}"


def past_models(state: DeploymentState) -> list[Pinned]:
    """Return the versions that served once or were tried, but for those of the revisions that are not over."""
    kept = {one.model for one in state.live}
    return [model for model in dict.fromkeys(one.model for one in state.revisions) if model not in kept]
