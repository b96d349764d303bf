"""The book of a deployment: its revisions, the shares of traffic, the release under way. Pure functions.

Every change is one write of the whole book. A platform keeps the book where its route is; these rules are the
same wherever that is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from muster.backends.releases.tokens import Tokens
from muster.core.deployment import DeploymentSpec, Release, Revision, RevisionState, no_revision
from muster.core.errors import Conflict, Corrupt, DeploymentError, NotFound, SpecError
from muster.core.origin import Origin
from muster.volumes.base import Version
from muster.volumes.protocols import Store


@dataclass(frozen=True, kw_only=True)
class BookEntry:
    """A revision that exists, or that is about to be made.

    :param since: when it was asked for, in seconds since the epoch.
    """

    name: str
    spec: DeploymentSpec
    since: float


@dataclass(frozen=True, kw_only=True)
class Book:
    """One deployment as its platform keeps it. A platform may keep more in a subclass.

    :param made: the number of the newest revision that ever existed; a name is never given twice.
    :param live: the revisions that are not over, newest first.
    :param over: the latest revisions that are over, newest first.
    :param shares: percent of the traffic by revision; a revision with 0 is kept for a rollback.
    :param moved: when the shares last changed, in seconds since the epoch.
    :param token: changes with every write; empty where nothing was written yet.
    """

    name: str
    made: int = 0
    live: tuple[BookEntry, ...] = ()
    over: tuple[Revision, ...] = ()
    shares: Mapping[str, int] = field(default_factory=dict)
    release: Release | None = None
    moved: float = 0.0
    token: str = ""

    @property
    def intact(self) -> bool:
        """Whether the platform still holds what was written; where not, it is to be written again."""
        return True

    @property
    def champion(self) -> str | None:
        """The revision that has the traffic: the greatest share; in a tie the champion of the release under way."""
        before = self.release.champion if self.release else None
        serving = {name: percent for name, percent in self.shares.items() if percent}
        return max(serving, key=lambda name: (serving[name], name == before), default=None)

    @property
    def kept(self) -> dict[str, int]:
        """The revisions that are kept for a rollback, each with its share of 0."""
        return {name: 0 for name, percent in self.shares.items() if not percent}

    def entry(self, name: str) -> BookEntry | None:
        """The revision of a name that is not over."""
        return next((one for one in self.live if one.name == name), None)

    def ended(self, name: str) -> Revision | None:
        """The revision of a name that is over, as long as it is remembered."""
        return next((one for one in self.over if one.name == name), None)

    def gaining(self, shares: Mapping[str, int]) -> list[str]:
        """The revisions that would get traffic and have none now."""
        return [name for name, percent in shares.items() if percent and not self.shares.get(name)]


B = TypeVar("B", bound=Book)


@dataclass(frozen=True, kw_only=True)
class SavedDeployment:
    """One deployment as it is written down to be made again, here or at another place.

    :param tokens: those of its clients, as their digests; a client cannot ask with these.
    :raises SpecError: a revision has a name that muster does not give, or is there twice, or is another deployment's.
    """

    book: Book
    tokens: Tokens = field(default_factory=Tokens)

    def __post_init__(self) -> None:
        book, names = self.book, [one.name for one in self.book.live]
        release = (book.release.revision, book.release.champion) if book.release else ()
        for name in (*names, *(one.name for one in book.over), *filter(None, release)):
            if name != f"r{number(name)}" or not 0 < number(name) <= book.made:  # it becomes a file's name
                raise SpecError(f"{book.name:.80}: revision {name!r:.80}: expected one of r1 to r{book.made}")
        for at, one in enumerate(book.live):
            if one.name in names[:at]:
                raise SpecError(f"{book.name:.80}: revision {one.name} is there twice")
            if one.spec.name != book.name:
                raise SpecError(
                    f"{book.name:.80}: revision {one.name} is of deployment {one.spec.name!r:.80}"
                )


@dataclass(frozen=True, kw_only=True)
class SavedDeployments:
    """All deployments of a place: the document of ``muster deployments export``. :raises SpecError: one is there twice."""

    deployments: tuple[SavedDeployment, ...] = ()

    def __post_init__(self) -> None:
        names = [each.book.name for each in self.deployments]
        if twice := {name for name in names if names.count(name) > 1}:
            raise SpecError(f"deployment {min(twice):.80} is there twice")


def begin(
    book: B,
    spec: DeploymentSpec,
    *,
    by: str,
    now: float,
    origin: Origin | None = None,
    failed: Collection[str] = (),
) -> tuple[B, BookEntry]:
    """Begin the release of `spec`; return the book with it, and its revision.

    The book comes back unchanged where `by` has begun this release already, or where `spec` has all traffic. A
    release under way ends here: its champion has all traffic again, in the same write.

    :param failed: revisions that must not be used though they exist.
    """
    release, found = book.release, _usable(book, spec, failed)
    if found and release and (release.revision, release.by) == (found.name, by):
        return book, found
    if found and release is None and book.shares.get(found.name) == 100:
        return book, found
    champion = (release.champion if release else None) or book.champion
    shares = {**book.kept, champion: 100} if champion else book.kept
    begun = book if found else _with_new(book, spec, now=now)
    entry = found or begun.live[0]
    release = Release(revision=entry.name, champion=champion, by=by, since=now, origin=origin)
    return _written(begun, shares, release, now=now), entry


def share(
    book: B, shares: Mapping[str, int], *, release: Release | None, only_whole: str = "", now: float
) -> B:
    """Share the traffic out. Whether a revision that gains traffic is ready is for the caller to check.

    :param release: what is under way from now on.
    :param only_whole: why traffic cannot be shared here; empty where it can be.
    :raises NotFound: there is no such revision; :raises SpecError: the percents are not 100 in sum.
    :raises DeploymentError: a revision is over, or traffic cannot be shared here.
    """
    for name in sorted(shares):
        if book.entry(name) is None:
            over = book.ended(name)
            if over is None:
                raise no_revision(book.name, name, (one.name for one in book.live))
            raise DeploymentError(
                f"deployment {book.name}: {name} is not ready for traffic ({over.state.value}: {over.reason})"
            )
    served = {name: percent for name, percent in shares.items() if percent}
    if (served or book.champion) and sum(shares.values()) != 100:
        raise SpecError(f"deployment {book.name}: shares {dict(shares)} are percents, in sum 100")
    for name, percent in shares.items():
        if not 0 <= percent <= 100:
            raise SpecError(f"deployment {book.name}: {name} cannot have {percent} % of the traffic")
    if len(served) > 1 and only_whole:
        raise DeploymentError(f"deployment {book.name}: shares {dict(shares)}: {only_whole}")
    return _written(book, shares, release, now=now)


def withdraw(book: B, name: str, *, state: RevisionState, reason: str, now: float, history: int) -> B:
    """Move a revision to those that are over; the book comes back unchanged where it is over already.

    :param history: how many revisions that are over are remembered.
    :raises Conflict: it has traffic, or a release that goes forward needs it; :raises NotFound: no such revision.
    """
    entry, release = book.entry(name), book.release
    if entry is None:
        if book.ended(name) is None:
            raise no_revision(book.name, name, (one.name for one in book.live))
        return book
    if percent := book.shares.get(name):
        raise Conflict(f"deployment {book.name}: {name} has {percent} % of the traffic: move that first")
    if release and not release.failed and name in (release.revision, release.champion):
        raise Conflict(
            f"deployment {book.name}: {name} is part of the release of {release.revision}, by {release.by}"
        )
    ended = Revision(name=name, model=entry.spec.model, state=state, since=now, reason=reason)
    return replace(
        book,
        live=tuple(one for one in book.live if one is not entry),
        over=(ended, *book.over)[:history],
        shares={each: percent for each, percent in book.shares.items() if each != name},
    )


def settle(book: B, *, now: float) -> B:
    """Take all traffic and the release under way from a deployment that is about to go."""
    return _written(book, {}, None, now=now)


def live_models(book: Book) -> set[str]:
    """The addresses of the versions that a deployment still needs."""
    return {one.spec.model.address for one in book.live}


def past_models(book: Book) -> set[str]:
    """The addresses of the versions that it served or tried once, and does not need any more."""
    return {one.model.address for one in book.over} - live_models(book)


def stale(name: str) -> Conflict:
    """The error about a book that was written since it was read."""
    return Conflict(f"deployment {name}: another writer changed its route meanwhile: look again")


def number(revision: str) -> int:
    """Which revision of its deployment a name is of; 0 where it is not such a name."""
    digits = revision.removeprefix("r")
    return int(digits) if digits.isascii() and digits.isdigit() else 0


def pin_reason(name: str) -> str:
    """The reason under which a deployment pins the versions that it serves."""
    return f"deployment/{name}"


def unpin(store: Store, name: str, addresses: Iterable[str]) -> None:
    """Remove a deployment's pins of these versions."""
    for address in addresses:
        with suppress(NotFound):  # gc took it, so nothing pinned it
            store.unpin(address, reason=pin_reason(name))


