"""The steps of a release, the same on every platform: begin, share, withdraw, retire, look, ask, repair.

All are idempotent. None waits, but for requests that were sent before. The book (:mod:`.book`) is the only state: if a
process is killed between two steps, the next process goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from muster.backends.releases.book import (
    Book,
    BookEntry,
    SavedDeployment,
    begin,
    behind,
    live_models,
    number,
    past_models,
    pin_reason,
    share,
    stale,
    unpin,
    withdraw,
)
from muster.backends.releases.figures import DeploymentSample, if_known
from muster.backends.releases.inputs import check_histograms
from muster.backends.releases.platform import Limits, Observed, Platform
from muster.backends.releases.tokens import Tokens, ended, made, new_token
from muster.core.address import SCHEME, Address
from muster.core.deployment import (
    Answer,
    Counts,
    DeploymentSpec,
    DeploymentStatus,
    Release,
    Revision,
    RevisionState,
    SmokeRequest,
    check_streams,
    no_revision,
)
from muster.core.errors import Behind, Conflict, Corrupt, DeploymentError, NotFound, SpecError
from muster.core.names import check_label
from muster.core.origin import Origin
from muster.core.wire import dumps, loads
from muster.volumes.base import Version
from muster.volumes.protocols import LocalStore

_TRIES, _PAUSE_SECONDS = 20, 0.1  # of a write while others write, too


class Deployments:
    """The deployments of one platform. Safe to share between threads; nothing is asked before the first call.

    :param store: opens the store that the versions are in; called when it is needed.
    :param now: seconds since the epoch.
    """

    def __init__(
        self,
        platform: Platform[Any],
        store: Callable[[], LocalStore],
        *,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.platform = platform
        self._store = store
        self._now = now
        self._sleep = sleep

    @property
    def limits(self) -> Limits:
        """What can be deployed here."""
        return self.platform.limits

    def prepare(
        self,
        spec: DeploymentSpec,
        *,
        by: str,
        origin: Origin | None = None,
        allow_older: bool = True,
        token: str | None = None,
    ) -> Revision:
        """Begin a release: bring a revision up beside what serves, without traffic.

        A revision that already runs as `spec` (:meth:`DeploymentSpec.runs_as`), or that was kept for a rollback, is
        used as it is. A release under way is superseded: its champion has all traffic again first. This also
        brings a deployment back after its machine was restarted.

        :param by: who asks, as :class:`muster.core.deployment.Release` keeps it and `origin`. The same `by` goes on.
        :param allow_older: whether a version may follow a newer one of its volume that serves, or is on its way to.
        :param token: of the status that this was decided on, if any.
        :raises Behind: a newer version serves, and it must not be older; the message says which.
        :raises Conflict: the deployment was written since `token`, or is written by others all the time.
        :raises SpecError: it can never run here; :raises NotFound: the version or the image's lock is gone.
        """
        spec = loads(
            DeploymentSpec, dumps(spec)
        )  # as it will be read back, so that equal specs compare equal
        model = self._check(spec)
        book, entry = self._begin(spec, model, by=by, origin=origin, allow_older=allow_older, token=token)
        self._store().pin(model.address, reason=pin_reason(spec.name))
        self.platform.bring_up(book, entry)
        return self._prepared(spec.name, entry.name)

    def deployment(self, name: str) -> DeploymentStatus:
        """Report a deployment as it is now.

        :raises NotFound: no such deployment; :raises Corrupt: its book cannot be read.
        """
        book = self._load(name)
        (seen,) = self.platform.observe([book])
        return status_of(book, seen)

    def champion(self, name: str) -> DeploymentSpec:
        """Return what a deployment's champion was asked to be: its model, its image and so on.

        :raises NotFound: no such deployment, or nothing has traffic there.
        """
        status = self.deployment(name)
        entry = self._load(name).entry(status.champion.name) if status.champion else None
        if entry is None:
            raise NotFound(
                f"deployment {name}: no revision has traffic now; see muster deployments show {name}"
            )
        spec: DeploymentSpec = entry.spec
        return spec

    def warning(self, address: str) -> str:
        """Say that a version that gets the traffic was retired; empty where it was not, or the store cannot say."""
        found = if_known(lambda: self._store().resolve(address))
        if not found or found[0].retired is None:
            return ""
        model, why = address.removeprefix(SCHEME), f": {found[0].retired}" if found[0].retired else ""
        return (
            f"{model} was retired{why}. Release another version, or take that back: "
            f"muster volumes reinstate {model}"
        )

    def names(self) -> list[str]:
        """Return the name of every deployment, sorted."""
        return self.platform.names()

    def look_at(self, names: Collection[str] | None = None, *, counts: bool = True) -> list[DeploymentSample]:
        """Report every deployment, or those of `names`, with their counts; leave out what does not exist.

        A deployment whose book cannot be read is reported as down, with the reason.

        :param counts: whether each model server is asked what it has answered; where not, counts are unknown.
        """
        found = self.platform.load(names)
        observed = iter(
            self.platform.observe([b for b in found.values() if isinstance(b, Book)], counts=counts)
        )
        samples = []
        for name, book in found.items():
            if isinstance(book, Corrupt):
                status = DeploymentStatus(name=name, url="", ready=False, token="", reason=str(book))
                samples.append(DeploymentSample(status=status, counts=None))
                continue
            seen = next(observed)
            status = status_of(book, seen)
            whole = seen.counts is not None and seen.counts.keys() >= status.shares.keys()
            samples.append(DeploymentSample(status=status, counts=seen.counts if whole else None))
        return samples

    def ask(self, name: str, revision: str, request: SmokeRequest) -> tuple[Answer, ...]:
        """Send one real request to every replica of a revision, past the route, not counted as traffic.

        :raises NotFound: no such revision. A replica that does not answer is an :class:`Answer` with an error.
        """
        book = self._load(name)
        entry = book.entry(revision)
        if entry is None:
            raise no_revision(name, revision, (one.name for one in book.live))
        return self.platform.ask(book, entry, request)

    def counts(self, name: str) -> Mapping[str, Counts]:
        """Return what each revision has answered, by name, from the replicas that can be reached.

        A revision with traffic whose replicas cannot be reached has no entry: its counts are unknown.

        :raises BackendError: nothing can be known now.
        """
        return self.platform.counts(self._load(name))

    def shift(self, name: str, shares: Mapping[str, int], *, token: str, release: Release | None) -> str:
        """Share the traffic out in one write, and return the new token.

        :param shares: percent by revision, in sum 100; nothing at all where nothing has traffic yet. A revision that
            gains traffic must be ready. One with 0 gets none, and is kept for a rollback.
        :param token: of the status that this was decided on.
        :param release: what is under way from now on.
        :raises Conflict: the deployment was written since; nothing was changed.
        :raises DeploymentError: a revision is not ready, or traffic cannot be shared here.
        :raises NotFound: no such revision; :raises SpecError: the shares are not percents in sum 100.
        """
        book = self._load(name)
        if book.token != token:
            raise stale(name)
        after = share(book, shares, release=release, only_whole=self.limits.only_whole, now=self._now())
        if gaining := book.gaining(shares):
            self._check_ready(book, gaining)
        return str(self.platform.save(after, in_force=True).token)

    def withdraw(self, name: str, revision: str, *, state: RevisionState, reason: str) -> None:
        """Take a revision without traffic away, once the requests that it has are answered.

        It is remembered as over before anything of it is deleted: if this is interrupted, the next call does the rest.

        :param state: what it is remembered as, REFUSED or RETIRED, with the reason.
        :raises Conflict: it has traffic, or a release that goes forward needs it; :raises NotFound: no such revision.
        """
        history = self.limits.history
        for _ in range(_TRIES):
            book = self._load(name)
            after = withdraw(book, revision, state=state, reason=reason, now=self._now(), history=history)
            try:
                if after is not book:
                    self.platform.save(after)
            except Conflict:  # it was written meanwhile: the revision may have traffic now
                self._sleep(_PAUSE_SECONDS)
            else:
                return self._clear(name)
        raise _busy(name)

    def repair(self, name: str) -> tuple[str, ...]:
        """Bring a deployment back to how muster left it, as far as that can be done now.

        :return: what was done, a line each; empty where nothing had to be done, or something is still coming up.
        :raises NotFound: no such deployment.
        """
        done: list[str] = []
        for _ in range(_TRIES):
            with suppress(Conflict):
                for step in self.platform.repair(self._load(name)):
                    done.append(step)  # noqa: PERF402 what was done before a conflict counts
                return tuple(done)
            self._sleep(_PAUSE_SECONDS)
        raise _busy(name)

    def saved(self, name: str) -> SavedDeployment:
        """Return a deployment as :meth:`make_again` takes it. :raises NotFound: no such deployment."""
        found = self._load(name)
        book = Book(**{each.name: getattr(found, each.name) for each in fields(Book) if each.name != "token"})
        tokens = replace(self.platform.tokens(name), key="")
        return SavedDeployment(book=book, tokens=tokens)

    def make_again(self, saved: SavedDeployment) -> None:
        """Make a deployment that does not exist as it was saved; :meth:`repair` brings up what it lacks.

        :raises Conflict: there is one of that name. :raises NotFound: the store lacks a version, or an image's lock.
        :raises SpecError: a revision can never run here. :raises DeploymentError: traffic cannot be shared so here.
        """
        name, live = saved.book.name, saved.book.live
        if self._find(name) is not None:
            raise Conflict(f"deployment {name} is there, and is left as it is")
        share(
            saved.book,
            saved.book.shares,
            release=None,
            only_whole=self.limits.only_whole,
            now=saved.book.moved,
        )
        models = [self._check(entry.spec) for entry in live]
        for digest in {each for entry in live for each in entry.spec.image_digests}:
            self._store().code(digest)
        blank = self.platform.blank(name)
        same = {each.name: getattr(saved.book, each.name) for each in fields(Book) if each.name != "token"}
        book = replace(blank, **{**same, "made": max(blank.made, saved.book.made)})
        for entry, model in zip(live, models, strict=True):
            self.platform.admit(book, entry)
            self._store().pin(model.address, reason=pin_reason(name))
        written = self.platform.save(book)
        if saved.tokens.tokens:  # before what may fail: another try would leave the deployment as it is
            writes = saved.tokens.writes + 1
            self.platform.change_tokens(
                name, lambda now: replace(now, tokens=saved.tokens.tokens, writes=max(now.writes, writes))
            )
        for entry in live:
            self.platform.bring_up(written, entry)

    def pause(self, name: str, why: str) -> None:
        """Have what others edit left as it is, for a reason; an empty one ends that. :raises NotFound: no such deployment."""
        self._load(name)
        self.platform.pause(name, why)

    def tokens(self, name: str) -> Tokens:
        """Return the tokens of a deployment's clients. :raises NotFound: no such deployment."""
        self._load(name)
        return self.platform.tokens(name)

    def make_token(self, name: str, client: str) -> str:
        """Make a token for a client and return it; it cannot be shown again, for its digest alone is kept.

        :raises NotFound: no such deployment; :raises SpecError: the client has one.
        """
        self._load(name)
        token = new_token()
        self.platform.change_tokens(name, lambda now: made(now, client, token, now=self._now()))
        return token

    def end_token(self, name: str, client: str) -> None:
        """End a client's token: two seconds later no server takes it.

        :raises NotFound: no such deployment, or the client has none.
        """
        self._load(name)
        self.platform.change_tokens(name, lambda now: ended(now, client, now=self._now()))

    def retire(self, name: str) -> None:
        """Take a deployment away with all its revisions, and return when nothing of it runs.

        :raises BackendError: something of it does not end.
        """
        check_label("deployment", name)
        self.platform.retire(name, lambda addresses: unpin(self._store(), name, addresses))

    def _check(self, spec: DeploymentSpec) -> Version:
        """Refuse what can never be served here; return the model's version."""
        limits = self.limits
        if spec.grpc and limits.no_grpc:
            raise SpecError(f"grpc: {limits.no_grpc}")
        if spec.server not in limits.servers:
            raise SpecError(f"server {spec.server!r}: {limits.place} there is {', '.join(limits.servers)}")
        (version,) = self._store().resolve(spec.model.address)
        if version.digest != spec.model.digest:
            raise SpecError(
                f"{spec.model.address} is {version.digest:.20}…, the spec says {spec.model.digest:.20}…: "
                "it was written for another store"
            )
        if spec.counts_inputs:
            check_histograms(spec.model.address, self._store().manifest(spec.model.address))
        if spec.workers and spec.workers.stream:
            check_streams(spec.model.address, self._store().manifest(spec.model.address))
        return version

    def _begin(
        self,
        spec: DeploymentSpec,
        model: Version,
        *,
        by: str,
        origin: Origin | None,
        allow_older: bool,
        token: str | None,
    ) -> tuple[Book, BookEntry]:
        """Write into the book that a revision is on its way; return both."""
        for _ in range(_TRIES):
            book = self._find(spec.name) or self.platform.blank(spec.name)
            if token not in (None, book.token):
                raise stale(spec.name)
            if not allow_older and (why := behind(book, model, self._store())):
                raise Behind(f"{model.address} would take {spec.name} back in time: {why}")
            failed = self._failed(book, spec)
            begun, entry = begin(book, spec, by=by, origin=origin, now=self._now(), failed=failed)
            if begun is book and book.intact:
                return book, entry
            if book.entry(entry.name) is None:
                known = {digest for one in book.live for digest in one.spec.image_digests}
                for digest in spec.image_digests:
                    if digest not in known:
                        self._store().code(digest)  # without its lock an image can never be built
                self.platform.admit(begun, entry)
            with suppress(Conflict):  # another process was first: what it wrote counts
                return self.platform.save(begun), entry
            self._sleep(_PAUSE_SECONDS)
        raise _busy(spec.name)

    def _failed(self, book: Book, spec: DeploymentSpec) -> set[str]:
        """Which revisions have failed, where it makes a difference."""
        if not any(one.spec.runs_as(spec) for one in book.live):
            return set()
        (seen,) = self.platform.observe([book])
        return {one.name for one in seen.revisions if one.state is RevisionState.FAILED}

    def _prepared(self, name: str, revision: str) -> Revision:
        book: Book = self._load(name)
        if over := book.ended(revision):
            self._clear(name)  # it was superseded before it was brought up
            return over
        (seen,) = self.platform.observe([book])
        found: Revision | None = next((one for one in seen.revisions if one.name == revision), None)
        if found is None:
            raise Conflict(f"revision {revision} of {name} was taken away meanwhile")
        return found

    def _check_ready(self, book: Book, gaining: Collection[str]) -> None:
        """Refuse to send users to a revision that would not answer them. :raises DeploymentError: one would not."""
        (seen,) = self.platform.observe([book])
        for one in seen.revisions:
            # Of a revision that is kept one replica is enough: a rollback must not wait for a drained node.
            ready = one.ready > 0 if one.kept else one.state is RevisionState.READY
            if one.name in gaining and not ready and one.name not in seen.resumable:
                replicas = f"{one.ready} of {one.wanted} replicas answer"
                why = f"{one.state.value}: {one.reason or 'it is not loaded'}; {replicas}"
                raise DeploymentError(f"deployment {book.name}: {one.name} is not ready for traffic ({why})")

    def _clear(self, name: str) -> None:
        """Take away what runs of revisions that are over, and give back the pins of their versions."""
        book = self.platform.clear(name)
        past = past_models(book) if book else set()
        if past:
            unpin(self._store(), name, past)
        # Another process may have begun one of them again meanwhile: it writes the book before it pins.
        now = self._find(name) if past else None
        for address in past & live_models(now) if now else ():
            self._store().pin(address, reason=pin_reason(name))

    def _find(self, name: str) -> Any:
        """Return a deployment's book, or None. :raises Corrupt: it cannot be read."""
        check_label("deployment", name)
        book = self.platform.load([name]).get(name)
        if isinstance(book, Corrupt):
            raise book
        return book

    def _load(self, name: str) -> Any:
        """Return a deployment's book. :raises NotFound: no such deployment."""
        book = self._find(name)
        if book is None:
            known = ", ".join(self.names()) or "none"
            raise NotFound(f"no deployment {name!r}; known are: {known}")
        return book


