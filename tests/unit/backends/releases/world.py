"""Deployments in memory, with users and time that a test plays; every write may be killed, or beaten by another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tests.contract.platform_in_memory import Columns, MemoryPlatform

from muster.backends.releases.book import Book, BookEntry
from muster.backends.releases.deployments import Deployments
from muster.backends.releases.manual import promote
from muster.backends.releases.platform import Limits, Observed
from muster.core.address import Address
from muster.core.data import Pinned
from muster.core.deployment import Counts, DeploymentSpec, Release, Revision, RevisionState, SmokeRequest
from muster.core.errors import Corrupt, NotFound
from muster.volumes.base import Version

NAME = "line"


class Killed(BaseException):
    """The process that drives is no more."""


def digest(number: int) -> str:
    return f"b3:{number:064}"


def spec(number: int, *, smoke: bool = True) -> DeploymentSpec:
    """Version `number`, which is to answer 2 with 2 * number."""
    model = Pinned(address=f"volume://lines/model@{number}", digest=digest(number))
    expect = {"y": {"min": 2 * number, "max": 2 * number}}
    asked = (SmokeRequest(name="two", inputs={"x": (2.0,)}, expect=expect),) if smoke else ()
    return DeploymentSpec(name=NAME, model=model, image="serve", image_digest=digest(1), smoke=asked)


class Lines:
    """A store that holds every version of ``lines/model``; their pins are not kept."""

    def resolve(self, address: str) -> tuple[Version, ...]:
        number = int(Address.parse(address).value)
        made = {"size_bytes": 1, "files": 1, "created": 0.0}
        return (Version(volume="lines/model", number=number, digest=digest(number), **made),)  # type: ignore[arg-type]

    def used(self, address: str) -> float:
        """No run has kept a version."""
        return 0.0

    def code(self, digest: str) -> None: ...

    def pin(self, address: str, *, reason: str) -> None: ...

    def unpin(self, address: str, *, reason: str) -> None: ...


class Played(MemoryPlatform):
    """A platform in memory whose faults the test plays, as :class:`World` says."""

    def __init__(self, world: World, only_whole: str) -> None:
        limits = Limits(place="here", servers=("kserve",), only_whole=only_whole)
        super().__init__(world.model, limits=limits, starts=False)
        self._world = world

    def load(self, names: Collection[str] | None = None) -> Mapping[str, Book | Corrupt]:
        self._world.away()
        return super().load(names)

    def save(self, book: Book, *, in_force: bool = False) -> Book:
        self._world.fault(self._world.doing)
        written = super().save(book, in_force=in_force)
        self._world.history.append({name: percent for name, percent in book.shares.items() if percent})
        self._world.fault(f"{self._world.doing} done")
        return written

    def counts(self, book: Book) -> Mapping[str, Counts]:
        return {name: n for name, n in super().counts(book).items() if name not in self._world.silent}

    def observe(self, books: Sequence[Book], *, counts: bool = False) -> list[Observed]:
        seen = super().observe(books, counts=counts)
        return seen if self._world.ready else [replace(each, answers=False) for each in seen]


class World(Deployments):
    """The deployments of a platform in memory, and the users of one of them.

    :ivar fault: called before and after each write with what is written; what it raises, the writer gets.
    :ivar away: called before each look.
    :ivar silent: which revisions do not say what they have answered.
    :ivar failing: of which revisions' answers which share is bad; `seconds` how long a revision takes.
    """

    def __init__(self, *, only_whole: str = "") -> None:
        self.now = 0.0
        self.ready = True
        self.prepared = 0
        self.failing: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        self.answers: dict[str, float] = {}
        self.silent: set[str] = set()
        self.away: Callable[[], None] = lambda: None
        self.fault: Callable[[str], None] = lambda _which: None
        self.history: list[dict[str, int]] = []
        self.doing = ""
        self.played = Played(self, only_whole)
        store: Any = Lines()
        super().__init__(self.played, lambda: store, sleep=lambda _: None)

    @property
    def deployments(self) -> World:
        """Itself, where a backend's are asked for."""
        return self

    # what users and time do

    def begin_canary(self, *, by: str) -> None:
        """Let @2 serve and @1 be kept, and have @3 released to 5 %."""
        for number in (1, 2):
            made = self.prepare(spec(number), by="task")
            self.come_up(made.name)
            promote(self, NAME, made.name, by="task")
        self.prepare(spec(3), by=by)
        self.come_up("r3")
        status = self.deployment(NAME)
        self.shift(NAME, {"r2": 95, "r3": 5, "r1": 0}, token=status.token, release=status.release)

    def clock(self) -> float:
        return self.now

    def pass_time(self, seconds: float, *, requests: int = 40) -> None:
        """Let time pass while users ask."""
        self.now += seconds
        for one in self.revisions:
            if one.percent:
                self.count(one.name, round(requests * one.percent / 100))

    def count(self, name: str, requests: int) -> None:
        """Let users have asked a revision so often."""
        failed = round(requests * self.failing.get(name, 0.0))
        self.played.count(NAME, name, requests, failed=failed, seconds=self.seconds.get(name, 0.008))

    def model(self, entry: BookEntry, inputs: Columns) -> Columns:
        slope = self.answers.get(entry.name, float(entry.spec.model.address.rpartition("@")[2]))
        return {"y": tuple(slope * x for x in inputs["x"])}

    def come_up(self, name: str) -> None:
        self.change(name, state=RevisionState.READY, ready=1)

    def change(self, name: str, **fields: Any) -> None:
        self.played.change(NAME, name, **fields)

    # what there is, whether or not the platform can be reached

    @property
    def book(self) -> Book:
        found = MemoryPlatform.load(self.played, [NAME]).get(NAME)
        if not isinstance(found, Book):
            raise NotFound(f"no deployment {NAME}")
        return found

    @property
    def revisions(self) -> list[Revision]:
        if NAME not in self.played.names():
            return []
        (seen,) = self.played.observe([self.book])
        return sorted((*seen.revisions, *self.book.over), key=lambda one: int(one.name[1:]), reverse=True)

    @property
    def token(self) -> str:
        return self.book.token

    @property
    def release(self) -> Release | None:
        return self.book.release

    @release.setter
    def release(self, release: Release | None) -> None:
        self.doing = "edit"
        self.played.save(replace(self.book, release=release))

    def called(self, name: str) -> Revision:
        return next(one for one in self.revisions if one.name == name)

    # what is written

    def prepare(self, *arguments: Any, **keywords: Any) -> Revision:
        self.prepared += 1
        self.doing = "prepare"
        return super().prepare(*arguments, **keywords)

    def shift(self, *arguments: Any, **keywords: Any) -> str:
        self.doing = "shift"
        return super().shift(*arguments, **keywords)

    def withdraw(self, *arguments: Any, **keywords: Any) -> None:
        self.doing = "withdraw"
        super().withdraw(*arguments, **keywords)