def check_marks(store: Store, address: str, *, retires: bool = False, unpins: str | None = None) -> None:
    """Refuse a mark that a person sets by hand and that would not hold.

    :param retires: whether it is retired. :param unpins: the reason of a pin that is removed.
    :raises Conflict: a deployment serves it, or keeps it for a rollback. :raises NotFound: no such pin.
    """
    try:
        version = store.resolve(address)[0]
    except (Corrupt, NotFound):
        return  # damaged, deleted or unknown: the mark itself says so
    keeps = [pin.removeprefix(pin_reason("")) for pin in version.pins if pin.startswith(pin_reason(""))]
    if retires and keeps:
        raise Conflict(
            f"{version.address} is served by deployment {', '.join(keeps):.200}, or kept there for a rollback: release "
            f"another version, or `muster deployments retire {keeps[0]}`, then retire it"
        )
    if unpins is not None and unpins not in version.pins:
        pins = ", ".join(map(repr, version.pins)) or "none"
        raise NotFound(f"{version.address} has no pin {unpins!r:.80}; its pins are {pins:.300}")


def older(model: Version, champion: Version) -> str:
    """Say in what way a version is older than the one that serves; empty if it is not.

    Versions of another volume have no order. Partitions compare first, as text; then numbers; a
    version with a partition against one without by when they were made.
    """
    if model.volume != champion.volume or model.number == champion.number:
        return ""
    if model.partition is not None and champion.partition is not None:
        if model.partition != champion.partition:
            late = model.partition < champion.partition
            return f"partition {model.partition} is before {champion.partition}, which serves" if late else ""
    elif (model.partition is None) != (champion.partition is None):
        return (
            f"it was made before {champion.address}, which serves" if model.created < champion.created else ""
        )
    return f"@{champion.number} serves" if model.number < champion.number else ""