def status_of(book: Book, seen: Observed) -> DeploymentStatus:
    """What users and drivers are told of a deployment: its book, and what its platform sees."""
    revisions = sorted((*seen.revisions, *book.over), key=lambda one: number(one.name), reverse=True)
    status = DeploymentStatus(
        name=book.name,
        url=seen.url,
        grpc=seen.grpc,
        ready=seen.answers,
        token=book.token,
        revisions=tuple(revisions),
        release=book.release,
        drift=seen.drift,
        paused=seen.paused,
    )
    return replace(status, reason=seen.drift or seen.trouble or _suffers(status) or _last_refusal(status))


def _suffers(status: DeploymentStatus) -> str:
    """Why users may not be answered: by the champion, or by another revision with traffic."""
    champion = status.champion
    if champion and champion.reason:
        return champion.reason
    for one in status.revisions:
        if one.percent and not one.ready and one is not champion:
            return f"{one.name}, which has {one.percent} % of the traffic, does not answer: {one.reason}"
    return ""


def _last_refusal(status: DeploymentStatus) -> str:
    newest = status.revisions[0] if status.revisions else None
    if newest is None or newest.state not in (RevisionState.REFUSED, RevisionState.FAILED):
        return ""
    return f"@{Address.parse(newest.model.address).value} was refused: {newest.reason}"


def _busy(name: str) -> Conflict:
    return Conflict(f"deployment {name} is written by others all the time, or is being retired: try again")
