"""A platform in memory: deployments that are served by functions of this process, with users.

It starts no process and opens no port, so a release takes milliseconds: for tests, and to try out a plan.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from muster.backends.releases.book import Book, BookEntry, live_models, past_models, settle
from muster.backends.releases.figures import added
from muster.backends.releases.platform import Limits, Observed
from muster.backends.releases.tokens import Tokens
from muster.core.deployment import Answer, ByBin, Counts, Revision, RevisionState, SmokeRequest
from muster.core.errors import Conflict, Corrupt, DeploymentError, NotFound

Columns = Mapping[str, tuple[Any, ...]]
Model = Callable[[BookEntry, Columns], Columns]
"""Answers one request with a revision. :raises DeploymentError: it fails; :raises Refused: its signature allows no such request."""

Bins = Callable[[BookEntry, Columns], tuple[ByBin, ByBin]]
"""Returns in which bin of each input a request's value is, 1 there and 0 in the others, and the training rows by bin."""

BOUNDS = (0.01, 0.02, 0.05, 0.1, 1.0, float("inf"))
NOTHING = Counts(seconds=dict.fromkeys(BOUNDS, 0))


class Refused(DeploymentError):
    """The model does not take such a request: the user's own error, as a model server's 4xx."""


@dataclass
class _Served:
    """One deployment: its book, each revision as it runs, what was answered, and how often since the last write."""

    book: Book
    running: dict[str, Revision] = field(default_factory=dict)
    counts: dict[str, Counts] = field(default_factory=dict)
    turns: Counter[str] = field(default_factory=Counter)
    tokens: Tokens = field(default_factory=Tokens)
    paused: str = ""
    lost: set[str] = field(default_factory=set)