def _wanted_since(model: Version, other: Version, store: Store) -> bool:
    """Whether a run kept a version after another of its partition was made: what it asks for is newer."""
    if model.partition != other.partition:
        return False
    return store.used(model.address) > other.created


def behind(book: Book, model: Version, store: Store) -> str:
    """Say which newer version has traffic, or is on its way to it; empty if `model` may take over."""
    release = book.release
    coming = release.revision if release and not release.failed else None
    for one in book.live:
        if not book.shares.get(one.name) and one.name != coming:
            continue
        try:
            (other,) = store.resolve(one.spec.model.address)
        except NotFound:
            continue  # gc took it, so it does not serve and never will
        if (why := older(model, other)) and not _wanted_since(model, other, store):
            return f"{why} soon" if one.name == coming else why
    return ""


def _usable(book: Book, spec: DeploymentSpec, failed: Collection[str]) -> BookEntry | None:
    """The newest revision that runs as `spec` and may be released as it is."""
    release = book.release
    taken_back = release.revision if release and release.failed else None
    return next(
        (
            one
            for one in book.live
            if one.spec.runs_as(spec) and one.name != taken_back and one.name not in failed
        ),
        None,
    )


def _with_new(book: B, spec: DeploymentSpec, *, now: float) -> B:
    entry = BookEntry(name=f"r{book.made + 1}", spec=spec, since=now)
    return replace(book, made=book.made + 1, live=(entry, *book.live))


def _written(book: B, shares: Mapping[str, int], release: Release | None, *, now: float) -> B:
    moved = book.moved if dict(shares) == dict(book.shares) else now
    return replace(book, shares=dict(shares), release=release, moved=moved)
