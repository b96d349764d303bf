"""A backend in memory, with users: every write is checked as it is made, and each may be killed or beaten."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from muster.backends.releases.looking import Seen, look_each
from muster.core.deployment import (
    Answer,
    Counts,
    DeploymentSpec,
    DeploymentStatus,
    Release,
    Revision,
    RevisionState,
    SmokeRequest,
)
from muster.core.errors import Conflict, DeploymentError, NotFound
from muster.core.job import Origin, Pinned

NAME = "line"
BOUNDS = (0.01, 0.02, 0.05, 0.1, 1.0, float("inf"))


class Killed(BaseException):
    """The process that drives is no more."""


def spec(number: int, *, smoke: bool = True) -> DeploymentSpec:
    """Version `number`, which is to answer 2 with 2 * number."""
    model = Pinned(address=f"volume://lines/model@{number}", digest=f"b3:{number:064}")
    expect = {"y": {"min": 2 * number, "max": 2 * number}}
    asked = (SmokeRequest(name="two", inputs={"x": (2.0,)}, expect=expect),) if smoke else ()
    return DeploymentSpec(name=NAME, model=model, image="serve", image_digest=f"b3:{1:064}", smoke=asked)


class World:
    """Implements ``muster.backends.base.Deployments`` for one deployment, and plays its users.

    :ivar fault: called before and after each write with what is written; what it raises, the writer gets.
    :ivar silent: which revisions do not say what they have answered.
    :ivar failing: of which revisions' answers which share is bad; `seconds` how long a revision takes.
    """

    servers = ("kserve",)

    def __init__(self, *, only_whole: str = "") -> None:
        self.only_whole = only_whole
        self.now = 0.0
        self.revisions: list[Revision] = []
        self.specs: dict[str, DeploymentSpec] = {}
        self.release: Release | None = None
        self.token = 0
        self.ready = True
        self.prepared = 0
        self.failing: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        self.answers: dict[str, float] = {}
        self.counted: dict[str, Counts] = {}
        self.silent: set[str] = set()
        self.away: Callable[[], None] = lambda: None
        self.fault: Callable[[str], None] = lambda _which: None
        self.history: list[dict[str, int]] = []

    # what users and time do

    def clock(self) -> float:
        return self.now

    def pass_time(self, seconds: float, *, requests: int = 40) -> None:
        """Let users ask and revisions come up."""
        self.now += seconds
        for one in self.revisions:
            if one.percent:
                self._count(one.name, round(requests * one.percent / 100))

    def _count(self, name: str, requests: int) -> None:
        before = self.counted.get(name, Counts(seconds=dict.fromkeys(BOUNDS, 0)))
        took = self.seconds.get(name, 0.008)
        self.counted[name] = Counts(
            requests=before.requests + requests,
            failed=before.failed + round(requests * self.failing.get(name, 0.0)),
            seconds={bound: n + requests * (took <= bound) for bound, n in before.seconds.items()},
        )

    def come_up(self, name: str) -> None:
        self.change(name, state=RevisionState.READY, ready=1)

    def change(self, name: str, **fields: object) -> None:
        self.revisions = [
            replace(one, **fields) if one.name == name else one  # type: ignore[arg-type]
            for one in self.revisions
        ]

    def called(self, name: str) -> Revision:
        found = self.deployment(NAME).called(name)
        assert found is not None
        return found

    # what a backend does

    @contextmanager
    def _write(self, which: str) -> Iterator[None]:
        self.fault(which)
        yield
        self.token += 1
        self.history.append(self.deployment(NAME).shares)
        self.fault(f"{which} done")

    def deployment(self, name: str) -> DeploymentStatus:
        self.away()
        if name != NAME:
            raise NotFound(f"no deployment {name}")
        return DeploymentStatus(
            name=name,
            url="http://here",
            ready=self.ready and any(one.percent and one.ready for one in self.revisions),
            token=str(self.token),
            revisions=tuple(self.revisions),
            release=self.release,
        )

    def deployments(self) -> list[str]:
        return [NAME]

    def prepare(
        self,
        wanted: DeploymentSpec,
        *,
        by: str,
        origin: Origin | None = None,
        allow_older: bool = True,
        token: str | None = None,
    ) -> Revision:
        self.away()
        self.prepared += 1
        if token not in (None, str(self.token)):
            raise Conflict("somebody else wrote the route")
        status = self.deployment(NAME)
        there = next((one for one in self.revisions if self._same(one, wanted)), None)
        if there and self.release and (self.release.revision, self.release.by) == (there.name, by):
            return there
        if there and there.percent == 100 and self.release is None:
            return there
        with self._write("prepare"):
            if self.release and self.release.champion:
                champion: str | None = self.release.champion
            else:
                champion = status.champion.name if status.champion else None
            if there is None:
                there = Revision(
                    name=f"r{len(self.revisions) + 1}", model=wanted.model, state=RevisionState.STARTING
                )
                self.specs[there.name] = wanted
                self.revisions.insert(0, there)
            self._share({champion: 100} if champion else {}, keep=True)
            self.release = Release(
                revision=there.name, champion=champion, by=by, since=time.time(), origin=origin
            )
        return self.called(there.name)

    def _same(self, one: Revision, wanted: DeploymentSpec) -> bool:
        usable = not one.state.over and one.state is not RevisionState.FAILED
        failed = self.release and self.release.failed and self.release.revision == one.name
        return usable and not failed and self.specs[one.name] == wanted

    def ask(self, name: str, revision: str, request: SmokeRequest) -> tuple[Answer, ...]:
        self.away()
        found = self.called(revision)
        if not found.ready:
            return (Answer(replica=revision, outputs=None, error="refused"),)
        slope = self.answers.get(revision, float(found.model.address.rpartition("@")[2]))
        return (Answer(replica=revision, outputs={"y": tuple(slope * x for x in request.inputs["x"])}),)

    def shift(self, name: str, shares: Mapping[str, int], *, token: str, release: Release | None) -> str:
        self.away()
        if token != str(self.token):
            raise Conflict("somebody else wrote the route")
        serving = self.deployment(NAME).shares
        assert sum(shares.values()) == 100 or (not shares and not serving), shares
        for revision, percent in shares.items():
            found = self.called(revision)
            assert not found.state.over, f"{revision} is {found.state.value}, and is given {percent} %"
            if percent and revision not in serving and not found.ready:
                raise DeploymentError(f"{revision} is not ready")
        with self._write("shift"):
            self._share(shares)
            self.release = release
        return str(self.token)

    def _share(self, shares: Mapping[str, int], *, keep: bool = False) -> None:
        for one in self.revisions:
            percent = shares.get(one.name, 0)
            state = one.state
            if state in (RevisionState.READY, RevisionState.SERVING):
                state = RevisionState.SERVING if percent else RevisionState.READY
            kept = one.kept and one.name not in shares if keep else one.name in shares and not percent
            self.change(one.name, percent=percent, kept=kept, state=state)

    def counts(self, name: str) -> Mapping[str, Counts]:
        self.away()
        live = [one.name for one in self.revisions if not one.state.over and one.name not in self.silent]
        return {one: self.counted.get(one, Counts(seconds=dict.fromkeys(BOUNDS, 0))) for one in live}

    def look_at(self, names: Collection[str] | None = None) -> list[Seen]:
        return look_each(self, [NAME] if names is None else names)

    def withdraw(self, name: str, revision: str, *, state: RevisionState, reason: str) -> None:
        self.away()
        found, release = self.called(revision), self.release
        if found.percent:
            raise Conflict(f"{revision} has {found.percent} % of the traffic")
        if release and not release.failed and revision in (release.revision, release.champion):
            raise Conflict(f"{revision} is under way")
        if found.state.over:
            return
        with self._write("withdraw"):
            self.change(revision, state=state, reason=reason, ready=0, kept=False)

    def retire(self, name: str) -> None:
        self.revisions = []
