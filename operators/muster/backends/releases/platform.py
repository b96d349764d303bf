"""What a platform does for deployments: it keeps a book for each, runs the revisions in it, and says how they are.

:mod:`muster.backends.releases.deployments` holds every rule of a release. A platform decides nothing: it stores,
starts, stops, looks and asks. All its calls may be repeated, and are made by several threads and processes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from muster.backends.releases.book import Book, BookEntry
from muster.backends.releases.tokens import Tokens
from muster.core.deployment import Answer, Counts, Revision, SmokeRequest
from muster.core.errors import Corrupt

B = TypeVar("B", bound=Book)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a platform can do.

    :param place: where it serves, for messages: ``on one machine``.
    :param servers: the model servers that a deployment may name; the first is that of one that names none.
    :param only_whole: why traffic can only be moved as a whole; empty where it can be shared.
    :param history: how many revisions that are over it remembers.
    :param shared: whether others than muster write there.
    :param no_grpc: why gRPC cannot be answered; empty where it can.
    """

    place: str
    servers: tuple[str, ...]
    only_whole: str = ""
    history: int = 20
    shared: bool = False
    no_grpc: str = ""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """What a platform sees of one deployment now.

    :param url: where it answers the Open Inference Protocol.
    :param grpc: where it answers gRPC; empty where it does not.
    :param answers: whether a request sent now is answered.
    :param revisions: every live revision of the book, as it is.
    :param resumable: revisions that do not answer now, but answered before, and come up by themselves once they have
        traffic: they may be given some.
    :param trouble: what the deployment itself waits for or suffers from; empty where nothing is.
    :param drift: what is not as muster left it, and the command that brings it back; empty where all is.
    :param counts: what each revision has answered, where that was asked for; None where it cannot be known now.
    :param paused: who wants what others edit of it left as it is, and why; empty where muster keeps it.
    """

    url: str
    answers: bool
    revisions: tuple[Revision, ...] = ()
    resumable: frozenset[str] = frozenset()
    trouble: str = ""
    drift: str = ""
    counts: Mapping[str, Counts] | None = None
    grpc: str = ""
    paused: str = ""


class Platform(Protocol[B]):
    """Where deployments run; `B` is the book as this platform keeps it."""

    @property
    def limits(self) -> Limits:
        """What can be deployed here."""

    def names(self) -> list[str]:
        """Return the name of every deployment, sorted; also of one whose book cannot be read."""

    def load(self, names: Collection[str] | None = None) -> Mapping[str, B | Corrupt]:
        """Return the books of these deployments, or of all, by name; leave out what does not exist.

        A book that cannot be read is returned as the error.
        """

    def blank(self, name: str) -> B:
        """Return a book for a deployment that does not exist yet, with its `made` above what is left of an earlier one.

        :raises SpecError: nothing of that name can be made here; the message says why.
        """

    def admit(self, book: B, entry: BookEntry) -> None:
        """Refuse a new revision that can never run here; put in place what must be there before it is written down.

        :raises SpecError: it can never run here.
        """

    def save(self, book: B, *, in_force: bool = False) -> B:
        """Write a book that was loaded, or is blank, in one step; return it with its new token.

        Afterwards whatever runs the deployment runs, if it is of the kind that can be gone.

        :param in_force: return only when users are sent where the book says.
        :raises Conflict: another writer changed it since it was loaded; nothing was written.
        :raises Unreachable: it was written, and it is not known to be in force.
        """

    def bring_up(self, book: B, entry: BookEntry) -> None:
        """Start what a live revision needs, as far as it does not run. Do not wait.

        :raises BackendError: what was there of an earlier revision of that name is still on its way out.
        """

    def clear(self, name: str) -> B | None:
        """Take away what runs of the revisions that are over, once they get no more requests; return the book used.

        None where the deployment does not exist any more.

        :raises Unreachable: it is not known whether users are still sent there; nothing was taken away.
        """

    def retire(self, name: str, unpin: Callable[[Iterable[str]], None]) -> None:
        """Take a deployment away and return when nothing of it runs; do nothing where there is none.

        :param unpin: called with the addresses of its versions, before the book goes: if this is interrupted, it is
            retired again. A deployment whose book cannot be read goes as well.
        :raises BackendError: something of it does not end.
        """

    def observe(self, books: Sequence[B], *, counts: bool = False) -> list[Observed]:
        """Report what runs of these deployments now, in that order.

        :param counts: whether what was answered is wanted as well.
        """

    def counts(self, book: B) -> Mapping[str, Counts]:
        """Return what each live revision has answered, by name; leave out those whose counts are unknown.

        :raises BackendError: nothing can be known now.
        """

    def ask(self, book: B, entry: BookEntry, request: SmokeRequest) -> tuple[Answer, ...]:
        """Send one real request to every replica of a revision, past the route and not counted.

        A replica that does not answer is an :class:`Answer` with an error.
        """

    def repair(self, book: B) -> Iterable[str]:
        """Bring back what others took away or changed, as far as that can be done now; tell each step once it is done.

        :raises Conflict: another writer changed the book since.
        """

    def announce(self, name: str, message: str, *, mended: bool = False) -> None:
        """Tell whatever watches this place that a deployment is not as muster left it, or is again: an Event, where there are such."""

    def pause(self, name: str, why: str) -> None:
        """Write down that what others edit of a deployment is left as it is, with a reason; an empty one ends that."""

    def restore(self) -> Iterable[tuple[str, str]]:
        """Bring back each deployment whose book others deleted while it ran; yield its name and what was done.

        It is as the process saw it at its last call: what keeps deployments calls this all the time.
        """

    def tokens(self, name: str) -> Tokens:
        """Return the tokens of a deployment's clients; they go with the deployment.

        :raises Corrupt: they cannot be read.
        """

    def change_tokens(self, name: str, change: Callable[[Tokens], Tokens]) -> Tokens:
        """Change them in one step, and return them as they are then; servers follow within two seconds.

        :raises NotFound: there is no such deployment any more.
        """