class MemoryPlatform:
    """Implements :class:`muster.backends.releases.platform.Platform`. Safe to share between threads.

    :param model: what every revision answers with.
    :param bins: counts the requests of revisions whose spec asks for that; None: it cannot, as a server of an earlier release.
    :param starts: whether a revision that is brought up is ready at once; else when :meth:`change` says so.
    """

    def __init__(
        self,
        model: Model,
        *,
        limits: Limits = Limits(place="in memory", servers=("serve", "kserve")),  # noqa: B008 it is frozen
        starts: bool = True,
        bins: Bins | None = None,
    ) -> None:
        self._model = model
        self._bins = bins
        self._limits = limits
        self._starts = starts
        self._lock = threading.RLock()
        self._served: dict[str, _Served] = {}
        self._writes = 0

    @property
    def limits(self) -> Limits:
        """What can be deployed here."""
        return self._limits

    def names(self) -> list[str]:
        """Return the name of every deployment, sorted."""
        with self._lock:
            return sorted(self._served)

    def load(self, names: Collection[str] | None = None) -> Mapping[str, Book | Corrupt]:
        """Return the books of these deployments, or of all."""
        with self._lock:
            wanted = self.names() if names is None else names
            return {name: self._served[name].book for name in wanted if name in self._served}

    def blank(self, name: str) -> Book:
        """Return a book for a deployment that does not exist yet."""
        return Book(name=name)

    def admit(self, book: Book, entry: BookEntry) -> None:
        """Refuse nothing."""

    def save(self, book: Book, *, in_force: bool = False) -> Book:
        """Write a book; it is in force at once. :raises Conflict: it was written since it was loaded."""
        with self._lock:
            there = self._served.get(book.name)
            if book.token != (there.book.token if there else ""):
                raise Conflict(f"deployment {book.name}: another writer changed its book meanwhile")
            self._writes += 1
            written = replace(book, token=str(self._writes))
            served = self._served.setdefault(book.name, _Served(written))
            served.book = written
            served.turns.clear()
            served.running = {one.name: self._running(served, one) for one in written.live}
            return written

    def bring_up(self, book: Book, entry: BookEntry) -> None:
        """Have a revision ready, if this platform starts revisions by itself."""
        with self._lock:
            served = self._served.get(book.name)
            running = served.running.get(entry.name) if served else None  # it may be over again
            if running and self._starts and running.state is RevisionState.STARTING:
                self.change(book.name, entry.name, state=RevisionState.READY, ready=entry.spec.replicas)

    def clear(self, name: str) -> Book | None:
        """Return the book: a revision that is over runs no more once that is written."""
        with self._lock:
            return self._served[name].book if name in self._served else None

    def retire(self, name: str, unpin: Callable[[Iterable[str]], None]) -> None:
        """Take a deployment away."""
        with self._lock:
            if name not in self._served:
                return
            book = self.save(settle(self._served[name].book, now=time.time()))
            unpin(live_models(book) | past_models(book))
            del self._served[name]

    def observe(self, books: Sequence[Book], *, counts: bool = False) -> list[Observed]:
        """Report how the revisions of these books are now."""
        with self._lock:
            return [self._observed(book, counts=counts) for book in books]

    def counts(self, book: Book) -> Mapping[str, Counts]:
        """Return what each live revision has answered."""
        with self._lock:
            served = self._served.get(book.name, _Served(book))
            return {one.name: served.counts.get(one.name, NOTHING) for one in book.live}

    def ask(self, book: Book, entry: BookEntry, request: SmokeRequest) -> tuple[Answer, ...]:
        """Send one request to a revision, once for each of its replicas that is ready."""
        with self._lock:
            served = self._served.get(book.name)
            running = served.running.get(entry.name) if served else None
        if running is None or not running.ready:
            return (Answer(replica=entry.name, outputs=None, error="it is not loaded"),)
        replicas = [f"{entry.name}-{place}" for place in range(running.ready)]
        try:
            outputs = self._model(entry, request.inputs)
        except DeploymentError as error:
            return tuple(Answer(replica=each, outputs=None, error=str(error)) for each in replicas)
        return tuple(Answer(replica=each, outputs=outputs) for each in replicas)

    def repair(self, book: Book) -> tuple[str, ...]:
        """Have what :meth:`lose` took away again."""
        with self._lock:
            served = self._served[book.name]
            lost, served.lost = sorted(served.lost), set()
            served.running |= {
                entry.name: replace(self._running(_Served(book), entry), state=RevisionState.READY, ready=1)
                for entry in book.live
                if entry.name in lost
            }
            return tuple(f"{name} runs again" for name in lost)

    def announce(self, name: str, message: str, *, mended: bool = False) -> None:
        """Do nothing: there is no other writer."""

    def pause(self, name: str, why: str) -> None:
        """Write it down."""
        with self._lock:
            self._named(name).paused = why

    def restore(self) -> tuple[tuple[str, str], ...]:
        """Do nothing: there is no other writer."""
        return ()

    def tokens(self, name: str) -> Tokens:
        """Return the tokens of a deployment's clients."""
        with self._lock:
            return self._named(name).tokens

    def change_tokens(self, name: str, change: Callable[[Tokens], Tokens]) -> Tokens:
        """Change them in one step."""
        with self._lock:
            served = self._named(name)
            served.tokens = change(served.tokens)
            return served.tokens

    def _named(self, name: str) -> _Served:
        if name not in self._served:
            raise NotFound(f"no deployment {name!r}")
        return self._served[name]

    # What users do, and what happens to revisions.

    def predict(self, name: str, inputs: Columns, *, seconds: float = 0.008) -> tuple[str, Columns]:
        """Answer a user, by the shares of the traffic; return by which revision.

        :param seconds: how long it is counted to have taken.
        :raises NotFound: nothing serves under that name; :raises DeploymentError: the model fails, or refuses it; both are counted.
        """
        with self._lock:
            served = self._served.get(name)
            shares = served.book.shares if served else {}
            ready = {each: n for each, n in shares.items() if n and served and served.running[each].ready}
            if served is None or not ready:
                raise NotFound(f"nothing serves as {name}")
            # The revision that is furthest behind its share: exact shares, without chance.
            revision = min(ready, key=lambda each: ((served.turns[each] + 1) / ready[each], each))
            served.turns[revision] += 1
            entry = served.book.entry(revision)
        assert entry is not None
        try:
            outputs = self._model(entry, inputs)
        except Refused:
            self.count(name, revision, 1, refused=1, seconds=seconds)
            raise
        except DeploymentError:
            self.count(name, revision, 1, failed=1, seconds=seconds)
            raise
        bins = self._bins if entry.spec.counts_inputs else None
        asked, trained = bins(entry, inputs) if bins else (None, {})
        self.count(name, revision, 1, seconds=seconds, asked=asked, trained=trained)
        return revision, outputs

    def count(
        self,
        name: str,
        revision: str,
        requests: int,
        *,
        failed: int = 0,
        refused: int = 0,
        seconds: float = 0.008,
        asked: ByBin | None = None,
        trained: ByBin = MappingProxyType({}),
    ) -> None:
        """Count `requests` as answered, each in `seconds`.

        :param asked: how many of them have a value in each bin of each input; None where they are not counted.
            `trained` likewise the rows of training.
        """
        with self._lock:
            counts = self._served[name].counts
            more = Counts(
                requests=requests,
                failed=failed,
                refused=refused,
                seconds={bound: requests * (seconds <= bound) for bound in BOUNDS},
                asked=asked,
                trained=trained,
            )
            counts[revision] = added([{"": counts.get(revision, NOTHING)}, {"": more}])[""]

    def lose(self, name: str) -> None:
        """Have others take away what runs of a deployment."""
        with self._lock:
            served = self._served[name]
            served.lost |= served.running.keys()
            for revision in served.lost:
                self.change(name, revision, state=RevisionState.STARTING, ready=0)

    def change(self, name: str, revision: str, **fields: Any) -> None:
        """Change how a revision runs: it comes up, dies, fails. One that is over stays so.

        :param fields: of its :class:`Revision`.
        """
        with self._lock:
            running = self._served[name].running
            if revision in running:
                running[revision] = replace(running[revision], **fields)

    def _running(self, served: _Served, entry: BookEntry) -> Revision:
        starting = Revision(
            name=entry.name,
            model=entry.spec.model,
            state=RevisionState.STARTING,
            wanted=entry.spec.replicas,
            since=entry.since,
        )
        return served.running.get(entry.name, starting)

    def _observed(self, book: Book, *, counts: bool) -> Observed:
        running = self._served[book.name].running if book.name in self._served else {}
        revisions = tuple(
            _with_share(running[one.name], book.shares.get(one.name))
            for one in book.live
            if one.name in running
        )
        lost = sorted(self._served[book.name].lost) if book.name in self._served else []
        return Observed(
            drift=f"{', '.join(lost)} is gone: `muster deployments repair {book.name}` brings it back"
            if lost
            else "",
            url=f"memory://{book.name}",
            answers=any(one.percent and one.ready for one in revisions),
            revisions=revisions,
            counts=self.counts(book) if counts else None,
            paused=self._served[book.name].paused if book.name in self._served else "",
        )


def _with_share(one: Revision, percent: int | None) -> Revision:
    """A revision with its share; None where the book does not name it."""
    state = one.state
    if state in (RevisionState.READY, RevisionState.SERVING):
        state = RevisionState.SERVING if percent else RevisionState.READY
    return replace(one, percent=percent or 0, kept=percent == 0, state=state)
